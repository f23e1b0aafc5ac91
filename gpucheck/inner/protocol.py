"""What happens to one probe: its start, its end, and what came of it as a row."""

from __future__ import annotations

import errno
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from gpucheck import words
from gpucheck.events import Finished, Started, Went
from gpucheck.inner.mark import mark_of, probe_of, title_of
from gpucheck.levels import LEVELS
from gpucheck.record import now
from gpucheck.report import Report
from gpucheck.verdict import Bug, Outcome, Result, Unable, Verdict, accept, outcome

if TYPE_CHECKING:
    from collections.abc import Generator

    from gpucheck.inner.session import Session
    from gpucheck.profile import Options

REPORT = pytest.StashKey[Report]()
RESULT = pytest.StashKey[Result]()
BEGAN = pytest.StashKey[tuple[str, float]]()


class Protocol:
    """The hooks around one probe."""

    def __init__(self, session: Session) -> None:
        self.session = session

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Note the start; a probe that disturbs is on the disk before it begins."""
        mark, probe = mark_of(item), probe_of(item)
        about = self.session.subject(item, mark.subject)
        item.stash[REPORT] = Report(
            probe=probe,
            title=title_of(item),
            subject=about,
            essential=mark.essential,
            deep=self.session.level == LEVELS.index("deep"),
            tell=lambda leg: self.session.tell(Went(probe, leg)),
            facts=self.session.facts_now,
        )
        item.stash[BEGAN] = (now(), time.monotonic())
        row = {"probe": probe, "subject": about.id, "item": item.nodeid, "at": now()}
        self.session.record.append("start", row, durable=mark.disturbs != "none")
        self.session.tell(Started(item.nodeid, probe))
        return (yield)

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """A probe that cannot end within the run's budget does not begin."""
        given = self.session.given
        if given.ends - time.monotonic() < mark_of(item).cost_s:
            budget_s = given.options.budget_s
            raise Unable(f"time: the budget of {budget_s:.0f} s is used up (--gpucheck-budget SECONDS gives more)")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Turn what happened into a result; the row is written when the probe has cleaned up after itself."""
        test_report = yield
        error = call.excinfo.value if call.excinfo else None
        if call.when == "call" or (error is not None and RESULT not in item.stash):
            item.stash[RESULT] = item.stash[REPORT].result(_as_verdict(error))
        elif error is not None:
            lost = f"cleaning up failed: {type(error).__name__}: {error}"
            result = item.stash[RESULT]
            worse = Verdict.BAD if result.verdict is Verdict.BAD else Verdict.CHECKER_ERROR
            item.stash[RESULT] = replace(result, verdict=worse, lacking=(*result.lacking, lost))
        if call.when == "teardown":
            self._finish(item)
        _show(test_report, item, self.session.given.options)
        return test_report

    def _finish(self, item: pytest.Item) -> None:
        started, since = item.stash[BEGAN]
        given = self.session.given
        duration_s = round(time.monotonic() - since, 3)
        result = replace(item.stash[RESULT], started=started, duration_s=duration_s, rehearsal=given.rehearsal)
        result = accept(result, given.options.policy, started[:10])
        try:
            spoken = [words.of(f, given.facts, given.options).to_json() for f in result.findings]
        except Bug as bug:
            lacking = (*result.lacking, str(bug))
            result, spoken = replace(result, verdict=Verdict.CHECKER_ERROR, findings=(), lacking=lacking), []
        item.stash[RESULT] = result
        self.session.write(result, item.nodeid, spoken)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Say that the end was reached."""
        self.session.tell(Finished(stopped=bool(session.shouldfail or session.shouldstop)))


def _as_verdict(error: BaseException | None) -> BaseException | None:
    """pytest's own outcomes in a probe: a bare skip has no known fact behind it."""
    if isinstance(error, pytest.skip.Exception):
        return Unable(f"the probe skipped itself without a fact: {error}")
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Unable(f"room to work in: {error.filename or 'TMPDIR'}: {error.strerror}")
    return error


def _show(test_report: pytest.TestReport, item: pytest.Item, options: Options) -> None:
    """Make this side's own counters (``-x``) agree with the policy."""
    if test_report.when == "call" or test_report.failed or test_report.skipped:
        result = item.stash.get(RESULT, None)
        if result is None:
            return
        made = outcome(accept(result, options.policy, now()[:10]), options.policy)
        test_report.outcome = made.value
        test_report.longrepr = None if made is Outcome.PASSED else (str(item.path), 0, result.verdict.value)
