"""Verdicts and what an operator's policy makes of them: the words that everything else here speaks.

A *verdict* is what was seen; an *outcome* is what the operator's policy makes of it. One function, :func:`outcome`,
turns the first into the second, and :func:`exit_status` reads only outcomes and verdicts, so that the exit status, the
last line, JUnit and the record cannot contradict each other.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class Verdict(str, Enum):
    """What a probe saw."""

    OK = "ok"
    DEGRADED = "degraded"
    BAD = "bad"
    UNABLE = "unable"
    NOT_APPLICABLE = "not-applicable"
    CHECKER_ERROR = "checker-error"

    __str__ = str.__str__

    @property
    def judged(self) -> bool:
        """Whether it allows a job: the probe looked and found no defect. A bad subject was judged, too, but not so."""
        return self in (Verdict.OK, Verdict.DEGRADED)


class Outcome(str, Enum):
    """What the operator's policy makes of a verdict: the three words that pytest knows."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"

    __str__ = str.__str__


class Exit(int, Enum):
    """Exit statuses of ``pytest --gpucheck`` and ``gpucheck run``; 10 is none of pytest's own."""

    OK = 0
    BAD = 1
    INTERRUPTED = 2
    CRASH = 3
    USAGE = 4
    NOTHING_JUDGED = 5
    UNDECIDED = 10


class Unable(Exception):
    """The probe should have looked and could not. ``lacking`` says what was missing, one item a line."""

    def __init__(self, *lacking: str, blocked_by: str | None = None) -> None:
        super().__init__("; ".join(lacking))
        self.lacking = lacking
        self.blocked_by = blocked_by


class NotApplicable(Exception):
    """A known fact rules the probe out. The fact is required: "could not look" is never a reason."""

    def __init__(self, fact: str, value: Any, source: str) -> None:
        super().__init__(f"{value} ({source})" if source else str(value))
        self.because = Because(fact, value, source)


class Bug(Exception):
    """Our own mistake, or a helper of ours that returned something unreadable: a checker-error."""


class Unexplained(Unable):
    """The machine failed in words that no rule of the probe knows: ``text`` is all of them.

    The knowledge base is asked (:meth:`gpucheck.report.Report.explain`); with ``by_fact`` only what a fact of this
    machine confirms is believed, and ``known`` are pitfalls that would say nothing new. What matches nothing stays
    "could not decide", with ``evidence``.
    """

    def __init__(
        self, what: str, text: str, *evidence: str, by_fact: bool = False, known: tuple[str, ...] = ()
    ) -> None:
        super().__init__(f"a cause: {what}, and nothing that is known here explains it", *evidence)
        self.what = what
        self.text = text
        self.evidence = evidence
        self.by_fact = by_fact
        self.known = known


class Failed(Bug):
    """A payload failed: the machine's fault where something known explains ``text``, and ours otherwise."""

    by_fact = False
    known: tuple[str, ...] = ()

    def __init__(self, what: str, text: str, *evidence: str) -> None:
        super().__init__(f"{what} (nothing that is known here explains it)")
        self.what = what
        self.text = text
        self.evidence = evidence


@dataclass(frozen=True, slots=True)
class Because:
    """The known fact that rules a probe out: its name, its value and where it was read."""

    fact: str
    value: Any
    source: str


@dataclass(frozen=True, slots=True)
class Subject:
    """What an answer is about: ``kind``: host, gpu, image, engine or volume; ``id`` is stable, ``label`` for people."""

    kind: str
    id: str
    label: str
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Finding:
    """A pitfall met in a run. ``params`` fill the placeholders of its commands; ``confidence``: high, medium or low."""

    pitfall: str
    weight: Verdict
    evidence: tuple[str, ...] = ()
    params: Mapping[str, str] = field(default_factory=dict)
    confidence: str = "high"
    accepted: str | None = None


def bad(pitfall: str, *evidence: str, confidence: str = "high", **params: object) -> Finding:
    """A defect that stops a job."""
    texts = {name: str(value) for name, value in params.items()}
    return Finding(pitfall, Verdict.BAD, tuple(map(str, evidence)), texts, confidence)


def degraded(pitfall: str, *evidence: str, confidence: str = "high", **params: object) -> Finding:
    """It works, but will hurt."""
    return replace(bad(pitfall, *evidence, confidence=confidence, **params), weight=Verdict.DEGRADED)


