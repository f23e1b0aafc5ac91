"""The marker for one's own tests: ``@pytest.mark.gpucheck(gpus=2, memory_gb=40, capability="8.0", probes=[...])``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

GOOD = ("ok", "degraded")


class WrongMarkerError(ValueError):
    """A marker that cannot be read; the text names the value and what is allowed."""


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _size(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0


def _capability(value: Any) -> bool:
    return re.fullmatch(r"\d+\.\d+", str(value)) is not None


def _ids(value: Any) -> bool:
    return isinstance(value, (list, tuple, set, frozenset)) and all(isinstance(one, str) for one in value)


ALLOWED: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "gpus": (_count, "a number of GPUs, 0 or more"),
    "memory_gb": (_size, "gigabytes of one GPU, more than 0"),
    "capability": (_capability, 'the least compute capability, such as "8.0"'),
    "probes": (_ids, "a list of probe ids"),
}


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a test needs of this machine. ``capability`` is the least, as numbers."""

    gpus: int
    memory_bytes: float
    capability: tuple[int, ...]
    probes: tuple[str, ...]
    limits: str

    @classmethod
    def parse(cls, args: Sequence[Any], kwargs: Mapping[str, Any], probes: Collection[str]) -> Wanted:
        """A marker's arguments, held against the ``probes`` that there are. Raises WrongMarkerError."""
        if args:
            raise WrongMarkerError(f"gpucheck{tuple(args)!r}: only named arguments: {', '.join(ALLOWED)}")
        for name, value in kwargs.items():
            if name not in ALLOWED:
                raise WrongMarkerError(f"gpucheck({name}=…): allowed are {', '.join(ALLOWED)}")
            fits, allowed = ALLOWED[name]
            if not fits(value):
                raise WrongMarkerError(f"gpucheck({name}={value!r}): allowed is {allowed}")
        if unknown := [probe for probe in kwargs.get("probes", ()) if probe not in probes]:
            raise WrongMarkerError(f"gpucheck(probes=…): no probe is called {', '.join(unknown)}; see `gpucheck list`")
        limits = {name: kwargs[name] for name in ("capability", "memory_gb") if name in kwargs}
        return cls(
            gpus=kwargs.get("gpus", 1 if limits else 0),
            memory_bytes=kwargs.get("memory_gb", 0) * 1e9,
            capability=_version(kwargs.get("capability", "0.0")),
            probes=tuple(kwargs.get("probes", ())),
            limits="".join(f", {name}={value}" for name, value in limits.items()),
        )


def refusal(item: pytest.Item, rows: Sequence[dict[str, Any]], probes: Collection[str]) -> str | None:
    """Why this machine does not have what the test's marker asks for; None when it does, or asks for nothing.

    ``probes`` are the ids that there are: one that is mistyped would skip the test for ever.

    A marker that cannot be read fails the test in one line: raised as a usage error it would end an xdist worker.
    """
    mark = item.get_closest_marker("gpucheck")
    if mark is None:
        return None
    try:
        wanted = Wanted.parse(mark.args, mark.kwargs, probes)
    except WrongMarkerError as error:
        pytest.fail(f"{item.nodeid}: {error}", pytrace=False)
    return refused(wanted, rows)


def refused(wanted: Wanted, rows: Sequence[dict[str, Any]]) -> str | None:
    """Why these rows deny what is wanted; None when they grant it. A probe of several subjects must be good on each."""
    for probe in wanted.probes:
        verdicts = [row["verdict"] for row in rows if row["probe"] == probe] or ["not in this run"]
        if wrong := [verdict for verdict in verdicts if verdict not in GOOD]:
            return f"gpucheck: {probe} is {wrong[0]}"
    gpus = [gpu for gpu in _usable(rows) if _has(gpu, wanted)]
    if len(gpus) >= wanted.gpus:
        return None
    return f"gpucheck: gpus={wanted.gpus}{wanted.limits} wanted, {len(gpus)} usable"


def _has(gpu: Mapping[str, Any], wanted: Wanted) -> bool:
    # What NVML does not tell of a GPU is not granted.
    capable = _version(gpu["capability"] or "0.0") >= wanted.capability
    return capable and (gpu["memory_bytes"] or 0) >= wanted.memory_bytes


def _version(text: Any) -> tuple[int, ...]:
    return tuple(int(part) for part in str(text).split("."))


def _usable(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The GPUs that ``cuda-available`` judged usable."""
    return [
        row["subject"]["details"]
        for row in rows
        if row["probe"] == "cuda-available" and row["verdict"] in GOOD and row["subject"]["kind"] == "gpu"
    ]
