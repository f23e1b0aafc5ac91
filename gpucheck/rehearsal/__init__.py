"""A rehearsal: which fault is brought up, and what came of it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from gpucheck.rehearsal.faults import FAULTS, UNCHANGED
from gpucheck.usage import UsageError
from gpucheck.verdict import Exit, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpucheck.rehearsal.faults import Change, Fault
    from gpucheck.verdict import Result


def change_of(fault_id: str | None) -> Change:
    """What that fault changes; nothing where nothing is rehearsed."""
    return UNCHANGED if fault_id is None else FAULTS[fault_id].change


def named(ids: Iterable[str]) -> tuple[Fault, ...]:
    """The faults of those ids, each once. Raises UsageError, naming all that there are, for an unknown one."""
    wanted = tuple(dict.fromkeys(ids))
    if unknown := [name for name in wanted if name not in FAULTS]:
        raise UsageError(f"no fault is called {', '.join(unknown)}; those to rehearse are {', '.join(FAULTS)}")
    return tuple(FAULTS[name] for name in wanted)


class End(str, Enum):
    """What came of the rehearsal of one fault."""

    BROUGHT_UP = "went red"
    NOT_REHEARSED = "could not be rehearsed"
    MISSED = "did NOT go red"

    __str__ = str.__str__


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one fault, and why."""

    fault: Fault
    end: End
    why: tuple[str, ...] = ()

    def __str__(self) -> str:
        """One line for people."""
        what = f"{self.fault.id}: {self.fault.probe} {self.end}"
        return f"{what}: {'; '.join(self.why)}" if self.why else what


def judge(fault: Fault, results: Sequence[Result]) -> Outcome:
    """Whether the fault's pitfall came up in what its probe gave."""
    found = [finding.pitfall for result in results for finding in result.findings]
    if brought := [pitfall for pitfall in found if pitfall in fault.pitfalls]:
        return Outcome(fault, End.BROUGHT_UP, tuple(dict.fromkeys(brought)))
    ran = {leg for result in results for leg in result.legs}
    looked = any(result.verdict not in (Verdict.UNABLE, Verdict.NOT_APPLICABLE) for result in results)
    if not looked or (fault.legs and not ran & set(fault.legs)):
        obstacles = tuple(dict.fromkeys(_obstacles(results)))
        return Outcome(fault, End.NOT_REHEARSED, obstacles or ("its probe did not run",))
    verdicts = ", ".join(dict.fromkeys(result.verdict.value for result in results))
    instead = f", with {', '.join(dict.fromkeys(found))}" if found else ""
    return Outcome(fault, End.MISSED, (f"it said {verdicts}{instead}, not {' or '.join(fault.pitfalls)}",))


def _obstacles(results: Iterable[Result]) -> Iterable[str]:
    for result in results:
        yield from result.lacking
        yield from (f"{missed.leg}: {missed.why}" for missed in result.not_run)
        if result.because is not None:
            yield str(result.because.value)


def exit_of(faults: Sequence[Fault], outcomes: Sequence[Outcome]) -> Exit:
    """1 when every fault was rehearsed and turned its probe red, 10 otherwise."""
    red = [outcome for outcome in outcomes if outcome.end is End.BROUGHT_UP]
    return Exit.BAD if len(red) == len(faults) else Exit.UNDECIDED
