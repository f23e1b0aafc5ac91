"""The user's session as the controller of a run: it performs it, shows it, and has the last word on the status."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

import gpucheck
from gpucheck import interruption, render
from gpucheck.replay.items import Longrepr
from gpucheck.replay.screen import Screen
from gpucheck.usage import UsageError
from gpucheck.verdict import Exit

if TYPE_CHECKING:
    from collections.abc import Generator

    from gpucheck.replay.hooks import Replay
    from gpucheck.run import Run

INPUT = "gpucheck"
NO_TESTS = int(pytest.ExitCode.NO_TESTS_COLLECTED)


class Controller:
    """Runs the probes, shows them, and has the last word on the exit status."""

    def __init__(self, config: pytest.Config, run: Run, replay: Replay) -> None:
        self.screen = Screen(config)
        self.config = config
        self.run = run
        self.replay = replay
        self.user_passed = 0
        self.user_failed = 0
        self.collect_failed = False
        self.interrupted = False
        self.meddled = False  # a hook of the user's failed an item of ours
        self.done = False
        self.until_closed = ExitStack()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionstart(self) -> Generator[None, object, object]:
        """Run the probes: after pytest's header, but before xdist hands the rows to its workers."""
        if self.config.pluginmanager.hasplugin("dsession"):
            self.perform()
            return (yield)
        result = yield
        self.perform()
        return result

    def perform(self) -> None:
        """Run the probes, showing each as it ends."""
        options = self.run.options
        self.until_closed.enter_context(interruption.by_signals())
        header = render.header(gpucheck.__version__, options["level"], str(self.run.path), options["rehearse"])
        self.screen.lines(*header)
        self.run.ledger.show = self.screen.show
        try:
            self.run.perform()
        except UsageError as error:
            raise pytest.UsageError(f"gpucheck: {error}") from None
        except KeyboardInterrupt:
            self.screen.lines(self.run.interruption())
            raise
        self.screen.live("")
        if self.screen.verbosity <= 0:
            self.screen.lines(*render.ruled_out_lines(self.run.ledger.rows))
        self.done = True
        gate = "" if options["no-gate"] else self._gate()
        self.replay.take(self.run.ledger.rows, gate, sorted(self.run.probes))

    def _gate(self) -> str:
        """Why the user's own tests are skipped; empty where they are not."""
        told = dict.fromkeys(f"{r.probe} is {render.word(r.verdict.value)}" for r in self.run.ledger.at_the_gate())
        return f"gpucheck: {', '.join(told)} on this machine" if told else ""

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Hand the rows to an xdist worker."""
        node.workerinput[INPUT] = json.dumps(
            {"rows": self.replay.rows, "gate": self.replay.gate, "probes": self.replay.probes}
        )

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count the user's tests; give a replayed failure its words back, which xdist turned into text."""
        row = self.replay.row_of(report.nodeid)
        if row is None:
            self.user_passed += report.when == "call" and report.passed
            self.user_failed += report.failed
        elif report.failed:
            self.meddled |= row["outcome"] != "failed"
            report.longrepr = Longrepr(row)  # type: ignore[assignment]

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file that cannot be collected is one of the user's failures."""
        self.collect_failed |= report.failed

    def pytest_keyboard_interrupt(self, excinfo: Any) -> None:
        """Ctrl-C and signals; not xdist's way of stopping at a failure."""
        self.interrupted |= type(excinfo.value) is KeyboardInterrupt or isinstance(excinfo.value, pytest.exit.Exception)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """What people read: each finding as a block, then one line."""
        if not self.done:
            return
        closing = self.run.closing_lines(self.user_passed, self.user_failed)
        terminalreporter.section("gpucheck", sep="=")
        for text in (*render.blocks(self.replay.rows), *closing, render.counts(self.replay.rows)):
            terminalreporter.write_line(text)

    def close(self, status: int) -> int:
        """Close the record and return the exit status. pytest calls no hook of a session that is interrupted early."""
        self.until_closed.close()
        own = self.exit_status(status)
        self.run.finish(own, self.user_passed, self.user_failed)
        return own

    def exit_status(self, status: int) -> int:
        """pytest's status where pytest was interrupted, crashed or misused; ours otherwise."""
        if self.interrupted or self.run.interrupted:
            return Exit.INTERRUPTED
        if status in (Exit.CRASH, Exit.USAGE) or (status == Exit.INTERRUPTED and self.collect_failed):
            return status
        if not self.done:
            return status
        own = self.run.status(self.user_passed, self.user_failed + self.collect_failed)
        # What failed the session beside tests (a plugin's threshold, `session.shouldstop`) is not ours to forgive; what
        # the user's hooks do to our items is.
        forgiven = self.meddled or status in (Exit.OK, NO_TESTS)
        return int(own) if forgiven or own not in (Exit.OK, Exit.NOTHING_JUDGED) else status
