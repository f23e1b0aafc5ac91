"""How the text of an option is read: each parser returns its value, or raises ValueError."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from gpucheck.verdict import Acceptance

if TYPE_CHECKING:
    from collections.abc import Callable

SIZES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
MOST_BYTES = 1 << 50
FLAGS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
WEEK_S = 7 * 24 * 3600


def size_bytes(text: str) -> int:
    """Bytes of ``64m``, ``1g``, ``512k`` or a plain number. Raises ValueError."""
    match = re.fullmatch(r"(\d{1,15})([kmg]?)b?", text.strip().lower())
    size = int(match[1]) * SIZES[match[2]] if match else 0
    if not 0 < size <= MOST_BYTES:
        raise ValueError(text)
    return size


def words(text: str) -> tuple[str, ...]:
    """The words of a list that commas separate."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


def choice(*allowed: str) -> Callable[[str], str]:
    """A parser of one of those words."""

    def parse(text: str) -> str:
        if text not in allowed:
            raise ValueError(text)
        return text

    return parse


def seconds(text: str) -> float:
    """Seconds, more than 0 and less than a week."""
    number = float(text)
    if not 0 < number < WEEK_S:
        raise ValueError(text)
    return number


def sizes(text: str) -> tuple[str, ...]:
    """Sizes, as they are written, or ``host``."""
    named = words(text)
    for word in named:
        if word != "host":
            size_bytes(word)
    if not named:
        raise ValueError(text)
    return named


def flag(text: str) -> bool:
    """Yes or no."""
    if text.lower() not in FLAGS:
        raise ValueError(text)
    return FLAGS[text.lower()]


def acceptance(text: str) -> Acceptance:
    """``PITFALL=REASON``."""
    pitfall, _, reason = text.partition("=")
    if not pitfall.strip() or not reason.strip():
        raise ValueError(text)
    return Acceptance(pitfall.strip(), reason.strip())


def executable(text: str) -> str:
    """The path of an executable file."""
    path = Path(text).expanduser()
    if not path.is_file() or not os.access(path, os.X_OK):
        raise ValueError(text)
    # Not resolved: a venv's python is a link, and following it leaves the venv.
    return str(path.absolute())


def folder(text: str) -> str:
    """A folder with probes."""
    if not Path(text).is_dir() or not any(Path(text).rglob("test_*.py")):
        raise ValueError(text)
    return str(Path(text).resolve())


def file(text: str) -> str:
    """A file that is there."""
    if not Path(text).is_file():
        raise ValueError(text)
    return str(Path(text).resolve())


# The grammar of a reference (distribution/reference): registry and its port, lower-case path, tag, digest; or an id.
_PART = r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*"
_REFERENCE = re.compile(
    rf"(?:(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9a-fA-F:]+\])(?::\d+)?/)?{_PART}(?:/{_PART})*"
    r"(?::\w[\w.-]{0,127})?(?:@[a-z0-9+.]+:[0-9a-f]{32,128})?",
    re.ASCII,
)


def reference(text: str) -> str:
    """The name of an image."""
    if not _REFERENCE.fullmatch(text):
        raise ValueError(text)
    return text


def factory(text: str) -> str:
    """``MODULE:FACTORY``."""
    if not re.fullmatch(r"[\w.]+:[\w.]+", text):
        raise ValueError(text)
    return text
