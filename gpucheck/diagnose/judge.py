"""What was sighted, and what is known of the machine: ranked pitfalls, each with what speaks for it and against it.

Text alone never decides between entries that a line fits equally: all are listed, none above medium confidence, until a
fact (or other text) confirms one or rules the others out. A fact of this host, where the job may not have run, moves an
entry up or down and never out. What names only a class of failures stands beneath whatever names one.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpucheck.diagnose.case import RANK, Case, Confidence, Tier, fixed_letters
from gpucheck.diagnose.conditions import Origin, Reason, Truth, judge_fact
from gpucheck.diagnose.gpu_memory import stands
from gpucheck.diagnose.lexicon import Role
from gpucheck.pitfalls import ANYTHING, FactTest, TextTest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from gpucheck.diagnose.scan import Place, Sighting
    from gpucheck.facts.fact import Facts
    from gpucheck.pitfalls import Pitfall

MOST_ANSWERS = 3
# Fixed characters of a pattern: below the first it could stand anywhere, from the second on it names one message.
FAIR_LETTERS = 9
STRONG_LETTERS = 14
# Another entry's match on the same line is the better one when it fixes this much more of it.
BETTER_LETTERS = 8
CROWDED_LINE = 100
_SURE = frozenset({Origin.JOB})
_VARIABLE = re.compile(r"\\d|\[[^\]]*-[^\]]*\]")


@dataclass(frozen=True, slots=True)
class Answer:
    """One pitfall that the text and the facts speak for.

    ``rivals`` fit the same message as well, ``follows`` is the other answer of which this one is a consequence.
    """

    pitfall: Pitfall
    confidence: Confidence
    places: tuple[Place, ...]
    reasons: tuple[Reason, ...] = ()
    rivals: tuple[Pitfall, ...] = ()
    follows: str = ""


@dataclass(frozen=True, slots=True)
class RuledOut:
    """A pitfall that the text fits, and the condition that rules it out."""

    pitfall: Pitfall
    reason: Reason


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Answers, best first, at most three; and what the text fits but a fact excludes."""

    answers: tuple[Answer, ...]
    ruled_out: tuple[RuledOut, ...] = ()

    @property
    def found(self) -> tuple[Answer, ...]:
        """The answers above the floor."""
        return tuple(answer for answer in self.answers if answer.confidence is not Confidence.LOW)


def wanted_facts(sightings: Iterable[Sighting], pitfalls: Mapping[str, Pitfall]) -> tuple[str, ...]:
    """Names of the facts that can decide between the pitfalls that were sighted."""
    ids = dict.fromkeys(s.pattern.pitfall for s in sightings if s.pattern.role.names)
    return tuple(dict.fromkeys(name for pitfall_id in ids for name in pitfalls[pitfall_id].facts()))


def judge(
    sightings: Sequence[Sighting],
    pitfalls: Mapping[str, Pitfall],
    facts: Facts | None,
    origin: Origin = Origin.JOB,
) -> Diagnosis:
    """Ranks what was sighted; ``origin`` says whose the facts are. Without facts (None) no fact decides."""
    cases = _cases(sightings, pitfalls)
    for case in cases.values():
        _weigh(case, sightings, facts, origin)
    alive = {name: case for name, case in cases.items() if case.excluded is None}
    _compare(alive)
    for case in alive.values():
        case.confidence = _confidence(case, alive)
    for case in sorted(alive.values(), key=Case.tier):
        _place_after_its_cause(case, alive)
    ranked = sorted(alive.values(), key=Case.order, reverse=True)
    answers = tuple(_answer(case, pitfalls) for case in _listed(ranked))
    return Diagnosis(answers, tuple(RuledOut(c.pitfall, c.excluded) for c in cases.values() if c.excluded))


