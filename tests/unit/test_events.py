"""What the probes' process tells the controller arrives as it was told, or is known to be nothing."""

from __future__ import annotations

import pytest

from gpucheck import events
from gpucheck.events import Event, Finished, Judged, Planned, Started, Went

EVENTS = [
    Planned([{"item": "a"}], [{"probe": "b", "why": "level deep"}], {"a": {"kind": "gpu"}}, {"a": "title"}, ["image"]),
    Started("a", "a-probe"),
    Went("a-probe", "64m"),
    Judged("a", {"verdict": "ok"}, "disk full"),
    Finished(stopped=True),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_round_trip(event: Event) -> None:
    """A line gives back the event that it was made of."""
    assert events.parse(events.to_line(event)) == event


@pytest.mark.parametrize("line", ["", "{", "[]", "{}", '{"Started": 1}', '{"Started": {"item": "a"}}', '{"Other": {}}'])
def test_a_line_that_is_no_event(line: str) -> None:
    """It raises ValueError and nothing else."""
    with pytest.raises(ValueError, match="no event"):
        events.parse(line)


def test_no_secret_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leg's name is no place for one either."""
    monkeypatch.setenv("MY_TOKEN", "s3cr3t-value-of-mine")
    assert "s3cr3t" not in events.to_line(Went("a-probe", "with s3cr3t-value-of-mine"))
