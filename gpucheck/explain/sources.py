"""Where `gpucheck explain` reads from: logs, a record's facts, this machine."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpucheck.diagnose.clean import CHUNK_BYTES, is_binary, unpacked

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpucheck.diagnose import Scan
    from gpucheck.diagnose.clean import Bytes
    from gpucheck.facts import Fact, Facts

PROGRESS_EVERY_S = 0.25
_MB = 1_000_000


class Unreadable(Exception):
    """Something that was asked for could not be read: what, and why."""


@dataclass(slots=True)
class Progress:
    """Tells on a terminal how far the reading is; says nothing elsewhere."""

    shown_at: float = 0.0
    started: float = 0.0
    shown: bool = False

    def __call__(self, bytes_read: int) -> None:
        """Shows the number of bytes read, now and then."""
        now = time.monotonic()
        self.started = self.started or now
        if now - max(self.shown_at, self.started) < PROGRESS_EVERY_S or not sys.stderr.isatty():
            return
        self.shown_at, self.shown = now, True
        sys.stderr.write(f"\rreading: {bytes_read / _MB:,.0f} MB, {now - self.started:.0f} s ")
        sys.stderr.flush()

    def clear(self) -> None:
        """Takes the line away again."""
        if self.shown:
            sys.stderr.write("\r" + " " * 40 + "\r")


def read_logs(scan: Scan, names: Iterable[str]) -> list[str]:
    """Scans every log (``-`` is standard input); what could not be read, one message each."""
    progress, problems = Progress(), []
    for name in names:
        try:
            _read_log(scan, name, progress)
        except OSError as error:
            problems.append(f"{name}: {getattr(error, 'strerror', None) or error}")
    progress.clear()
    return problems


def _read_log(scan: Scan, name: str, progress: Progress) -> None:
    if name != "-":
        with Path(name).open("rb") as raw:
            scan.read(_text(unpacked(raw)), name, progress)
        return
    if sys.stdin is None:
        raise OSError("standard input is closed")
    stream = _text(unpacked(sys.stdin.buffer))
    if not stream.start:
        raise OSError("standard input is empty; see whether the command before the pipe failed")
    scan.read(stream, "stdin", progress)


@dataclass(slots=True)
class _Begun:
    """A stream whose first bytes were looked at."""

    start: bytes
    rest: Bytes

    def read(self, size: int = -1, /) -> bytes:
        """The next bytes; none at the end."""
        data, self.start = self.start, b""
        return data or self.rest.read(size)


def _text(stream: Bytes) -> _Begun:
    """The stream, if it may be a text. Raises OSError for a program, an image, an archive."""
    start = stream.read(CHUNK_BYTES)
    if is_binary(start):
        raise OSError("this is a binary file, not a text")
    return _Begun(start, stream)


def facts_of_record(path: Path) -> Facts:
    """The facts of the last run in a record file. Raises :class:`Unreadable`."""
    found: dict[str, Any] | None = None
    for row in _rows(path):
        if isinstance(row, dict) and row.get("kind") == "run" and isinstance(row.get("facts"), dict):
            found = row["facts"]
    if found is None:
        raise Unreadable(f"--facts {path}: not a record: no row of kind `run` with `facts`")
    # Imported here, as below: the readers of facts take a third of the command's start, and most logs need none.
    from gpucheck.facts import Facts

    return Facts(_fact(path, name, row) for name, row in found.items())


def _rows(path: Path) -> list[Any]:
    from gpucheck import record

    try:
        return record.read(path)
    except OSError as error:
        raise Unreadable(f"--facts {path}: {error.strerror}") from None
    except ValueError as error:
        raise Unreadable(f"--facts {error}") from None


def _fact(path: Path, name: str, row: object) -> Fact:
    if not isinstance(row, dict) or not row.keys() & {"value", "unknown", "why"}:
        raise Unreadable(f"--facts {path}: fact {name!r} is neither {{value, source}} nor {{unknown, source}}")
    source = str(row.get("source", ""))
    from gpucheck.facts import Fact

    if "value" in row:
        return Fact(name, row["value"], source)
    return Fact(name, None, source, str(row.get("unknown") or row.get("why") or "unknown"))


def facts_of_host(names: tuple[str, ...]) -> Facts | None:
    """The facts of this machine that are asked for, and no others; None, and nothing is read, when none is."""
    if not names:
        return None
    from gpucheck import facts

    return facts.read(names)


def file_here(name: str) -> bool:
    """Whether ``name`` is a file or folder (or ``-``)."""
    try:
        return name == "-" or Path(name).exists()
    except (OSError, ValueError):
        return False