def _cases(sightings: Iterable[Sighting], pitfalls: Mapping[str, Pitfall]) -> dict[str, Case]:
    by_id: dict[str, list[Sighting]] = defaultdict(list)
    for sighting in sightings:
        if sighting.pattern.role.names:
            by_id[sighting.pattern.pitfall].append(sighting)
    return {name: Case(pitfalls[name], found) for name, found in by_id.items()}


def _weigh(case: Case, sightings: Sequence[Sighting], facts: Facts | None, origin: Origin) -> None:
    """Judges the conditions of one case."""

    def judged(test: FactTest | TextTest, role: Role) -> Reason:
        if isinstance(test, FactTest):
            return judge_fact(test, facts, origin)
        return _told(test, case, sightings, role)

    case.reasons = [judged(test, Role.CONFIRMS) for test in case.pitfall.confirm]
    against = [reason for test in case.pitfall.rule_out if (reason := judged(test, Role.RULES_OUT)).truth is Truth.YES]
    case.excluded = next((reason for reason in against if reason.origin is Origin.JOB), None)
    case.reasons += [replace(reason, truth=Truth.NO) for reason in against]


def _told(test: TextTest, case: Case, sightings: Sequence[Sighting], role: Role) -> Reason:
    # A fixed text on the symptom's own line belongs to the message that several entries may share: it decides nothing.
    # A number in it may.
    shared = role is Role.CONFIRMS and not _VARIABLE.search(test.pattern)
    own = {(s.place.source, s.place.line) for s in case.sightings} if shared else set()
    doubts: list[Reason] = []
    for s in sightings:
        matches = s.pattern.pitfall == case.pitfall.id and s.pattern.role is role and s.pattern.text == test.pattern
        if not matches or (s.place.source, s.place.line) in own:
            continue
        reason = _checked(test, s.place)
        if reason.truth is Truth.YES:
            return reason
        doubts.append(reason)
    return next(iter(doubts), Reason(Truth.UNKNOWN, "the log", f"{test.pattern} is not in it", test.weight))


def _checked(test: TextTest, place: Place) -> Reason:
    """What was found in a line, if its numbers bear it out."""
    subject, found = f"line {place.line}", place.text[place.start : place.end]
    if test.check is None:
        return Reason(Truth.YES, subject, found, test.weight)
    truth = stands(test.check, place.text)
    told = {Truth.YES: found, Truth.NO: f"{found}, but the numbers speak against it"}
    return Reason(truth, subject, told.get(truth, f"{found}, and the numbers do not decide"), test.weight)


def _compare(cases: Mapping[str, Case]) -> None:
    """Finds, line by line, which entries explain it best, and which are rivals there."""
    rivals: dict[str, dict[str, None]] = defaultdict(dict)
    for group in _lines(cases):
        for mine in group:
            for other in group:
                _meet(mine, other, cases, rivals)
    for name, case in cases.items():
        case.rivals = list(rivals[name])


def _lines(cases: Mapping[str, Case]) -> Iterator[list[Sighting]]:
    """What was sighted on the same line."""
    by_line: dict[tuple[str, int], list[Sighting]] = defaultdict(list)
    for case in cases.values():
        for sighting in case.sightings:
            by_line[sighting.place.source, sighting.place.line].append(sighting)
    for group in by_line.values():
        if len(group) <= CROWDED_LINE:
            yield group
            continue
        # An endless line was read window by window: what stands in another window stands elsewhere.
        windows: dict[str, list[Sighting]] = defaultdict(list)
        for sighting in group:
            windows[sighting.place.text].append(sighting)
        yield from windows.values()


def _meet(mine: Sighting, other: Sighting, cases: Mapping[str, Case], rivals: dict[str, dict[str, None]]) -> None:
    left, right = mine.pattern.pitfall, other.pattern.pitfall
    shared = right in cases[left].pitfall.shares or left in cases[right].pitfall.shares
    if left == right or not (shared or _overlap(mine.place, other.place)):
        return
    if not shared and _tier(mine, cases) is not _tier(other, cases):
        # Which of the two is the cause is told by the tiers, not by how much of the line each fixes.
        return
    counts = other.pattern.role is not Role.HINT or cases[right].decided()
    if not shared and counts and fixed_letters(other) >= fixed_letters(mine) + BETTER_LETTERS:
        cases[left].lost.add(mine.place)
    elif shared or fixed_letters(mine) < fixed_letters(other) + BETTER_LETTERS:
        rivals[left][right] = None


