"""The results of a run as they come in: what the probes' process tells, and what it owes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from gpucheck import events
from gpucheck.events import Event, Judged
from gpucheck.record import Record, now, result_of
from gpucheck.redact import redact
from gpucheck.run.account import Account
from gpucheck.usage import UsageError
from gpucheck.verdict import Exit, Outcome, Result, Subject, Verdict, accept, exit_status, outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpucheck.process import Reply
    from gpucheck.profile import Options

ITSELF = "gpucheck"
NOBODY = Subject("host", "host", "host")
_USAGE_LINES = 3
_LAST_WORDS = 600


@dataclass
class Ledger:
    """Every result so far, and the record that holds them. ``show`` gets each event as it happens.

    ``host`` is what a row is about that no probe wrote; ``rehearsing`` the id of the fault that is brought up.
    """

    options: Options
    record: Record
    show: Callable[[Event], None] = lambda _: None
    host: Subject = NOBODY
    rehearsing: str | None = None
    account: Account = field(default_factory=Account)
    results: list[Result] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)

    def hear(self, line: str) -> None:
        """Take in a line of the probes' process."""
        try:
            event = events.parse(line)
            self.account.hear(event)
            if isinstance(event, Judged):
                self._take(event.row)
                self.record.error = self.record.error or event.record_error
        except (ValueError, KeyError, TypeError):
            self.own_error(f"a line of the probes' process could not be read: {redact(line[:400])}")
            return
        self.show(event)

    def add(self, result: Result) -> None:
        """A result that no probe wrote."""
        result = replace(accept(result, self.options.policy, now()[:10]), rehearsal=self.rehearsing)
        row = self.record.judged(result, self.options.policy)
        self._take(row)
        self.show(Judged("", row))

    def _take(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        self.results.append(result_of(row))

    def own_error(self, text: str) -> None:
        """Something that is our own mistake, as a row of its own."""
        title = "gpucheck itself works"
        self.add(Result(ITSELF, title, self.host, Verdict.CHECKER_ERROR, lacking=(text.strip(),), started=now()))

    def unable(self, probe: str, *lacking: str, title: str = "") -> None:
        """Something that was asked for and that nobody looked at."""
        self.add(Result(probe, title, self.host, Verdict.UNABLE, lacking=lacking, started=now()))

    def close(self, reply: Reply) -> None:
        """The probes' process has ended: account for every probe that was planned and gave no row.

        Raises UsageError where pytest took the selection for a mistake.
        """
        if reply.ended.code == Exit.USAGE:
            raise UsageError(_usage_text(reply))
        if not self.account.finished or reply.ended.code not in (0, 1, 5):
            before = "" if self.account.plan else " before it had a plan"
            self.own_error(f"the probes' process ended{before}: {reply.ended}: {_last_words(reply)}")
        for result in self.account.unaccounted(reply):
            self.add(result)

    def add_unlooked(self) -> None:
        """What the operator required or named, and no probe of this run looks at, was not judged: that is said."""
        plan = self.account.plan
        reasons = {item["probe"]: item["why"] for item in plan.left_out} if plan else {}
        reached = {r.probe for r in self.results} | {item["probe"] for item in self.account.items}
        for probe in sorted(self.options.policy.require - reached):
            self.unable(probe, f"required, and left out of this run: {reasons.get(probe, 'not selected')}")
        for name in ("image", "dataset", "model"):
            if self.options[name] and name not in (plan.uses if plan else ()):
                self.unable(ITSELF, f"--gpucheck-{name}: no probe of this run judges it (level, -k)")

    def at_the_gate(self) -> list[Result]:
        """The results for which the user's own tests do not run: what is bad, and what was required and is not ok."""
        failed = [r for r in self.results if outcome(r, self.options.policy) is Outcome.FAILED]
        return [r for r in failed if r.verdict is Verdict.BAD or r.probe in self.options.policy.require]

    def status(self, user_passed: int = 0, user_failed: int = 0) -> Exit:
        """The exit status that the results make."""
        return exit_status(self.results, self.options.policy, user_passed=user_passed, user_failed=user_failed)

    def counts(self) -> dict[str, int]:
        """How many results there are of each verdict."""
        return dict(Counter(result.verdict.value for result in self.results))

    def in_a_word(self) -> str:
        """The machine in one word, whatever the user's own tests did."""
        status = self.status()
        if status is Exit.OK:
            return "degraded" if any(r.verdict is Verdict.DEGRADED for r in self.results) else "ok"
        return {Exit.BAD: "bad", Exit.NOTHING_JUDGED: "nothing-judged"}.get(status, "undecided")

    def stale_acceptances(self) -> list[str]:
        """A line about each acceptance that is past its date or matches nothing that was found."""
        met = {f.pitfall for r in self.results for f in r.findings}
        lines = []
        for acceptance in self.options.policy.accept.values():
            if not acceptance.holds(now()[:10]):
                lines.append(f"the acceptance of {acceptance.pitfall} ended on {acceptance.until}")
            elif acceptance.pitfall not in met:
                lines.append(f"the acceptance of {acceptance.pitfall} matched nothing in this run")
        return lines


def _last_words(reply: Reply) -> str:
    text = reply.errors if reply.errors.strip() else reply.output
    return " ".join(text.split())[-_LAST_WORDS:]


def _usage_text(reply: Reply) -> str:
    lines = [line.strip() for line in (reply.errors + "\n" + reply.output).splitlines() if line.strip()]
    wanted = [line.removeprefix("ERROR:").strip() for line in lines if "ERROR" in line] or lines[-_USAGE_LINES:]
    return "; ".join(wanted)[:_LAST_WORDS]
