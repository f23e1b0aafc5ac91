"""What is said at the end of a run beside its findings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpucheck.run import hermetic
from gpucheck.verdict import Exit, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpucheck.run import Run


def lines(run: Run, status: Exit) -> Iterator[str]:
    """Acceptances that do nothing, notes, why nothing was judged, a record or a clean-up that failed."""
    yield from run.ledger.stale_acceptances()
    yield from run.notes
    allowed = [
        r.probe
        for r in run.ledger.results
        if r.verdict is Verdict.UNABLE and r.probe in run.options.policy.allow_unable
    ]
    if allowed:
        yield f"allowed to be unable: {', '.join(dict.fromkeys(allowed))}"
    if not hermetic.has_belt():
        yield "pytest-timeout is not installed here: only gpucheck's own deadlines guard this run"
    # Also where the user's own tests make a green: nobody looked at the machine, and that is said.
    plan = run.ledger.account.plan
    if status is Exit.NOTHING_JUDGED or (plan is not None and not plan.items and not run.faults):
        yield _emptied(run)
    if run.ledger.record.error:
        yield f"the record could not be written ({run.ledger.record.error}): its rows went to stderr"
    yield from (f"left behind: {thing}" for thing in run.left_behind)


def _emptied(run: Run) -> str:
    picked = " ".join(run.selection.argv())
    plan = run.ledger.account.plan
    if plan is not None and not plan.items:
        left_out = f"; {len(plan.left_out)} belong to another level" if plan.left_out else ""
        return f"nothing was judged: no probe is selected{f' by {picked}' if picked else ''}{left_out}"
    planned = f"{len(run.ledger.account.items)} probes{f' selected by {picked}' if picked else ''}"
    return f"nothing was judged: none of {planned} could judge anything"


def interruption(run: Run) -> str:
    """How far an interrupted run came, and what it left."""
    planned = f" of {len(run.ledger.account.items)}" if run.ledger.account.plan else ""
    left = f"left behind: {', '.join(run.left_behind)}" if run.left_behind else "cleaned up"
    return f"gpucheck: interrupted after {len(run.ledger.rows)}{planned} probes; {left}"
