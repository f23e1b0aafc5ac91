"""A probe's mark: ``pytestmark = pytest.mark.probe(subject=…, level=…)``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from gpucheck import catalogue
from gpucheck.levels import DISTURBANCE, LEVELS

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Mark:
    """What a probe is about, what it costs, what it must have tried."""

    subject: str
    level: str = "default"
    essential: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    disturbs: str = "none"
    deadline_s: float = 60.0
    cost_s: float = 1.0

    @property
    def order(self) -> tuple[int, int, float]:
        """Its place in a run: cheap before costly before disturbing."""
        return DISTURBANCE.index(self.disturbs), LEVELS.index(self.level), self.cost_s


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


def probe_of(item: pytest.Item) -> str:
    """The id of the probe."""
    path: Path = item.path
    return catalogue.id_of(path)


def title_of(item: pytest.Item) -> str:
    """The good state that the probe shows."""
    module = getattr(item, "module", None)
    return catalogue.title_of((module and module.__doc__) or "")
