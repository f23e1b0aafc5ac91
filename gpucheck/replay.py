"""The run in the user's own pytest session: one replay item a row, the gate in front of their tests, summary, status.

A replay item is no test function, so no fixture applies to it. What the user's hooks do to it changes their report,
never the record nor our exit status.
"""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING, Any

import pytest

import gpucheck
from gpucheck import profile, render
from gpucheck.run import Run, Selection
from gpucheck.verdict import Exit

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

    from _pytest._io import TerminalWriter

NODE = "gpucheck"
INPUT = "gpucheck_rows"
STATUS = {"unable": ("unable", "U", "UNABLE"), "checker-error": ("checker-error", "C", "CHECKER-ERROR")}


def attach(config: pytest.Config) -> None:
    """Register the run with this pytest: as its controller, or as a worker that is handed the rows."""
    if not config.option.file_or_dir:
        config.args[:] = []
    worker = getattr(config, "workerinput", None)
    if worker is not None:
        rows = json.loads(worker.get(INPUT, "[]"))
        config.pluginmanager.register(Replay(rows, gate=worker.get(INPUT + "_gate", "")), "gpucheck-replay")
        return
    try:
        options = profile.resolve(_command_line(config), config.getini)
        run = Run(options, Selection(config.option.keyword, config.option.markexpr, config.option.maxfail))
    except profile.UsageError as error:
        raise pytest.UsageError(f"gpucheck: {error}") from None
    if config.option.collectonly:
        return
    replay = Replay([], gate="")
    config.pluginmanager.register(replay, "gpucheck-replay")
    config.pluginmanager.register(Controller(config, run, replay), "gpucheck-run")


def _command_line(config: pytest.Config) -> dict[str, Any]:
    return {name: getattr(config.option, f"gpucheck_{name.replace('-', '_')}", None) for name in profile.OPTIONS}


class Longrepr:
    """A row's failure: whole in JUnit, one line in the terminal, where the summary says the rest."""

    def __init__(self, row: render.Row) -> None:
        self.row = row

    def __str__(self) -> str:
        """As JUnit and other reports show it."""
        return render.junit_text(self.row)

    def toterminal(self, tw: TerminalWriter) -> None:
        """As pytest's FAILURES section shows it."""
        tw.line(render.junit_text(self.row).partition("\n")[0] + " (see the gpucheck summary)")


class Failed(Exception):
    """The replay of a row whose outcome is failed."""


class Item(pytest.Item):
    """One row of the record."""

    row: render.Row

    def runtest(self) -> None:
        """Replay the outcome."""
        if self.row["outcome"] == "failed":
            raise Failed
        if self.row["outcome"] == "skipped":
            pytest.skip(_reason(self.row))

    def repr_failure(self, excinfo: Any, style: Any = None) -> Any:
        """The row's words instead of a traceback."""
        return Longrepr(self.row) if isinstance(excinfo.value, Failed) else super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[str, int | None, str]:
        """Where reports say that this item is."""
        return NODE, None, self.name


class Collector(pytest.Collector):
    """Holds the replay items under a node of our own."""

    def collect(self) -> Iterable[pytest.Item]:
        """Nothing by itself: the items are put in front."""
        return []


def _reason(row: render.Row) -> str:
    if row["because"]:
        return f"not applicable: {row['because']['value']}"
    accepted = [f["accepted"] for f in row["findings"] if f["accepted"]]
    return f"accepted: {accepted[0]}" if accepted else f"unable, allowed: {'; '.join(row['lacking'])}"


def _name(row: render.Row) -> str:
    subject = row["subject"]
    return f"{row['probe']}[{subject['id'] if subject['kind'] in ('gpu', 'image') else subject['kind']}]"


class Replay:
    """The hooks that controller and xdist's workers share."""

    def __init__(self, rows: list[render.Row], gate: str) -> None:
        self.rows = rows
        self.gate = gate

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(
        self, session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
    ) -> Generator[None, object, object]:
        """Put the replay items in front when every other plugin has had its way with the order."""
        result = yield
        collector = Collector.from_parent(session, name=NODE, nodeid=NODE)
        replayed: list[pytest.Item] = []
        for name, row in self.named.items():
            item = Item.from_parent(collector, name=name)
            item.row = row
            replayed.append(item)
        items[:0] = replayed
        made = pytest.CollectReport(NODE, "passed", None, list(replayed))
        config.hook.pytest_collectreport(report=made)
        return result

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """The gate, and the marker for the user's own tests."""
        if isinstance(item, Item):
            return
        if self.gate:
            pytest.skip(self.gate)
        from gpucheck.marker import refusal

        if reason := refusal(item, self.rows):
            pytest.skip(reason)

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: Any) -> tuple[str, str, str] | None:
        """``unable`` and ``checker-error`` under their own word, so that the last line is never green."""
        row = self.row_of(report.nodeid)
        if row is None or report.when != "call" or row["outcome"] != "failed":
            return None
        return STATUS.get(row["verdict"])

    @property
    def named(self) -> dict[str, render.Row]:
        """The rows by their items' names: probe and subject, numbered where a probe has several rows on one subject."""
        found: dict[str, render.Row] = {}
        for row in self.rows:
            name, number = _name(row), 2
            while name in found:
                name, number = f"{_name(row)[:-1]}-{number}]", number + 1
            found[name] = row
        return found

    def row_of(self, nodeid: str) -> render.Row | None:
        """The row that an item with this node id replays."""
        node, _, name = nodeid.partition("::")
        return self.named.get(name) if node == NODE else None