def _tier(sighting: Sighting, cases: Mapping[str, Case]) -> Tier:
    if ANYTHING in cases[sighting.pattern.pitfall].pitfall.follows:
        return Tier.ECHO
    return Tier.CLASS if sighting.pattern.role is Role.GENERAL else Tier.FAILURE


def _overlap(left: Place, right: Place) -> bool:
    # Texts differ where only one of them had to be unescaped; then offsets cannot be compared.
    return left.text != right.text or (left.start < right.end and right.start < left.end)


def _confidence(case: Case, alive: Mapping[str, Case]) -> Confidence:
    letters = case.letters()
    if letters < FAIR_LETTERS:
        return Confidence.MEDIUM if case.decided() and case.usable() else Confidence.LOW
    rivals = [alive[name] for name in case.rivals]
    if case.doubted():
        return Confidence.LOW if any(_better(rival, case) for rival in rivals) else Confidence.MEDIUM
    if case.decided() and rivals:
        sure = case.decided(by=_SURE) and not any(rival.decided() for rival in rivals)
        return Confidence.HIGH if sure else Confidence.MEDIUM
    if any(rival.decided() for rival in rivals):
        return Confidence.LOW
    clear = case.decided(by=_SURE) or letters >= STRONG_LETTERS
    return Confidence.HIGH if clear and not rivals else Confidence.MEDIUM


def _better(rival: Case, doubted: Case) -> bool:
    """Whether a rival stands above one that all facts speak against: facts of this host alone do not lift it there."""
    sure = any(reason.truth is Truth.NO and reason.origin in _SURE for reason in doubted.reasons)
    return not rival.doubted() if sure else rival.decided()


def _place_after_its_cause(case: Case, alive: Mapping[str, Case]) -> None:
    """Marks a case as the consequence of another one that is at least likely, unless a condition confirms it itself."""
    causes = [other for other in alive.values() if _causes(other, case)]
    if causes and (case.tier() is not Tier.FAILURE or not case.decided()):
        case.follows = max(causes, key=Case.order).pitfall.id
        case.confidence = min((c.confidence for c in (case, *causes)), key=RANK.__getitem__)


def _causes(cause: Case, case: Case) -> bool:
    """Whether ``case`` follows from ``cause``: it names it, or it says less than it of what went wrong."""
    if RANK[cause.confidence] == 0 or case.pitfall.id in cause.pitfall.follows:
        return False
    apart = cause.pitfall.id not in case.rivals or cause.seen_without(case)
    says_less = case.tier() > cause.tier() and apart
    named = cause.pitfall.id in case.pitfall.follows and cause.tier() <= case.tier()
    return named or says_less


def _listed(ranked: Sequence[Case]) -> list[Case]:
    """The best three; hints only where nothing is sure, and as rivals of an answer."""
    sure = [case for case in ranked if case.confidence is not Confidence.LOW]
    named = {rival for case in sure for rival in case.rivals}
    rest = [c for c in ranked if c.confidence is Confidence.LOW and (not sure or c.pitfall.id in named)]
    return [*sure, *rest][:MOST_ANSWERS]


def _answer(case: Case, pitfalls: Mapping[str, Pitfall]) -> Answer:
    found = case.usable() or case.sightings
    places = dict.fromkeys(s.place for s in sorted(found, key=lambda s: (s.place.source, s.place.line)))
    by_line = {(place.source, place.line): place for place in places}
    rivals = tuple(pitfalls[name] for name in case.rivals)
    return Answer(case.pitfall, case.confidence, tuple(by_line.values()), tuple(case.reasons), rivals, case.follows)
