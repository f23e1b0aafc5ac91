"""The result that a probe builds while it looks. A probe gets it as the fixture ``report``.

What a probe does not say here it has not seen: returning without evidence, or without having tried each of its
essential legs, is our bug and not an ok.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from gpucheck.diagnose import attribution
from gpucheck.verdict import (
    Because,
    Bug,
    Failed,
    Finding,
    NotApplicable,
    NotRun,
    Result,
    Subject,
    Unable,
    Unexplained,
    Verdict,
    bad,
    degraded,
    verdict_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from gpucheck.facts import Facts


@dataclass
class Report:
    """What one probe has seen of one subject so far. ``essential`` are the legs that it must have tried.

    ``facts`` gives this machine's facts by name when a failure's words are to be explained; ``params`` are what the
    operator named, and fill the commands of each finding.
    """

    probe: str
    title: str
    subject: Subject
    essential: tuple[str, ...] = ()
    deep: bool = False
    tell: Callable[[str], None] = lambda _: None
    facts: Callable[[tuple[str, ...]], Facts] | None = None
    params: Mapping[str, str] = field(default_factory=dict)
    evidence: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    measures: dict[str, float] = field(default_factory=dict)
    limits: dict[str, Any] = field(default_factory=dict)
    ran: list[str] = field(default_factory=list)
    missed: list[NotRun] = field(default_factory=list)
    lacking: list[str] = field(default_factory=list)
    ruled_out: Because | None = None
    blocked_by: str | None = None
    gist: str = ""

    def saw(self, text: str) -> None:
        """One line of evidence: what was looked at and what it showed."""
        self.evidence.append(str(text))

    def sum_up(self, text: str) -> None:
        """The one line of evidence that people read beneath an ok."""
        self.gist = text

    def measure(self, name: str, value: float) -> None:
        """A number that was measured; the name carries the unit (``epoch_s``)."""
        if not math.isfinite(value):
            raise Bug(f"{name} = {value}: a measure is a finite number")
        self.measures[name] = round(value, 6)

    def limit(self, name: str, value: Any, source: str) -> None:
        """What a measure was held against, and who says so: a specification, a vendor, the profile."""
        self.limits[name] = {"value": value, "from": source}

    def bad(self, pitfall: str, *evidence: str, confidence: str = "high", **params: object) -> None:
        """A defect, by its pitfall's id. ``params`` fill the placeholders in the pitfall's commands."""
        self.take(bad(pitfall, *evidence, confidence=confidence, **params))

    def degraded(self, pitfall: str, *evidence: str, confidence: str = "high", **params: object) -> None:
        """It works, but will hurt."""
        self.take(degraded(pitfall, *evidence, confidence=confidence, **params))

    def take(self, finding: Finding | None, *, label: str = "", weight: Verdict | None = None) -> None:
        """Put a finding in, if there is one; with another ``weight`` where that is given.

        ``label`` names the way of asking in which it was found, in front of each line. What an earlier one has found
        is more evidence then, not a second defect.
        """
        if finding is None:
            return
        evidence = tuple(f"{label}: {line}" for line in finding.evidence) if label else finding.evidence
        finding = replace(finding, evidence=evidence, weight=weight or finding.weight)
        if label:
            self.take_once(finding)
        else:
            self.findings.append(finding)

    def take_once(self, finding: Finding | None) -> None:
        """Put a finding in; where that pitfall is here already, as heavy as this, its lines are evidence alone."""
        if finding is None:
            return
        weights = {earlier.weight for earlier in self.findings if earlier.pitfall == finding.pitfall}
        if weights & {finding.weight, Verdict.BAD}:
            self.evidence += finding.evidence
        else:
            self.findings.append(finding)

    def explain(self, told: Unexplained | Failed) -> bool:
        """Whether the knowledge base knows what the words of a failure mean: a defect then, as sure as it is.

        What an earlier leg has already found is more evidence, not a second defect.
        """
        finding = attribution.cause_of(told, self.facts)
        self.take_once(finding)
        return finding is not None

    def not_run(self, leg: str, why: str) -> None:
        """A leg that a *known* fact rules out here, and which fact."""
        self.missed.append(NotRun(leg, why))

    @contextmanager
    def leg(self, name: str) -> Iterator[None]:
        """One way of asking. ``Unable`` or ``NotApplicable`` raised inside end this leg alone."""
        try:
            yield
        except NotApplicable as ruled_out:
            self.missed.append(NotRun(name, str(ruled_out.because.value)))
            self.ruled_out = self.ruled_out or ruled_out.because
            return
        except (Unable, Failed) as lack:
            if not isinstance(lack, (Unexplained, Failed)) or not self.explain(lack):
                self._lack(name, lack)
                return
        self.ran.append(name)
        self.tell(name)

    def _lack(self, name: str, lack: Unable | Failed) -> None:
        if isinstance(lack, Failed):
            raise lack
        self.missed.append(NotRun(name, str(lack)))
        self.blocked_by = self.blocked_by or lack.blocked_by
        if name in self.essential:
            self.lacking += [f"{name}: {item}" for item in lack.lacking]

    def result(self, error: BaseException | None = None) -> Result:
        """The result, judged: from what was seen, or from the exception that ended the probe."""
        if isinstance(error, (Unexplained, Failed)) and self.explain(error):
            error = None
        verdict = self._judge(error)
        lacking = list(self.lacking)
        because = None
        if isinstance(error, Unable):
            lacking += error.lacking
        elif verdict is Verdict.CHECKER_ERROR:
            lacking.append(_describe(error) if error else self._slip() or "unknown")
        if verdict is Verdict.NOT_APPLICABLE:
            because = error.because if isinstance(error, NotApplicable) else self.ruled_out
        return Result(
            probe=self.probe,
            title=self.title,
            subject=self.subject,
            verdict=verdict,
            evidence=tuple(self.evidence),
            findings=tuple(replace(found, params={**self.params, **found.params}) for found in self.findings),
            gist=self.gist,
            measures=self.measures,
            limits=self.limits,
            legs=tuple(self.ran),
            not_run=tuple(self.missed),
            because=because,
            lacking=tuple(dict.fromkeys(lacking)) if verdict is not Verdict.OK else (),
            blocked_by=self.blocked_by or (error.blocked_by if isinstance(error, Unable) else None),
        )

    def _judge(self, error: BaseException | None) -> Verdict:  # noqa: PLR0911 - a row of a table each
        if verdict_of(self.findings) is Verdict.BAD:
            # A defect that was seen stays seen, whatever went wrong after it.
            return Verdict.BAD
        if isinstance(error, NotApplicable):
            return Verdict.NOT_APPLICABLE
        if isinstance(error, Unable):
            return Verdict.UNABLE
        if error is not None:
            return Verdict.CHECKER_ERROR
        if self.lacking:
            return Verdict.UNABLE
        if self.essential and not self.ran and self.ruled_out:
            return Verdict.NOT_APPLICABLE
        return Verdict.CHECKER_ERROR if self._slip() else verdict_of(self.findings)

    def _slip(self) -> str | None:
        """What the probe forgot, which makes an ok impossible."""
        tried = {*self.ran, *(missed.leg for missed in self.missed)}
        forgotten = [leg for leg in self.essential if leg not in tried]
        if forgotten:
            return f"the probe never tried its essential legs: {', '.join(forgotten)}"
        if self.essential and not self.ran:
            return "none of the probe's legs ran"
        if not self.evidence and not self.findings:
            return "the probe returned without evidence"
        return None


def _describe(error: BaseException) -> str:
    if isinstance(error, Bug):
        return str(error)
    frames = []
    trace = error.__traceback__
    while trace is not None:
        frames.append(f"{trace.tb_frame.f_code.co_filename.rpartition('/')[2]}:{trace.tb_lineno}")
        trace = trace.tb_next
    return f"{type(error).__name__}: {error} (at {' < '.join(reversed(frames[-3:]))})"
