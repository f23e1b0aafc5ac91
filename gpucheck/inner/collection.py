"""Which probes run on which subjects, in which order: the plan."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpucheck import catalogue, subject
from gpucheck.events import Planned
from gpucheck.inner.mark import Mark, mark_of, probe_of, title_of
from gpucheck.inner.session import NAMED
from gpucheck.levels import LEVELS
from gpucheck.record import now
from gpucheck.rehearsal.faults import FAULTS
from gpucheck.verdict import Result, Verdict, accept

if TYPE_CHECKING:
    from gpucheck.inner.session import Session

# pytest-timeout ends the process and so every later probe; it is there for the day on which our deadlines fail.
BELT_S = 30.0


class Collection:
    """The hooks of collection."""

    def __init__(self, session: Session) -> None:
        self.session = session

    @staticmethod
    def pytest_itemcollected(item: pytest.Item) -> None:
        """``-k`` finds a probe by its id too."""
        item.extra_keyword_matches.add(probe_of(item))

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """One item a subject."""
        if "gpu" in metafunc.fixturenames:
            gpus = self.session.given.facts.known("nvml.gpus") or [None]
            metafunc.parametrize("gpu", gpus, ids=[g["uuid"] if g else "none" for g in gpus], indirect=True)
        for kind in NAMED:
            if kind in metafunc.fixturenames and (named := self.session.named(kind)):
                metafunc.parametrize(kind, named, ids=list(named), indirect=True)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Keep what belongs to the level, cheap before costly before disturbing, and write the plan."""
        marks = {item: mark_of(item) for item in items if self._is_there(item)}
        left_out = {item: why for item, mark in marks.items() if (why := self._left_out(item, mark))}
        chosen = sorted((item for item in marks if item not in left_out), key=lambda item: marks[item].order)
        config.hook.pytest_deselected(items=list(left_out))
        for item in chosen:
            item.add_marker(pytest.mark.timeout(marks[item].deadline_s + BELT_S, method="thread"))
        items[:] = chosen
        subjects = {item.nodeid: self.session.subject(item, marks[item].subject) for item in items}
        plan = [{"probe": probe_of(i), "subject": subjects[i.nodeid].id, "item": i.nodeid} for i in items]
        out = [{"probe": probe_of(item), "why": why} for item, why in left_out.items()]
        row = self.session.record.append("plan", {"items": plan, "left_out": out})
        told = {node: asdict(about) for node, about in subjects.items()}
        titles = {probe_of(item): title_of(item) for item in items}
        self.session.tell(Planned(row["items"], row["left_out"], told, titles, _named_by(items)))

    def _is_there(self, item: pytest.Item) -> bool:
        """Whether what an item is about was named, if that is for the operator to do."""
        return all(self.session.named(kind) for kind in _named_by([item]))

    def _left_out(self, item: pytest.Item, mark: Mark) -> str:
        """Why an item has no place in this run; empty where it has one."""
        fault = self.session.given.rehearsal
        if fault and FAULTS[fault].probe != probe_of(item):
            return "rehearsal of another"
        return f"level {mark.level}" if LEVELS.index(mark.level) > self.session.level else ""

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file of probes that skips itself or breaks while it is imported leaves a row, not a gap."""
        if report.passed:
            return
        text = report.longreprtext.strip().splitlines()
        why = report.longrepr[2] if isinstance(report.longrepr, tuple) else text[-1] if text else "no reason given"
        given = self.session.given
        result = Result(
            probe=catalogue.id_of(Path(report.fspath or report.nodeid)),
            title="",
            subject=subject.of_kind("host", given.facts),
            verdict=Verdict.UNABLE if report.skipped else Verdict.CHECKER_ERROR,
            lacking=(f"its file could not be collected: {why}",),
            started=now(),
        )
        self.session.write(accept(result, given.options.policy, now()[:10]), report.nodeid)


def _named_by(items: list[pytest.Item]) -> list[str]:
    """The kinds of named things that these items take."""
    return [kind for kind in NAMED if any(kind in getattr(item, "fixturenames", ()) for item in items)]
