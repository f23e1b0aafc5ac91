"""What the controller hands to the hermetic child pytest, as one pickled object in the run's private folder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from gpucheck.facts import Facts
    from gpucheck.owner import Owner
    from gpucheck.profile import Options


GIVEN, EVENTS = "GPUCHECK_GIVEN", "GPUCHECK_EVENTS"
"""The variables that name the file of that object, and the one for :mod:`gpucheck.events`."""


@dataclass(frozen=True, slots=True)
class Given:
    """Everything that the probes' side needs.

    ``ends`` is the run's deadline on the monotonic clock, in seconds; ``started_in`` the folder in which the operator
    started it, None where that folder is gone; ``rehearsal`` the id of the fault that is rehearsed.
    """

    run: str
    folder: Path
    owner: Owner
    options: Options
    facts: Facts
    record: Path
    ends: float
    started_in: Path | None
    rehearsal: str | None = None
