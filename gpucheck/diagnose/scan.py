"""Find the places of a log that hold a symptom: one pass for many literals, careful patterns on candidates alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpucheck.diagnose.clean import LINE_LIMIT_BYTES, body, chunks, plain
from gpucheck.diagnose.foreign import in_english
from gpucheck.diagnose.lexicon import automaton
from gpucheck.diagnose.tone import AFTER_BYTES, Tone, tone
from gpucheck.diagnose.wrapped import Joined, Tail

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpucheck.diagnose.clean import Bytes
    from gpucheck.diagnose.lexicon import Lexicon, Pattern

KEPT_PLACES = 12
ENOUGH_FAILURES = 60
LARGE_BYTES = 8 << 20
# A literal that has been met this often is, from then on, looked at only near both ends of each piece.
BUSY_LITERAL = 1_000
BUSY_EDGE = 2
WRAPPED_LINES = 3
_REACH_BYTES = LINE_LIMIT_BYTES // 2


@dataclass(frozen=True, slots=True)
class Place:
    """Where a pattern matched: log, line (from 1), the line's text, the match's start and end in that text.

    ``written`` is the line as it stands in the log where ``text`` is that line put into English.
    """

    source: str
    line: int
    text: str
    start: int
    end: int
    written: str = ""

    @property
    def shown(self) -> str:
        """The line for people: as it was written, whatever its language."""
        return self.written or self.text


@dataclass(frozen=True, slots=True)
class Sighting:
    """A pattern seen at a place, and how that line speaks of it."""

    pattern: Pattern
    place: Place
    tone: Tone


@dataclass(slots=True)
class _Piece:
    """A piece of a log: its first ``repeated`` bytes are of the piece before, ``line`` is its first line's number."""

    data: bytes
    repeated: int
    following: bytes
    source: str
    line: int
    _counted: int = 0

    def line_at(self, start: int, end: int) -> tuple[int, int]:
        """Start and end of the line around ``start``:``end``, no further than some kilobytes away."""
        low, high = max(0, start - _REACH_BYTES), end + _REACH_BYTES
        begin = max(self.data.rfind(b"\n", low, start), self.data.rfind(b"\r", low, start), low - 1) + 1
        ends = [at for mark in (b"\n", b"\r") if (at := self.data.find(mark, end, high)) >= 0]
        return begin, min(ends, default=min(high, len(self.data)))

    def number(self, offset: int) -> int:
        """The number of the line at ``offset``; offsets must not decrease from call to call."""
        self.line += self.data.count(b"\n", self._counted, offset)
        self._counted = max(offset, self._counted)
        return self.line

    def after(self, end: int) -> str:
        """Some lines after the line that ends at ``end``."""
        near = self.data[end : end + AFTER_BYTES]
        return (near + self.following[: AFTER_BYTES - len(near)]).decode("utf-8", errors="replace")


