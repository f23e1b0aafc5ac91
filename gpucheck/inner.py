"""Hooks of the hermetic child pytest: which probes run on which subjects, in which order, and each outcome as a row.

The controller starts ``python -m pytest -p gpucheck.inner`` with a :class:`~gpucheck.given.Given` in a file; this side
appends rows to the record as they happen and tells the controller the same through a file of events, one JSON document
a line.
"""

from __future__ import annotations

import datetime
import json
import os
import pickle
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gpucheck import pitfalls, record, rehearsal, words
from gpucheck.facts import Facts, read
from gpucheck.faults import FAULTS
from gpucheck.report import Report
from gpucheck.verdict import Bug, Outcome, Result, Subject, Unable, Verdict, accept, outcome

if TYPE_CHECKING:
    from collections.abc import Generator

    from gpucheck.given import Given
    from gpucheck.profile import Options

GIVEN = "GPUCHECK_GIVEN"
EVENTS = "GPUCHECK_EVENTS"
LEVELS = ("quick", "default", "deep")
DISTURBANCE = ("none", "idle", "any")
BELT_S = 30.0
CHANGING = ("disk.", "memory.", "shm.")
REPORT = pytest.StashKey[Report]()
RESULT = pytest.StashKey[Result]()
BEGAN = pytest.StashKey[tuple[str, float]]()
PROBE_VERSION = 1
# A probe that takes one of these is about something that the operator named; unnamed, it is not there.
NAMED = ("image", "dataset", "model")


@dataclass(frozen=True, slots=True)
class Mark:
    """A probe's mark: what it is about, what it costs, what it must have tried."""

    subject: str
    level: str = "default"
    essential: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    disturbs: str = "none"
    deadline_s: float = 60.0
    cost_s: float = 1.0


def mark_of(item: pytest.Item) -> Mark:
    """The mark of a probe. Raises pytest.UsageError, naming the file, when it has none or a wrong one."""
    found = item.get_closest_marker("probe")
    if found is None:
        raise pytest.UsageError(f"{item.path}: no `probe` mark")
    try:
        mark = Mark(*found.args, **found.kwargs)
    except TypeError as error:
        raise pytest.UsageError(f"{item.path}: {error}") from None
    if mark.level not in LEVELS or mark.disturbs not in DISTURBANCE:
        raise pytest.UsageError(f"{item.path}: level={mark.level!r}, disturbs={mark.disturbs!r}")
    return mark


def probe_id(item: pytest.Item) -> str:
    """The probe's id: its file's name without ``test_``, in kebab case."""
    return item.path.stem.removeprefix("test_").replace("_", "-")


def title_of(item: pytest.Item) -> str:
    """The good state, as the first line of the probe's docstring states it."""
    module = getattr(item, "module", None)
    return (module.__doc__ or "").strip().partition("\n")[0].rstrip(".")


