"""One pitfall under judgement: what was sighted of it, what its conditions say, how sure it is and why."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import TYPE_CHECKING

from gpucheck.diagnose.conditions import Origin, Reason, Truth
from gpucheck.diagnose.lexicon import Role
from gpucheck.diagnose.tone import Tone
from gpucheck.pitfalls import ANYTHING

if TYPE_CHECKING:
    from gpucheck.diagnose.scan import Place, Sighting
    from gpucheck.pitfalls import Pitfall


class Confidence(str, Enum):
    """How sure an answer is; low is below the floor: a hint, not an answer."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"

    __str__ = str.__str__


RANK = {Confidence.HIGH: 2, Confidence.MEDIUM: 1, Confidence.LOW: 0}


class Tier(IntEnum):
    """What a case's text names; a lower tier is a cause of a higher one wherever both are in a log."""

    FAILURE = 0
    CLASS = 1
    ECHO = 2


@dataclass(slots=True)
class Case:
    """One pitfall under judgement."""

    pitfall: Pitfall
    sightings: list[Sighting]
    reasons: list[Reason] = field(default_factory=list)
    excluded: Reason | None = None
    rivals: list[str] = field(default_factory=list)
    lost: set[Place] = field(default_factory=set)
    follows: str = ""
    confidence: Confidence = Confidence.LOW

    def usable(self) -> list[Sighting]:
        """Sightings that speak of a failure, on lines that no other entry explains better."""
        return [s for s in self.sightings if s.tone is Tone.FAILURE and s.place not in self.lost]

    def letters(self) -> int:
        """Fixed characters of the best pattern seen; hints count once a condition confirms the entry."""
        return max((fixed_letters(s) for s in self.naming()), default=0)

    def naming(self) -> list[Sighting]:
        """Usable sightings that count: symptoms, general or not, and hints of an entry that a condition confirms."""
        counts = {Role.SYMPTOM, Role.GENERAL} | ({Role.HINT} if self.decided() else set())
        return [s for s in self.usable() if s.pattern.role in counts]

    def decided(self, *, by: frozenset[Origin] = frozenset(Origin)) -> bool:
        """Whether conditions confirm it; those of little weight only together."""
        return sum(r.weight for r in self.reasons if r.truth is Truth.YES and r.origin in by) >= 1

    def tier(self) -> Tier:
        """How much it says: a failure, a class of failures, or that something else went wrong."""
        if ANYTHING in self.pitfall.follows:
            return Tier.ECHO
        specific = any(s.pattern.role is not Role.GENERAL for s in self.naming())
        return Tier.FAILURE if specific else Tier.CLASS

    def doubted(self) -> bool:
        """Whether conditions were looked at and every one of them speaks against it."""
        truths = {reason.truth for reason in self.reasons} - {Truth.UNKNOWN}
        return truths == {Truth.NO}

    def seen_without(self, other: Case) -> bool:
        """Whether a line names this one that does not fit the other as well."""
        theirs = {(s.place.source, s.place.line) for s in other.sightings}
        return any((s.place.source, s.place.line) not in theirs for s in self.naming())

    def first(self) -> tuple[str, int]:
        """Where it was first seen."""
        places = [s.place for s in self.usable()] or [s.place for s in self.sightings]
        return min((place.source, place.line) for place in places)

    def order(self) -> tuple[float, ...]:
        """Sorts cases: the greater the better."""
        weights = sum(_pull(reason) for reason in self.reasons)
        # However many facts of this host speak against it: they may all be of another machine.
        here = any(r.truth is Truth.NO and r.origin is Origin.HOST for r in self.reasons)
        letters = min(self.letters(), 60) / 60
        distinct = len({s.pattern for s in self.usable()}) / 10
        behind = max(self.tier(), 1) if self.follows else 0
        return (RANK[self.confidence], -behind, weights - 0.1 * here + letters + distinct, -self.first()[1])


def _pull(reason: Reason) -> float:
    """What a condition adds to the order among equally sure cases."""
    if reason.truth is Truth.YES:
        return reason.weight
    return -0.4 if reason.truth is Truth.NO and reason.origin is Origin.JOB else 0.0


def fixed_letters(sighting: Sighting) -> int:
    """How many characters of the line the pattern fixes."""
    return min(sighting.pattern.letters, sighting.place.end - sighting.place.start)
