"""What NVML says, read in a child: it can hang, and it can crash, and neither must cost the other facts."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from gpucheck.facts import aside
from gpucheck.facts.fact import Fact, Json, Unknown
from gpucheck.facts.reading import group

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gpucheck.facts.tree import Tree

_SOURCE: Final = "NVML"
_DETAILS: Final = ("driver_version", "cuda_version", "gpu_count", "gpus")
# What a GPU without a fabric, and a driver from before there were any, answer.
_NO_FABRIC: Final = (
    "NVML_ERROR_NOT_SUPPORTED",
    "NVML_ERROR_FUNCTION_NOT_FOUND",
    "NVML_ERROR_ARGUMENT_VERSION_MISMATCH",
)
# From the least to the most advanced; the GPU that lags decides, since a job needs them all.
_FABRIC_STATES: Final = ("Not Started", "In Progress", "Completed")


def _nvml(tree: Tree) -> Iterator[Fact]:
    try:
        found = aside.ask_payload(tree, sys.executable, "nvml", {"control_node": str(tree.path("/dev/nvidiactl"))})
    except Unknown as unknown:
        # That it hung or crashed *is* what NVML says here.
        status, _, text = unknown.why.partition(": ")
        found = {"status": status, "text": text}
    yield Fact("nvml.status", found["status"], _SOURCE)
    yield _of_control_node(found)
    for name in _DETAILS:
        yield _detail(f"nvml.{name}", name, found)
    yield _fabric_state(found)


def _of_control_node(found: Mapping[str, Json]) -> Fact:
    name, source = "nvml.control_node", "open /dev/nvidiactl"
    if "control_node" in found:
        return Fact(name, found["control_node"], source)
    return Fact(name, None, source, _refusal(found))


def _refusal(found: Mapping[str, Json]) -> str:
    return f"{found['status']}: {found['text']}" if found["text"] else str(found["status"])


def _detail(name: str, key: str, found: Mapping[str, Json]) -> Fact:
    if found["status"] != "ok":
        return Fact(name, None, _SOURCE, _refusal(found))
    why = found["unknown"].get(key)
    return Fact(name, None if why else found[key], _SOURCE, why)


def _fabric_state(found: Mapping[str, Json]) -> Fact:
    """``Completed``, ``In Progress`` or ``Not Started`` by the GPU that lags; None where no GPU has a fabric."""
    gpus = _detail("fabric.state", "gpus", found)
    if gpus.why is not None:
        return gpus
    states = [gpu["fabric"]["state"] for gpu in gpus.value if gpu["fabric"]]
    state = next((state for state in _FABRIC_STATES if state in states), None)
    untold = [str(gpu["index"]) for gpu in gpus.value if _keeps_back(gpu["unknown"])]
    if state is None and untold:
        return Fact("fabric.state", None, _SOURCE, f"not told for GPU {', '.join(untold)}")
    return Fact("fabric.state", state, _SOURCE)


def _keeps_back(unknown: Mapping[str, str]) -> bool:
    return "handle" in unknown or unknown.get("fabric", "") not in ("", *_NO_FABRIC)


_MADE: Final = ("nvml.status", "nvml.control_node", *(f"nvml.{name}" for name in _DETAILS), "fabric.state")

READERS: Final = group({}, {_MADE: _nvml})
