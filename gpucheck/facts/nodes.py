"""What the NVIDIA kernel driver shows to user space: device nodes and ``/proc/driver/nvidia``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from gpucheck.facts import aside
from gpucheck.facts.reading import Reading, group

if TYPE_CHECKING:
    from gpucheck.facts.fact import Json
    from gpucheck.facts.tree import Tree

PROC_GPUS: Final = "/proc/driver/nvidia/gpus"
_UVM: Final = "/dev/nvidia-uvm"
_NODE: Final = re.compile(r"nvidia(\d+)")
_CONTROL_NODE: Final = re.compile(
    r"nvidia(?:ctl|-uvm|-uvm-tools|-modeset|-nvlink|-nvswitch(?:ctl|\d+))|dxg|nvhost-gpu|nvmap"
)
_CAPABILITY_FOLDERS: Final = ("/dev/nvidia-caps", "/dev/nvidia-caps-imex-channels")
_FIELDS: Final = {"Model": "model", "GPU UUID": "uuid", "Device Minor": "minor"}


def gpu_nodes(tree: Tree) -> list[str]:
    """``/dev/nvidia<N>`` in the order of N: one for each GPU that may be opened here."""
    numbers = sorted(int(found[1]) for name in tree.names("/dev") if (found := _NODE.fullmatch(name)))
    return [path for number in numbers if tree.is_device(path := f"/dev/nvidia{number}")]


def _nodes(tree: Tree) -> Reading:
    return Reading(gpu_nodes(tree), "/dev/nvidia[0-9]*")


def _control_nodes(tree: Tree) -> Reading:
    paths = [f"/dev/{name}" for name in tree.names("/dev") if _CONTROL_NODE.fullmatch(name)]
    paths += [f"{folder}/{name}" for folder in _CAPABILITY_FOLDERS for name in tree.names(folder)]
    return Reading([path for path in paths if tree.is_device(path)], "/dev")


def _proc(tree: Tree) -> Reading:
    addresses = tree.names(PROC_GPUS)
    if not addresses:
        return Reading([], PROC_GPUS)
    # In a child: while the driver starts a GPU that hangs, reading these files waits with it.
    texts = aside.files(tree, [f"{PROC_GPUS}/{address}/information" for address in addresses])
    gpus = [_described(address, text) for address, text in zip(addresses, texts.values(), strict=True)]
    return Reading(gpus, f"{PROC_GPUS}/*/information")


def _described(address: str, text: str | None) -> dict[str, Json]:
    described: dict[str, Json] = {"address": address, "model": None, "uuid": None, "minor": None}
    for line in (text or "").splitlines():
        name, _, value = line.partition(":")
        field = _FIELDS.get(name.strip())
        if field and "?" not in value:
            described[field] = int(value) if field == "minor" else value.strip()
    return described


def _uvm_node(tree: Tree) -> Reading:
    return Reading(tree.is_device(_UVM), _UVM)


READERS: Final = group(
    {"gpu.nodes": _nodes, "gpu.control_nodes": _control_nodes, "gpu.proc": _proc, "uvm.node": _uvm_node}
)
