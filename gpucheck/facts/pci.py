"""NVIDIA devices as the buses show them, whether or not a driver knows them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from gpucheck.facts.fact import Json, Unknown
from gpucheck.facts.reading import Reading, group

if TYPE_CHECKING:
    from gpucheck.facts.tree import Tree

PCI: Final = "/sys/bus/pci/devices"
PLATFORM: Final = "/sys/bus/platform/devices"
_NVIDIA: Final = "0x10de"
# PCI base class and subclass. A GPU is a VGA or a 3D controller; the card's sound (0403) and USB (0c03) are none, and a
# bridge of class 0680 from this vendor is an NVSwitch.
_GPU_CLASSES: Final = ("0300", "0302")
_SWITCH_CLASS: Final = "0680"
# Jetson's GPUs sit on no bus that lists itself: a platform device named by its address, told by its device tree.
_INTEGRATED_NAME: Final = re.compile(r"[0-9a-f]+\.(?:gpu|g[a-z]\d{2}b)")


def devices(tree: Tree) -> list[dict[str, str]]:
    """Every PCI device: {address, vendor, device, class (four digits), driver, physfn}. Raises Unknown, OSError."""
    return tree.once(_devices)


def _devices(tree: Tree) -> list[dict[str, str]]:
    if not tree.exists("/sys/bus"):
        raise Unknown("/sys/bus", "not there: sysfs is not mounted")
    return [_device(tree, address) for address in tree.names(PCI)]


def _device(tree: Tree, address: str) -> dict[str, str]:
    folder = f"{PCI}/{address}"
    return {
        "address": address,
        "vendor": tree.text(f"{folder}/vendor").strip(),
        "device": tree.text(f"{folder}/device").strip(),
        "class": tree.text(f"{folder}/class").strip()[2:6],
        "driver": tree.link_name(f"{folder}/driver") or "none",
        "physfn": tree.link_name(f"{folder}/physfn") or "",
    }


def gpus(tree: Tree) -> list[dict[str, Json]]:
    """The GPUs: {address, device, class, driver}, with ``integrated`` for Jetson's and ``virtual_functions`` (SR-IOV).

    A virtual function beside its physical one belongs to it and is not one GPU more; alone, in a guest, it is a GPU.
    """
    found = [d for d in devices(tree) if d["vendor"] == _NVIDIA and d["class"] in _GPU_CLASSES]
    addresses = {device["address"] for device in found}
    own = [device for device in found if device["physfn"] not in addresses]
    return [*(_gpu(device, found) for device in own), *tree.once(_integrated)]


def _gpu(device: dict[str, str], found: list[dict[str, str]]) -> dict[str, Json]:
    gpu: dict[str, Json] = {name: device[name] for name in ("address", "device", "class", "driver")}
    functions = sum(other["physfn"] == device["address"] for other in found)
    return {**gpu, "virtual_functions": functions} if functions else gpu


def _integrated(tree: Tree) -> list[dict[str, Json]]:
    named = [name for name in tree.names(PLATFORM) if _INTEGRATED_NAME.fullmatch(name)]
    found = []
    for name in named:
        compatible = (tree.text_if_any(f"{PLATFORM}/{name}/of_node/compatible") or "").split("\0")
        chip = next((text for text in compatible if text.startswith("nvidia,")), None)
        if chip:
            driver = tree.link_name(f"{PLATFORM}/{name}/driver") or "none"
            found.append({"address": name, "device": chip, "class": "platform", "driver": driver, "integrated": True})
    return found


def switches(tree: Tree) -> list[str]:
    """The addresses of NVSwitches. Raises Unknown, OSError."""
    return [d["address"] for d in devices(tree) if d["vendor"] == _NVIDIA and d["class"] == _SWITCH_CLASS]


def _pci(tree: Tree) -> Reading:
    return Reading(gpus(tree), PCI)


def _count(tree: Tree) -> Reading:
    return Reading(len(gpus(tree)), PCI)


def _drivers(tree: Tree) -> Reading:
    return Reading(sorted({gpu["driver"] for gpu in gpus(tree)}), f"{PCI}/*/driver")


def _switches(tree: Tree) -> Reading:
    return Reading(len(switches(tree)), f"{PCI}: NVIDIA devices of class {_SWITCH_CLASS}")


READERS: Final = group(
    {"gpu.pci": _pci, "gpu.pci_count": _count, "gpu.pci_drivers": _drivers, "fabric.switches": _switches}
)