class Controller:
    """Runs the probes, shows them, and has the last word on the exit status."""

    def __init__(self, config: pytest.Config, run: Run, replay: Replay) -> None:
        self.config = config
        self.run = run
        self.replay = replay
        self.user_passed = 0
        self.user_failed = 0
        self.collect_failed = False
        self.interrupted = False
        self.done = False
        self.handlers: dict[int, Any] = {}

    def line(self, text: str) -> None:
        """Write a line to the terminal, if there is one and it is not to be quiet."""
        terminal = self.config.pluginmanager.get_plugin("terminalreporter")
        if terminal is not None:
            terminal.write_line(text)

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
        for number in (signal.SIGTERM, signal.SIGHUP):
            self.handlers[number] = signal.signal(number, _interrupt)
        options = self.run.options
        for text in render.header(gpucheck.__version__, options["level"], str(self.run.path), options["rehearse"]):
            self.line(text)
        self.run.show = self.show
        try:
            self.run.perform()
        except profile.UsageError as error:
            raise pytest.UsageError(f"gpucheck: {error}") from None
        except KeyboardInterrupt:
            self.line(self.run.interruption())
            raise
        self.live("")
        for text in render.ruled_out_lines(self.run.rows) if self.verbosity <= 0 else ():
            self.line(text)
        self.done = True
        self.replay.rows[:] = self.run.rows
        if self.run.bad() and not options["no-gate"]:
            self.replay.gate = "gpucheck: " + "; ".join(r.probe for r in self.run.bad()) + " bad on this machine"

    def show(self, event: dict[str, Any]) -> None:
        """One event of the run: a line a probe; what is under way, on a line that the next one overwrites."""
        if "result" in event:
            self.live("")
            if render.is_ruled_out(event["result"]) and self.verbosity <= 0:
                return
            for text in (render.probe_line(event["result"]), *render.under_lines(event["result"])):
                self.line(text)
        elif text := render.progress(event):
            self.live(text)

    @property
    def verbosity(self) -> int:
        """How often ``-v`` was given; pytest has no such option where its terminal reporter is switched off."""
        return int(getattr(self.config.option, "verbose", 0))

    def live(self, text: str) -> None:
        """Say what is under way: overwritten on a terminal; elsewhere a line of its own, with ``-v`` only."""
        terminal = self.config.pluginmanager.get_plugin("terminalreporter")
        if terminal is None:
            return
        if terminal.isatty:
            terminal.rewrite(text, erase=True)
            terminal.rewrite("")  # back to the first column, where the next line begins
        elif text and self.verbosity > 0:
            terminal.write_line(text)

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Hand the rows to an xdist worker."""
        node.workerinput[INPUT] = json.dumps(self.replay.rows)
        node.workerinput[INPUT + "_gate"] = self.replay.gate

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count the user's tests; give a replayed failure its words back, which xdist turned into text."""
        row = self.replay.row_of(report.nodeid)
        if row is None:
            self.user_passed += report.when == "call" and report.passed
            self.user_failed += report.failed
        elif report.failed:
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
        tr = terminalreporter
        tr.section("gpucheck", sep="=")
        for text in render.blocks(self.replay.rows):
            tr.write_line(text)
        for text in self.run.closing_lines(self.user_passed, self.user_failed):
            tr.write_line(text)
        tr.write_line(render.counts(self.replay.rows))

    def close(self, status: int) -> int:
        """Close the record and return the exit status. pytest calls no hook of a session that is interrupted early."""
        for number, handler in self.handlers.items():
            signal.signal(number, handler)
        own = self.exit_status(status)
        if self.run.began:
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
        return int(self.run.status(self.user_passed, self.user_failed + self.collect_failed))


def _interrupt(number: int, _: Any) -> None:
    raise KeyboardInterrupt(signal.Signals(number).name)