class Inner:
    """The run of the probes."""

    def __init__(self, given: Given, events: Path) -> None:
        self.given = given
        self.events = events
        self.record = record.Record(given.record, given.run)
        self.change = rehearsal.change_of(given.rehearsal)
        self.level = LEVELS.index(given.options["level"])

    @staticmethod
    def pytest_itemcollected(item: pytest.Item) -> None:
        """``-k`` finds a probe by its id too."""
        item.extra_keyword_matches.add(probe_id(item))

    def tell(self, **event: Any) -> None:
        """Tell the controller."""
        with self.events.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(record.redacted(event), default=str) + "\n")

    def facts_now(self, names: tuple[str, ...]) -> Facts:
        """The run's facts, those of ``names`` that a failure may have changed read again."""
        changed = [name for name in names if name.startswith(CHANGING)]
        fresh = read(changed) if changed else Facts()
        return self.given.facts.plus(fresh[name] for name in changed)

    # Collection

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """One item a subject."""
        if "gpu" in metafunc.fixturenames:
            gpus = self.given.facts.known("nvml.gpus") or [None]
            metafunc.parametrize("gpu", gpus, ids=[g["uuid"] if g else "none" for g in gpus], indirect=True)
        for kind in NAMED:
            if kind in metafunc.fixturenames and (named := self._named(kind)):
                metafunc.parametrize(kind, named, ids=list(named), indirect=True)

    def _named(self, kind: str) -> tuple[str, ...]:
        """What the operator named of that kind."""
        given = self.given.options[kind] or ()
        return (given,) if isinstance(given, str) else tuple(given)

    def _is_there(self, item: pytest.Item) -> bool:
        """Whether what an item is about was named, if that is for the operator to do."""
        wanted = [kind for kind in NAMED if kind in getattr(item, "fixturenames", ())]
        return all(self._named(kind) for kind in wanted)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Keep what belongs to the level, cheap before costly before disturbing, and write the plan."""
        items[:] = [item for item in items if self._is_there(item)]
        only = FAULTS[self.given.rehearsal].probe if self.given.rehearsal else None
        marks = {item: mark_of(item) for item in items}
        chosen = [
            item for item in items if LEVELS.index(marks[item].level) <= self.level and only in (None, probe_id(item))
        ]
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        for item in chosen:
            item.add_marker(pytest.mark.timeout(marks[item].deadline_s + BELT_S, method="thread"))
        chosen.sort(key=lambda item: self._order(marks[item]))
        items[:] = chosen
        plan = [self._planned(item) for item in items]
        left_out = [
            {"probe": probe_id(item), "why": f"level {marks[item].level}" if only is None else "rehearsal of another"}
            for item in marks
            if item not in chosen
        ]
        row = self.record.append("plan", {"items": plan, "left_out": left_out})
        uses = [kind for kind in NAMED if any(kind in getattr(item, "fixturenames", ()) for item in items)]
        self.tell(plan=row, titles={probe_id(item): title_of(item) for item in items}, uses=uses)

    def _planned(self, item: pytest.Item) -> dict[str, str]:
        return {"probe": probe_id(item), "subject": self.subject(item).id, "item": item.nodeid}

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file of probes that skips itself or breaks while it is imported leaves a row, not a gap."""
        if report.passed:
            return
        stem = Path(report.fspath or report.nodeid).stem
        text = report.longreprtext.strip().splitlines()
        why = report.longrepr[2] if isinstance(report.longrepr, tuple) else text[-1] if text else "no reason given"
        verdict = Verdict.UNABLE if report.skipped else Verdict.CHECKER_ERROR
        probe = stem.removeprefix("test_").replace("_", "-")
        subject = Subject("host", self.given.facts.known("machine.id") or "host", "host")
        lacking = (f"its file could not be collected: {why}",)
        result = Result(probe, "", subject, verdict, lacking=lacking, started=_now())
        self._write(accept(result, self.given.options.policy, _now()[:10]), [], report.nodeid)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Say that the end was reached, which no exit status proves, and whether it was reached on purpose (``-x``)."""
        self.tell(finished=True, stopped=bool(session.shouldfail or session.shouldstop))

    def _order(self, mark: Mark) -> tuple[int, int, float]:
        return DISTURBANCE.index(mark.disturbs), LEVELS.index(mark.level), mark.cost_s

    def subject(self, item: pytest.Item) -> Subject:
        """What an item's answer is about."""
        facts = self.given.facts
        call = getattr(item, "callspec", None)
        gpu = call.params.get("gpu") if call else None
        if gpu:
            details = {name: gpu.get(name) for name in ("uuid", "pci", "index", "capability", "memory_bytes")}
            return Subject("gpu", gpu["uuid"], f"GPU {gpu['index']} {gpu['name']}", details)
        for named in NAMED:
            if call and named in call.params:
                return Subject(named, call.params[named], call.params[named])
        kind = mark_of(item).subject
        host = facts.known("machine.hostname") or "this host"
        return Subject(kind, facts.known("machine.id") or host, host if kind == "host" else kind)

    # One item

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Note the start; a probe that disturbs is on the disk before it begins."""
        mark = mark_of(item)
        item.stash[REPORT] = Report(
            probe=probe_id(item),
            title=title_of(item),
            subject=self.subject(item),
            essential=mark.essential,
            deep=self.level == LEVELS.index("deep"),
            tell=lambda leg: self.tell(leg=leg, probe=probe_id(item)),
            facts=self.facts_now,
        )
        item.stash[BEGAN] = (_now(), time.monotonic())
        row = self._planned(item) | {"at": _now()}
        self.record.append("start", row, durable=mark.disturbs != "none")
        self.tell(start=row)
        return (yield)

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """A probe that cannot end within the run's budget does not begin."""
        left_s = self.given.ends - time.monotonic()
        if left_s < mark_of(item).cost_s:
            budget_s = self.given.options.budget_s
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
        _show(test_report, item, self.given.options)
        return test_report

    def _finish(self, item: pytest.Item) -> None:
        started, since = item.stash[BEGAN]
        result = replace(
            item.stash[RESULT],
            started=started,
            duration_s=round(time.monotonic() - since, 3),
            rehearsal=self.given.rehearsal,
        )
        policy = self.given.options.policy
        result = accept(result, policy, started[:10])
        try:
            spoken = [words.of(f, self.given.facts, self.given.options).to_json() for f in result.findings]
        except Bug as bug:
            lacking = (*result.lacking, str(bug))
            result, spoken = replace(result, verdict=Verdict.CHECKER_ERROR, findings=(), lacking=lacking), []
        item.stash[RESULT] = result
        self._write(result, spoken, item.nodeid)

    def _write(self, result: Result, spoken: list[dict[str, Any]], item: str) -> None:
        row = record.result_row(result)
        row |= {"outcome": outcome(result, self.given.options.policy).value, "probe_version": PROBE_VERSION}
        for finding, said in zip(row["findings"], spoken, strict=True):
            finding.update(said)
        whole = self.record.append("result", row)
        self.tell(result=whole, item=item, record_error=self.record.error)


def _as_verdict(error: BaseException | None) -> BaseException | None:
    """pytest's own outcomes in a probe: a bare skip has no known fact behind it."""
    if isinstance(error, pytest.skip.Exception):
        return Unable(f"the probe skipped itself without a fact: {error}")
    return error


def _show(test_report: pytest.TestReport, item: pytest.Item, options: Options) -> None:
    """Make this side's own counters (``-x``) agree with the policy."""
    if test_report.when == "call" or test_report.failed or test_report.skipped:
        result = item.stash.get(RESULT, None)
        if result is None:
            return
        made = outcome(accept(result, options.policy, _now()[:10]), options.policy)
        test_report.outcome = made.value
        test_report.longrepr = None if made is Outcome.PASSED else (str(item.path), 0, result.verdict.value)


def _now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def pytest_configure(config: pytest.Config) -> None:
    """Read what the controller gave, and serve the fixtures."""
    given = pickle.loads(Path(os.environ[GIVEN]).read_bytes())  # noqa: S301 - our own file, in the run's private folder
    try:
        pitfalls.with_site(given.options["probes"])
    except pitfalls.PitfallError as error:
        raise pytest.UsageError(f"{given.options['probes']}: {error}") from None
    config.pluginmanager.register(Inner(given, Path(os.environ[EVENTS])), "gpucheck-inner")
    from gpucheck import fixtures

    config.pluginmanager.register(fixtures, "gpucheck-fixtures")
