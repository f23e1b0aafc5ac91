"""What the child pytest was to do, and what it says that it did: no planned probe may end without a row.

Its exit status alone is not believed: a probe can end the process with any status at any moment.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpucheck.verdict import Result, Subject, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gpucheck.process import Reply

_WHERE_LINES = 12


@dataclass
class Account:
    """One run of the child pytest. ``plan`` and ``left_out`` are as in the record."""

    plan: list[dict[str, str]] = field(default_factory=list)
    left_out: list[dict[str, str]] = field(default_factory=list)
    titles: dict[str, str] = field(default_factory=dict)
    under_way: str | None = None
    uses: list[str] = field(default_factory=list)
    done: set[str] = field(default_factory=set)
    planned: bool = False
    finished: bool = False
    stopped: bool = False

    def hear(self, event: Mapping[str, Any]) -> None:
        """Take in an event, as :mod:`gpucheck.inner` tells it."""
        if "plan" in event:
            self.planned = True
            self.plan, self.left_out = event["plan"]["items"], event["plan"]["left_out"]
            self.titles, self.uses = event["titles"], event["uses"]
        elif "start" in event:
            self.under_way = event["start"]["item"]
        elif "result" in event:
            self.under_way = None
            self.done.add(event["item"])
        elif "finished" in event:
            self.finished, self.stopped = True, event["stopped"]

    @property
    def not_reached(self) -> list[dict[str, str]]:
        """The planned items that gave no row."""
        return [item for item in self.plan if item["item"] not in self.done]

    def unaccounted(self, reply: Reply, now: str) -> Iterator[Result]:
        """A row for each planned item without one, unless the child stopped on purpose (``-x``) and said so."""
        if self.finished and self.stopped:
            return
        for item in self.not_reached:
            yield self._row(item, reply, now)

    def _row(self, item: Mapping[str, str], reply: Reply, now: str) -> Result:
        began = item["item"] == self.under_way
        when = "in this probe" if began else "before this probe"
        return Result(
            probe=item["probe"],
            title=self.titles.get(item["probe"], ""),
            subject=Subject("host", item["subject"], "host"),
            verdict=Verdict.CHECKER_ERROR if began and not reply.hung else Verdict.UNABLE,
            lacking=(
                f"the probes' process ended {when}: {reply.ended}",
                *(reply.ended.where[:_WHERE_LINES] if began else ()),
            ),
            started=now,
        )
