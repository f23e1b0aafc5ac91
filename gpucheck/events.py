"""What the probes' process tells the controller while it runs: a JSON document a line, appended to a file."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from gpucheck.redact import redacted


@dataclass(frozen=True, slots=True)
class Planned:
    """The plan, as the record has it; by item the subject's fields; by probe its title; the named things it judges."""

    items: list[dict[str, str]]
    left_out: list[dict[str, str]]
    subjects: dict[str, dict[str, Any]]
    titles: dict[str, str]
    uses: list[str]


@dataclass(frozen=True, slots=True)
class Started:
    """A probe begins."""

    item: str
    probe: str


@dataclass(frozen=True, slots=True)
class Went:
    """How far a probe is: a leg that has just ended, or a line of its payload."""

    probe: str
    text: str


@dataclass(frozen=True, slots=True)
class Judged:
    """A result, as the record has it; ``record_error`` where the record did not take it."""

    item: str
    row: dict[str, Any]
    record_error: str | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    """The end was reached, which no exit status proves; ``stopped``: before the last probe, on purpose (``-x``)."""

    stopped: bool


Event = Planned | Started | Went | Judged | Finished
_KINDS: dict[str, type[Event]] = {kind.__name__: kind for kind in (Planned, Started, Went, Judged, Finished)}


def to_line(event: Event) -> str:
    """The event as a line, without secrets."""
    return json.dumps({type(event).__name__: redacted(asdict(event))}, default=str) + "\n"


def parse(line: str) -> Event:
    """The event that a line holds. Raises ValueError for a line that holds none."""
    try:
        ((kind, fields),) = json.loads(line).items()
        return _KINDS[kind](**fields)
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"no event: {type(error).__name__}: {error}") from None
