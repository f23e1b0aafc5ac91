"""Replay items: a row of the record as a test of the user's session.

A replay item is no test function, so no fixture applies to it. What the user's hooks do to it changes their report,
never the record nor our exit status.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from gpucheck import render

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from _pytest._io import TerminalWriter

NODE = "gpucheck"


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


class RowFailed(Exception):
    """The replay of a row whose outcome is failed."""


class Item(pytest.Item):
    """One row of the record."""

    row: render.Row

    def runtest(self) -> None:
        """Replay the outcome."""
        if self.row["outcome"] == "failed":
            raise RowFailed
        if self.row["outcome"] == "skipped":
            pytest.skip(_reason(self.row))

    def repr_failure(self, excinfo: Any, style: Any = None) -> Any:
        """The row's words instead of a traceback."""
        return Longrepr(self.row) if isinstance(excinfo.value, RowFailed) else super().repr_failure(excinfo, style)

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


def by_name(rows: Sequence[render.Row]) -> dict[str, render.Row]:
    """The rows by their items' names: probe and subject, numbered where a probe has several rows on one subject."""
    found: dict[str, render.Row] = {}
    for row in rows:
        name, number = _name(row), 2
        while name in found:
            name, number = f"{_name(row)[:-1]}-{number}]", number + 1
        found[name] = row
    return found