class Scan:
    """Reads logs and keeps what it saw; memory does not grow with their size."""

    def __init__(self, lexicon: Lexicon) -> None:
        self.lexicon = lexicon
        self.sightings: list[Sighting] = []
        self.bytes_read = 0
        self._failures: Counter[Pattern] = Counter()
        self._kept: Counter[tuple[Pattern, Tone]] = Counter()
        self._busy: list[bytes] = []
        self._literals = lexicon.literals
        self._automaton = lexicon.automaton
        self._met: Counter[int] = Counter()
        self._fast = False

    def read(self, stream: Bytes, source: str, progress: Callable[[int], None] | None = None) -> None:
        """Reads one log to its end. ``progress`` is told the number of bytes read so far, of all logs."""
        line, tail = 1, Tail()
        for (data, repeated), (following, doubled) in _with_next(chunks(stream)):
            self._look(_Piece(data, repeated, following[doubled:], source, line))
            tail.add(line, data)
            line += data.count(b"\n")
            self.bytes_read += len(data)
            if progress:
                progress(self.bytes_read)
            self._thin_out()
        for joined in tail.joined():
            self._look_wrapped(joined, source)

    def _look(self, piece: _Piece) -> None:
        for (start, end), wanted in self._candidates(piece):
            line = piece.data[start:end].decode("utf-8", errors="replace")
            for pattern in wanted:
                if not self._enough(pattern) and (found := _find(pattern, line)):
                    how = tone(*found, piece.after(end)) if pattern.role.names else Tone.FAILURE
                    written = "" if found[0] in (line, plain(line)) else line
                    self._keep(pattern, Place(piece.source, piece.number(start), *found, written), how)

    def _enough(self, pattern: Pattern) -> bool:
        """Whether the pattern was seen so often that seeing it again tells nothing new."""
        return self._failures[pattern] >= (ENOUGH_FAILURES if pattern.role.names else KEPT_PLACES)

    def _candidates(self, piece: _Piece) -> list[tuple[tuple[int, int], dict[Pattern, None]]]:
        """Lines of ``piece`` with a literal in them, each with the patterns that its literals lead to."""
        lines: dict[tuple[int, int], dict[Pattern, None]] = {}
        at = (-1, -1)
        for literal, start, end in self._hits(piece):
            if not at[0] <= start <= end <= at[1]:
                at = piece.line_at(start, end)
            lines.setdefault(at, {}).update(dict.fromkeys(self.lexicon.by_literal[literal]))
        return sorted(lines.items(), key=lambda item: item[0])

    def _hits(self, piece: _Piece) -> Iterator[tuple[bytes, int, int]]:
        lowered = piece.data.lower()
        found: list[tuple[int, int, int]] = self._automaton.find_matches_as_indexes(lowered, overlapping=True)
        if len(found) > BUSY_EDGE:
            self._met.update(literal for literal, _, _ in found)
        for literal, start, end in found:
            if end > piece.repeated:
                yield self._literals[literal], start, end
        for text in self._busy:
            for start in _outermost(lowered, text, piece.repeated):
                yield text, start, start + len(text)

    def _keep(self, pattern: Pattern, place: Place, how: Tone) -> None:
        if pattern.excused(place.text):
            return
        self._failures[pattern] += how is Tone.FAILURE
        self._kept[pattern, how] += 1
        if self._kept[pattern, how] <= KEPT_PLACES:
            self.sightings.append(Sighting(pattern, place, how))

    def _thin_out(self) -> None:
        """Takes what is met all the time out of the automaton: a log may repeat one failure, or one word, for hours."""
        large = self.bytes_read > LARGE_BYTES
        busy = {self._literals[literal] for literal, n in self._met.items() if n > BUSY_LITERAL}
        if busy:
            full = {pattern for pattern in self._failures if self._enough(pattern)}
            self._busy += [text for text in busy if not full.issuperset(self.lexicon.by_literal[text])]
        if busy or large > self._fast:
            self._literals = [text for text in self._literals if text not in busy]
            self._automaton = automaton(self._literals, large=large)
            self._fast = large
            self._met.clear()

    def _look_wrapped(self, joined: Joined, source: str) -> None:
        seen = {(sighting.pattern, sighting.place.line) for sighting in self.sightings}
        for literal, start, end in self._automaton.find_matches_as_indexes(joined.haystack(), overlapping=True):
            window = joined.around(start, end, WRAPPED_LINES)
            # Where only a wildcard reaches over a break, two unrelated lines may have met: a hint at most.
            torn = joined.torn(start, end)
            for pattern in self.lexicon.by_literal[self._literals[literal]]:
                found = pattern.search(joined.text, *window)
                if not found or not joined.torn(*found.span()):
                    continue
                place = _wrapped_place(joined, source, *found.span())
                if (pattern, place.line) not in seen:
                    seen.add((pattern, place.line))
                    how = tone(place.text, place.start, place.end, "") if torn else Tone.HARMLESS
                    self._keep(pattern, place, how)


def _with_next(pieces: Iterator[tuple[bytes, int]]) -> Iterator[tuple[tuple[bytes, int], tuple[bytes, int]]]:
    """Each piece with the one after it: what a line speaks of may be told only there."""
    here = next(pieces, None)
    while here is not None:
        after = next(pieces, None)
        yield here, after or (b"", 0)
        here = after


def _wrapped_place(joined: Joined, source: str, start: int, end: int) -> Place:
    low, high = joined.around(start, end, 0)
    return Place(source, joined.numbers[joined.index(start)], joined.text[low:high].rstrip(), start - low, end - low)


def _find(pattern: Pattern, line: str) -> tuple[str, int, int] | None:
    """The text of the line in which the pattern matches (as it is, bare, unescaped, in English), and where."""
    unescaped = plain(line)
    for text in dict.fromkeys((line, unescaped, in_english(unescaped))):
        if found := pattern.search(text):
            return text, *found.span()
        if pattern.anchored:
            bare, _ = body(text)
            shift = text.find(bare)
            if shift and (found := pattern.search(bare)):
                return text, found.start() + shift, found.end() + shift
    return None


def _outermost(data: bytes, text: bytes, start: int) -> list[int]:
    """Where ``text`` stands for the first and the last few times in ``data``."""
    first: list[int] = []
    last: list[int] = []
    at = start - 1
    while len(first) < BUSY_EDGE and (at := data.find(text, at + 1)) >= 0:
        first.append(at)
    low, at = (first[-1] + 1 if first else len(data)), len(data)
    while len(last) < BUSY_EDGE and (at := data.rfind(text, low, at + len(text) - 1)) >= 0:
        last.append(at)
    return [*first, *reversed(last)]