@dataclass(frozen=True, slots=True)
class NotRun:
    """A leg that did not run, and why."""

    leg: str
    why: str


@dataclass(frozen=True, slots=True)
class Result:
    """One probe's verdict on one subject: one row of the record."""

    probe: str
    title: str
    subject: Subject
    verdict: Verdict
    evidence: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    gist: str = ""
    measures: Mapping[str, float] = field(default_factory=dict)
    limits: Mapping[str, Any] = field(default_factory=dict)
    legs: tuple[str, ...] = ()
    not_run: tuple[NotRun, ...] = ()
    because: Because | None = None
    lacking: tuple[str, ...] = ()
    blocked_by: str | None = None
    started: str = ""
    duration_s: float = 0.0
    rehearsal: str | None = None


@dataclass(frozen=True, slots=True)
class Acceptance:
    """An operator's decision to live with a pitfall: why, and until when (``YYYY-MM-DD``; empty: no end)."""

    pitfall: str
    reason: str
    until: str = ""

    def holds(self, today: str) -> bool:
        """Whether it is in force on ``today`` (``YYYY-MM-DD``)."""
        return not self.until or today <= self.until


@dataclass(frozen=True, slots=True)
class Policy:
    """What the operator makes of verdicts. Ids are probe ids; ``accept`` is keyed by pitfall id."""

    strict: bool = False
    require: frozenset[str] = frozenset()
    allow_unable: frozenset[str] = frozenset()
    accept: Mapping[str, Acceptance] = field(default_factory=dict)


def verdict_of(findings: Iterable[Finding]) -> Verdict:
    """The verdict of a probe that looked: bad or degraded by its heaviest finding, else ok."""
    weights = {finding.weight for finding in findings}
    for verdict in (Verdict.BAD, Verdict.DEGRADED):
        if verdict in weights:
            return verdict
    return Verdict.OK


def accept(result: Result, policy: Policy, today: str) -> Result:
    """The same result with the reason written on each finding that the operator accepts today."""
    findings = tuple(
        replace(f, accepted=a.reason) if (a := policy.accept.get(f.pitfall)) and a.holds(today) else f
        for f in result.findings
    )
    return replace(result, findings=findings)


def outcome(result: Result, policy: Policy) -> Outcome:
    """What ``policy`` makes of ``result``; acceptances must have been written on it by :func:`accept`."""
    verdict = result.verdict
    if result.probe in policy.require and not verdict.judged:
        return Outcome.FAILED
    if verdict is Verdict.BAD or (verdict is Verdict.DEGRADED and policy.strict):
        counts = [f for f in result.findings if f.weight is Verdict.BAD or policy.strict]
        accepted = bool(counts) and all(f.accepted for f in counts)
        return _accepted(verdict) if accepted else Outcome.FAILED
    if verdict.judged:
        return Outcome.PASSED
    if verdict is Verdict.NOT_APPLICABLE or (verdict is Verdict.UNABLE and result.probe in policy.allow_unable):
        return Outcome.SKIPPED
    return Outcome.FAILED


def _accepted(verdict: Verdict) -> Outcome:
    # An accepted defect is not a pass: the machine was not shown to work.
    return Outcome.SKIPPED if verdict is Verdict.BAD else Outcome.PASSED


def undecided(result: Result, policy: Policy) -> bool:
    """Whether this failure means "could not look", not "is bad"."""
    return (
        outcome(result, policy) is Outcome.FAILED
        and result.verdict in (Verdict.UNABLE, Verdict.CHECKER_ERROR)
        and result.probe not in policy.require
    )


def exit_status(results: Iterable[Result], policy: Policy, *, user_passed: int = 0, user_failed: int = 0) -> Exit:
    """The exit status of a run that reached its end; usage, crash and interruption are decided before."""
    results = list(results)
    failed = [r for r in results if outcome(r, policy) is Outcome.FAILED]
    if user_failed or any(not undecided(r, policy) for r in failed):
        return Exit.BAD
    if failed:
        return Exit.UNDECIDED
    if not user_passed and not any(r.verdict.judged for r in results):
        return Exit.NOTHING_JUDGED
    return Exit.OK
