"""Why GPUs that should be here are not, or are fewer, from facts alone: what `gpus-present` finds. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpucheck.judgement.driver_words import DENIED, LOST, MISMATCH, NO_PERMISSION, OPEN_SOURCE
from gpucheck.judgement.presence import told
from gpucheck.verdict import Unable, bad

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gpucheck.facts import Facts
    from gpucheck.judgement.presence import Seen
    from gpucheck.verdict import Finding


def findings(facts: Facts, seen: Seen) -> Iterator[Finding]:
    """What is wrong, from the first question that finds something: a driver that holds nothing explains a low count.

    Raises Unable where a question stays open.
    """
    if not seen.anything:
        yield missing(seen)
        return
    for question in (of_drivers, of_nvml, of_each, of_count):
        found = False
        for finding in question(facts, seen):
            found = True
            yield finding
        if found:
            return


def missing(seen: Seen) -> Finding:
    """Nothing is there, and somebody expects something."""
    if seen.reserved:
        addresses = ", ".join(gpu["address"] for gpu in seen.reserved)
        return bad("vfio-bound", f"{addresses} kept for a virtual machine; expected by {seen.who}", who=seen.who)
    if seen.in_container and seen.pci:
        shown = f"the host has {len(seen.pci)} GPUs on PCI, this container has no /dev/nvidia<N>"
        return bad("gpu-not-in-container", shown, f"expected by {seen.who}", who=seen.who)
    return bad("gpu-missing", f"no GPU on any bus; expected by {seen.who}", who=seen.who)


def of_drivers(facts: Facts, seen: Seen) -> Iterator[Finding]:
    """GPUs that another kernel driver holds, or none. In a container that is the host's business."""
    if seen.in_container:
        return
    if taken := [gpu for gpu in seen.pci if gpu["driver"] in OPEN_SOURCE]:
        held = ", ".join(f"{gpu['address']} ({gpu['driver']})" for gpu in taken)
        yield bad("nouveau-bound", f"held by another driver: {held}", devices=_addresses(taken))
    if unbound := [gpu for gpu in seen.pci if gpu["driver"] == "none"]:
        modules = facts["driver.modules"]
        if modules.why is not None:
            raise Unable(f"whether the driver is loaded: {modules.why}")
        if "nvidia" not in modules.value:
            yield _unloaded(facts, unbound)


def _unloaded(facts: Facts, unbound: list[Mapping[str, Any]]) -> Finding:
    """No module, no driver on the device: somebody installed it and it did not load, or nobody did."""
    installed = facts["driver.installed"]
    if installed.why is not None:
        raise Unable(f"whether the driver is installed: {installed.why}")
    pitfall = "driver-not-loaded" if installed.value else "driver-missing"
    secure = ["Secure Boot is on: an unsigned module is refused"] if facts.known("machine.secure_boot") else []
    details = (f"no kernel driver: {_addresses(unbound, ', ')}", f"installed: {installed.source}", *secure)
    return bad(pitfall, *details, devices=_addresses(unbound), kernel=told(facts, "machine.kernel"))


def of_nvml(facts: Facts, seen: Seen) -> Iterator[Finding]:
    """What NVML's refusal means for presence. Raises Unable when it leaves the question open."""
    if seen.nvml is not None or seen.integrated:
        return
    status, control = facts.known("nvml.status"), facts.known("nvml.control_node")
    if status == MISMATCH:
        module, library = told(facts, "driver.module_version"), told(facts, "driver.library_version")
        versions = f"kernel module {module}, libraries {library}"
        yield bad("driver-library-mismatch", f"NVML: {status}", versions, module=module, library=library)
    elif status in LOST:
        yield bad("gpu-lost", f"NVML: {status}")
    elif status == NO_PERMISSION or control in DENIED:
        yield bad("gpu-hidden-device", f"NVML: {status}; opening /dev/nvidiactl: {control}")
    else:
        raise Unable(f"the list of GPUs: NVML: {facts['nvml.gpus'].why}")


def of_each(_facts: Facts, seen: Seen) -> Iterator[Finding]:
    """GPUs that NVML counts and does not open, or whose device nodes are not there."""
    for gpu in seen.nvml or ():
        why, node = gpu["unknown"].get("handle"), f"/dev/nvidia{gpu['minor']}"
        if why is not None:
            pitfall = "gpu-lost" if why in LOST else "gpu-hidden-device"
            yield bad(pitfall, f"NVML does not open GPU {gpu['index']}: {why}", index=gpu["index"])
        elif gpu["minor"] is not None and node not in seen.nodes and not seen.in_wsl:
            line = f"NVML lists GPU {gpu['index']}, and there is no {node}"
            yield bad("gpu-hidden-device", line, index=gpu["index"])


def of_count(_facts: Facts, seen: Seen) -> Iterator[Finding]:
    """Fewer than somebody says, or none at all. Raises Unable in a job that names no GPUs."""
    usable = seen.usable or 0
    short = [f"{who}: {says}" for who, says in seen.claims() if says > usable]
    if not usable and seen.in_job and not seen.counted:
        raise Unable("GPUs: NVML lists none, and this job does not say that it was given any")
    if short or not usable:
        pitfall = "gpu-partial" if usable or seen.pci else "gpu-missing"
        expected = max((says for _, says in seen.claims()), default=1)
        yield bad(pitfall, f"{usable} can be used", *short, have=usable, expected=expected, who=seen.who)


def _addresses(gpus: list[Mapping[str, Any]], between: str = " ") -> str:
    return between.join(gpu["address"] for gpu in gpus)
