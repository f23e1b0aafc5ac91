"""What an answer is about, as the facts of a machine name it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpucheck.verdict import Subject

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpucheck.facts import Facts

_OF_A_GPU = ("uuid", "pci", "index", "capability", "memory_bytes")


def of_kind(kind: str, facts: Facts) -> Subject:
    """The host, or what there is one of on it (an engine, volumes): known by the machine's id."""
    name = facts.known("machine.hostname") or "this host"
    return Subject(kind, facts.known("machine.id") or name, name if kind == "host" else kind)


def of_gpu(gpu: Mapping[str, Any]) -> Subject:
    """A GPU, as ``payload/nvml.py`` describes it."""
    return Subject("gpu", gpu["uuid"], f"GPU {gpu['index']} {gpu['name']}", {name: gpu.get(name) for name in _OF_A_GPU})


def named(kind: str, name: str) -> Subject:
    """Something that the operator named: an image, a dataset, a model."""
    return Subject(kind, name, name)
