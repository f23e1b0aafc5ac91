"""The hooks that the controller and xdist's workers share: the replay items, the gate, the marker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from gpucheck.marker import refusal
from gpucheck.replay.items import NODE, Collector, Item, by_name

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from gpucheck import render

STATUS = {"unable": ("unable", "U", "UNABLE"), "checker-error": ("checker-error", "C", "CHECKER-ERROR")}


class Replay:
    """The hooks that controller and xdist's workers share."""

    def __init__(self, rows: list[render.Row], gate: str = "", probes: Sequence[str] = ()) -> None:
        self.take(rows, gate, probes)

    def take(self, rows: list[render.Row], gate: str, probes: Sequence[str]) -> None:
        """What is to be replayed; ``gate`` says why the user's own tests are skipped, if they are.

        ``probes`` are the ids of all probes that there are.
        """
        self.rows = rows
        self.gate = gate
        self.probes = probes
        self.by_name = by_name(rows)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(
        self, session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
    ) -> Generator[None, object, object]:
        """Put the replay items in front when every other plugin has had its way with the order."""
        result = yield
        collector = Collector.from_parent(session, name=NODE, nodeid=NODE)
        replayed: list[pytest.Item] = []
        for name, row in self.by_name.items():
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
        if reason := refusal(item, self.rows, self.probes):
            pytest.skip(reason)

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: Any) -> tuple[str, str, str] | None:
        """``unable`` and ``checker-error`` under their own word, so that the last line is never green."""
        row = self.row_of(report.nodeid)
        if row is None or report.when != "call" or row["outcome"] != "failed":
            return None
        return STATUS.get(row["verdict"])

    def row_of(self, nodeid: str) -> render.Row | None:
        """The row that an item with this node id replays."""
        node, _, name = nodeid.partition("::")
        return self.by_name.get(name) if node == NODE else None
