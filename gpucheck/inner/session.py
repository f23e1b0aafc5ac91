"""What the hooks and fixtures of the probes' pytest share: what was given, the record, the line to the controller."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from gpucheck import events, rehearsal, subject
from gpucheck.facts import Facts, read
from gpucheck.levels import LEVELS
from gpucheck.record import Record

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pytest

    from gpucheck.events import Event
    from gpucheck.given import Given
    from gpucheck.verdict import Result, Subject

NAME = "gpucheck-session"
# A probe that takes one of these is about something that the operator named; unnamed, it is not there.
NAMED = ("image", "dataset", "model")
_CHANGING = ("disk.", "memory.", "shm.")


class Session:
    """One run of the probes, seen from their side."""

    def __init__(self, given: Given, told: Path) -> None:
        self.given = given
        self.told = told
        self.record = Record(given.record, given.run)
        self.change = rehearsal.change_of(given.rehearsal)
        self.level = LEVELS.index(given.options["level"])

    def tell(self, event: Event) -> None:
        """Tell the controller."""
        with self.told.open("a", encoding="utf-8") as stream:
            stream.write(events.to_line(event))

    def write(self, result: Result, item: str, spoken: Sequence[dict[str, Any]] = ()) -> None:
        """Write a result to the record, and tell the controller."""
        row = self.record.judged(result, self.given.options.policy, spoken)
        self.tell(events.Judged(item, row, self.record.error))

    def facts_now(self, names: tuple[str, ...]) -> Facts:
        """The run's facts, those of ``names`` that a failure may have changed read again."""
        changed = [name for name in names if name.startswith(_CHANGING)]
        fresh = read(changed) if changed else Facts()
        return self.given.facts.plus(fresh[name] for name in changed)

    def named(self, kind: str) -> tuple[str, ...]:
        """What the operator named of that kind."""
        given: tuple[str, ...] = self.given.options[kind]
        return given

    def subject(self, item: pytest.Item, kind: str) -> Subject:
        """What an item's answer is about; ``kind`` is its mark's."""
        params: dict[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
        if params.get("gpu"):
            return subject.of_gpu(params["gpu"])
        for named in NAMED:
            if named in params:
                return subject.named(named, params[named])
        return subject.of_kind(kind, self.given.facts)


def of(config: pytest.Config) -> Session:
    """The session of this pytest."""
    return cast("Session", config.pluginmanager.get_plugin(NAME))
