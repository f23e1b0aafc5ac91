"""Literals found one after the other: what serves where ``ahocorasick_rs`` is not installed, as under ``ci/gpu``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class PlainSearch:
    """Finds literals as ``ahocorasick_rs.BytesAhoCorasick`` does; its time grows with their number."""

    def __init__(self, literals: list[bytes]) -> None:
        self.literals = literals

    def find_matches_as_indexes(self, haystack: bytes, *, overlapping: bool) -> list[tuple[int, int, int]]:
        """Number, start and end of every match, in the order of their ends. They may overlap, and must be let."""
        if not overlapping:
            raise NotImplementedError("matches that may not overlap")
        return sorted(self._matches(bytes(haystack)), key=lambda match: match[2])

    def _matches(self, haystack: bytes) -> Iterator[tuple[int, int, int]]:
        for number, literal in enumerate(self.literals):
            start = haystack.find(literal)
            while start >= 0:
                yield number, start, start + len(literal)
                start = haystack.find(literal, start + 1)
