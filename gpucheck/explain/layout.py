"""Text for a terminal of 80 columns: wrapping that knows wide characters, commands that stay true when pasted."""

from __future__ import annotations

import re
import unicodedata
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

COLUMNS = 80
_NO_LINE_START = set("，。；：、！？）”’》」')")
_QUOTED = re.compile(r"""'[^']*'|"(?:\\.|[^"\\])*"|\\.|[^\s'"\\]+|\s+|.""", re.DOTALL)


@cache
def _units() -> re.Pattern[str]:
    """A word, a gap, or one wide character: Chinese text may be broken between any two. Costly to compile, so late."""
    wide = r"\u2e80-\u9fff\uf900-\ufaff\uff00-\uffef"
    return re.compile(rf"[{wide}]|[^\s{wide}]+|\s+")


def width(text: str) -> int:
    """How many columns ``text`` takes."""
    return sum(_columns(character) for character in text)


def _columns(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def printable(text: str) -> str:
    """The text on one line without characters that a terminal would obey."""
    return "".join(" " if c.isspace() else c if c.isprintable() else "?" for c in text)


def clipped(text: str, columns: int, around: int = 0) -> str:
    """At most ``columns`` of the text, chosen so that the character at ``around`` is in it."""
    if width(text) <= columns:
        return text
    start = max(0, min(around - columns // 4, len(text) - columns // 2))
    start = 0 if start < columns // 8 else start
    kept, used = "…" if start else "", 1 if start else 0
    for character in text[start:]:
        used += _columns(character)
        if used > columns - 1:
            return kept + "…"
        kept += character
    return kept


def wrapped(text: str, columns: int) -> Iterator[str]:
    """The text in lines of at most ``columns``, broken at spaces or between wide characters."""
    line, used = "", 0
    for unit in _units().findall(text):
        size = width(unit)
        # Room is kept for the mark that may follow a wide character and must not begin a line.
        limit = columns if unit.isascii() or unit in _NO_LINE_START else columns - 2
        if line and not unit.isspace() and used + size > limit:
            yield line.rstrip()
            line, used = "", 0
        if line or not unit.isspace():
            line, used = line + unit, used + size
        while width(line.rstrip()) > columns:
            head = _head(line, columns)
            yield head
            line = line[len(head) :]
            used = width(line)
    if line.strip():
        yield line.rstrip()


def _head(text: str, columns: int) -> str:
    used = 0
    for at, character in enumerate(text):
        used += _columns(character)
        if used > columns:
            return text[:at]
    return text


def command(text: str, columns: int) -> Iterator[str]:
    """A shell command, continued with backslashes where it may be broken between two arguments."""
    line = ""
    for unit in _QUOTED.findall(text):
        if line.strip() and line[-1].isspace() and width(line) + width(unit) > columns - 2:
            yield line.rstrip() + " \\"
            line = "  "
        line += unit
    yield line.rstrip()
