"""Messages that somebody wrapped over several lines: the end of a log, its lines joined again."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpucheck.diagnose.clean import LINE_LIMIT_BYTES, body, plain

if TYPE_CHECKING:
    from collections.abc import Iterator

TAIL_BYTES = 256 << 10
_TAGS_LIMIT = 256


@dataclass(frozen=True, slots=True)
class Joined:
    """Lines of one speaker joined to one text; ``starts``: their offsets in it, ``numbers``: their lines in the log."""

    text: str
    starts: list[int]
    numbers: list[int]

    def index(self, offset: int) -> int:
        """Which line holds ``offset``."""
        return bisect_right(self.starts, offset) - 1

    def torn(self, start: int, end: int) -> bool:
        """Whether ``start``:``end`` reaches over the end of a line."""
        return self.index(start) != self.index(max(start, end - 1))

    def around(self, start: int, end: int, lines: int) -> tuple[int, int]:
        """Offsets of the lines that hold ``start``:``end``, and of as many as ``lines`` more each way."""
        first, last = max(0, self.index(start) - lines), self.index(end - 1) + 1 + lines
        return self.starts[first], self.starts[last] if last < len(self.starts) else len(self.text)

    def haystack(self) -> bytes:
        """The text for the literal scan: lower case, one byte a character, so that offsets agree."""
        return self.text.encode("ascii", errors="replace").lower()


class Tail:
    """The last lines of a log (all of a small one)."""

    def __init__(self) -> None:
        self._pieces: deque[tuple[int, bytes]] = deque()
        self._size = 0

    def add(self, first_line: int, data: bytes) -> None:
        """Takes the next piece, whose first line has the number ``first_line``; drops what is too old."""
        self._pieces.append((first_line, data))
        self._size += len(data)
        while len(self._pieces) > 1 and self._size - len(self._pieces[0][1]) >= TAIL_BYTES:
            self._size -= len(self._pieces.popleft()[1])

    def joined(self) -> Iterator[Joined]:
        """The lines of each speaker (rank, pod) joined: as if broken at a space, and as if broken within a word."""
        speakers: dict[str, list[tuple[int, str]]] = defaultdict(list)
        for number, line in self._lines():
            text, tag = body(line)
            key = tag if tag in speakers or len(speakers) < _TAGS_LIMIT else ""
            speakers[key].append((number, text))
        for lines in speakers.values():
            if len(lines) > 1:
                yield _join(lines, " ")
                yield _join(lines, "")

    def _lines(self) -> Iterator[tuple[int, str]]:
        for first, data in self._pieces:
            for offset, line in enumerate(data[-2 * TAIL_BYTES :].split(b"\n")):
                text = line.rpartition(b"\r")[2] if b"\r" in line.rstrip(b"\r") else line
                if text.strip():
                    yield (first + offset, plain(text[:LINE_LIMIT_BYTES].decode("utf-8", errors="replace")))


def _join(lines: list[tuple[int, str]], glue: str) -> Joined:
    starts, at = [], 0
    for _, text in lines:
        starts.append(at)
        at += len(text) + len(glue)
    return Joined(glue.join(text for _, text in lines), starts, [number for number, _ in lines])
