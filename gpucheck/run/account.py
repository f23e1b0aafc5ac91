"""What the child pytest was to do, and what it says that it did: no planned probe may end without a row.

Its exit status alone is not believed: a probe can end the process with any status at any moment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpucheck import record
from gpucheck.events import Event, Finished, Judged, Planned, Started
from gpucheck.verdict import Result, Subject, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpucheck.process import Reply

_WHERE_LINES = 12


class Account:
    """One run of the child pytest; ``plan`` is None until it has one."""

    def __init__(self) -> None:
        self.plan: Planned | None = None
        self.finished: Finished | None = None
        self._under_way: str | None = None
        self._done: set[str] = set()

    def hear(self, event: Event) -> None:
        """Take in an event."""
        match event:
            case Planned():
                self.plan = event
            case Started():
                self._under_way = event.item
            case Judged():
                self._under_way = None
                self._done.add(event.item)
            case Finished():
                self.finished = event

    @property
    def items(self) -> list[dict[str, str]]:
        """The planned items, as the record has them."""
        return self.plan.items if self.plan else []

    @property
    def not_reached(self) -> list[dict[str, str]]:
        """The planned items that gave no row."""
        return [item for item in self.items if item["item"] not in self._done]

    def unaccounted(self, reply: Reply) -> Iterator[Result]:
        """A row for each planned item without one, unless the child stopped on purpose (``-x``) and said so."""
        if self.plan is None or (self.finished and self.finished.stopped):
            return
        for item in self.not_reached:
            yield self._row(self.plan, item["probe"], item["item"], reply)

    def _row(self, plan: Planned, probe: str, item: str, reply: Reply) -> Result:
        began = item == self._under_way
        when = "in this probe" if began else "before this probe"
        return Result(
            probe=probe,
            title=plan.titles.get(probe, ""),
            subject=Subject(**plan.subjects[item]),
            verdict=Verdict.CHECKER_ERROR if began and not reply.hung else Verdict.UNABLE,
            lacking=(
                f"the probes' process ended {when}: {reply.ended}",
                *(reply.ended.where[:_WHERE_LINES] if began else ()),
            ),
            started=record.now(),
        )
