"""The patterns of a knowledge base, and the literals that lead to them."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING

from gpucheck.diagnose.foreign import also
from gpucheck.diagnose.literals import required
from gpucheck.diagnose.plain import PlainSearch
from gpucheck.pitfalls import Pitfall, TextTest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ahocorasick_rs import BytesAhoCorasick


class Role(str, Enum):
    """What a pattern's match says about its entry."""

    SYMPTOM = "symptom"
    GENERAL = "general"
    HINT = "hint"
    CONFIRMS = "confirms"
    RULES_OUT = "rules-out"

    __str__ = str.__str__

    @property
    def names(self) -> bool:
        """Whether a match makes its entry a candidate; else it only speaks for or against one."""
        return self in {Role.SYMPTOM, Role.GENERAL, Role.HINT}


@dataclass(slots=True, eq=False)
class Pattern:
    """One pattern of one entry, compiled when a line may match. ``letters``: fixed characters of any match."""

    pitfall: str
    role: Role
    text: str
    letters: int
    weight: float = 1.0
    healthy: tuple[str, ...] = ()
    _compiled: re.Pattern[str] | None = field(default=None, repr=False)

    def search(self, text: str, start: int = 0, end: int | None = None) -> re.Match[str] | None:
        """The first match between ``start`` and ``end``."""
        if self._compiled is None:
            self._compiled = re.compile(self.text)
        return self._compiled.search(text, start, len(text) if end is None else end)

    @property
    def anchored(self) -> bool:
        """Whether it asks for the beginning or the end of a line, and so for a line without prefixes."""
        return "^" in self.text or "$" in self.text

    def excused(self, line: str) -> bool:
        """Whether the entry knows this line as healthy."""
        return any(re.search(pattern, line) for pattern in self.healthy)


class Lexicon:
    """Every pattern by the literals that its matches contain, in lower case.

    A pattern that requires no literal can never be found; a test keeps such patterns out of the knowledge base.
    """

    def __init__(self, pitfalls: Iterable[Pitfall]) -> None:
        self.pitfalls = {pitfall.id: pitfall for pitfall in pitfalls}
        self.by_literal: dict[bytes, list[Pattern]] = defaultdict(list)
        for pitfall in self.pitfalls.values():
            for pattern in _patterns(pitfall):
                for literal in _literals(pattern.text):
                    self.by_literal[literal.encode().lower()].append(pattern)

    @cached_property
    def literals(self) -> list[bytes]:
        """Every literal once; its place is its number in :attr:`automaton`."""
        return list(self.by_literal)

    @cached_property
    def automaton(self) -> BytesAhoCorasick | PlainSearch:
        """Finds every literal in a lower-cased text in one pass."""
        return automaton(self.literals, large=False)


def _literals(pattern: str) -> set[str]:
    """The texts of which one is in every line that the pattern fits, whatever the language of the system."""
    texts = required(pattern).texts
    return {*texts, *(words for text in texts for words in also(text.lower()))}


def automaton(literals: list[bytes], *, large: bool) -> BytesAhoCorasick | PlainSearch:
    """A multi-literal matcher; for large texts the deterministic kind, faster to run and ten times slower to build."""
    try:
        from ahocorasick_rs import BytesAhoCorasick, Implementation
    except ModuleNotFoundError:
        return PlainSearch(literals)
    return BytesAhoCorasick(literals, implementation=Implementation.DFA if large else Implementation.ContiguousNFA)


def _patterns(pitfall: Pitfall) -> list[Pattern]:
    texts = [(Role.SYMPTOM, text, 1.0) for text in pitfall.symptoms]
    texts += [(Role.GENERAL, text, 1.0) for text in pitfall.general]
    texts += [(Role.HINT, text, 1.0) for text in pitfall.hints]
    texts += [(Role.CONFIRMS, test.pattern, test.weight) for test in pitfall.confirm if isinstance(test, TextTest)]
    texts += [(Role.RULES_OUT, test.pattern, test.weight) for test in pitfall.rule_out if isinstance(test, TextTest)]
    return [
        Pattern(pitfall.id, role, text, required(text).letters, weight, pitfall.healthy) for role, text, weight in texts
    ]
