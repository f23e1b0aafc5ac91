"""The marker for one's own tests: ``@pytest.mark.gpucheck(gpus=2, memory_gb=40, capability="8.0", probes=[...])``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ALLOWED = ("gpus", "memory_gb", "capability", "probes")


def refusal(item: pytest.Item, rows: Sequence[dict[str, Any]]) -> str | None:
    """Why this machine does not have what the test's marker asks for; None when it does, or asks for nothing."""
    mark = item.get_closest_marker("gpucheck")
    if mark is None:
        return None
    unknown = [key for key in mark.kwargs if key not in ALLOWED]
    if unknown or mark.args:
        raise pytest.UsageError(
            f"{item.nodeid}: gpucheck({', '.join(unknown) or mark.args!r}): allowed are {', '.join(ALLOWED)}"
        )
    return _refused(mark.kwargs, rows)


def _refused(wanted: Mapping[str, Any], rows: Sequence[dict[str, Any]]) -> str | None:
    verdicts = {row["probe"]: row["verdict"] for row in rows}
    for probe in wanted.get("probes", ()):
        if verdicts.get(probe) not in ("ok", "degraded"):
            return f"gpucheck: {probe} is {verdicts.get(probe, 'not in this run')}"
    gpus = _gpus(rows)
    if "capability" in wanted:
        least = _version(wanted["capability"])
        gpus = [gpu for gpu in gpus if _version(gpu["capability"]) >= least]
    if "memory_gb" in wanted:
        gpus = [gpu for gpu in gpus if gpu["memory_bytes"] >= wanted["memory_gb"] * 1e9]
    count = wanted.get("gpus", 1 if {"capability", "memory_gb"} & set(wanted) else 0)
    if len(gpus) < count:
        limits = ", ".join(f"{key}={wanted[key]}" for key in ("capability", "memory_gb") if key in wanted)
        return f"gpucheck: {count} GPUs{' with ' + limits if limits else ''} wanted, {len(gpus)} usable"
    return None


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in str(text).split("."))


def _gpus(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The GPUs that ``cuda-available`` judged usable."""
    return [
        row["subject"]["details"]
        for row in rows
        if row["probe"] == "cuda-available" and row["verdict"] in ("ok", "degraded") and row["subject"]["kind"] == "gpu"
    ]
