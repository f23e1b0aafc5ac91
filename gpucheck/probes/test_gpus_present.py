"""As many NVIDIA GPUs are present as are expected.

Looks at: PCI (and Jetson's platform bus), the kernel driver of each GPU, loaded modules, /dev/nvidia*, the driver's own
/proc, NVML, and everybody who expects GPUs here: a loaded module, an installed driver, the container engine's nvidia
runtime or CDI file, NVSwitches, the scheduler, the profile, the last record. All of them side by side.
Why it matters: a GPU that fell off the bus, or a driver that did not load after a kernel update, leaves a machine on
which everything still "works", on the CPU or on seven GPUs of eight.
Does not apply when: there is no NVIDIA device and nothing expects one, or the GPUs were handed to nobody here
(vfio-pci, NVIDIA_VISIBLE_DEVICES=void, a device cgroup).
Cost and disturbance: reads facts that are read anyway; disturbs nothing.
If it is bad: look for the GPU on PCI, then for the kernel's own words about it (dmesg: NVRM, Xid).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from gpucheck.verdict import NotApplicable, Unable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpucheck.facts import Facts

pytestmark = pytest.mark.probe(subject="host", level="quick", disturbs="none", deadline_s=10, cost_s=0.0)

EVERY_GPU = "every GPU"
# Kernel drivers that keep a device for somebody else: a virtual machine, nobody.
RESERVED = ("vfio-pci", "pci-stub", "xen-pciback", "pciback")
OPEN_SOURCE = ("nouveau", "nova_core", "nova-core", "nova")
LOST = ("NVML_ERROR_GPU_IS_LOST", "NVML_ERROR_RESET_REQUIRED")
DENIED = ("EPERM", "EACCES")


def test_gpus_present(report: Any, host: Facts) -> None:
    """The probe."""
    seen = look(host)
    for line in seen.lines(host):
        report.saw(line)
    rule_out(seen, host)
    if not seen.anything:
        missing(report, seen)
    elif not (drivers_are_wrong(report, seen, host) or nvml_fails(report, seen, host)):
        count(report, seen)


@dataclass(frozen=True, slots=True)
class Seen:
    """What each source shows. ``pci`` without those kept for somebody else; ``nvml`` is None when it gave no list."""

    pci: list[dict[str, Any]]
    reserved: list[dict[str, Any]]
    nodes: list[str]
    proc: list[str]
    nvml: list[dict[str, Any]] | None
    expected: list[dict[str, Any]]
    container: bool
    in_job: bool
    wsl: bool

    @property
    def anything(self) -> bool:
        """Whether any source shows a GPU. In a container PCI shows the host's, which says nothing of what was given."""
        return bool(self.nodes or self.nvml or (not self.container and (self.pci or self.proc)))

    @property
    def usable(self) -> int:
        """How many GPUs NVML opens; slices of GPUs count where a scheduler may have counted them."""
        opened = [gpu for gpu in self.nvml or [] if "handle" not in gpu["unknown"]]
        return max(len(opened), sum(len(gpu["mig_devices"] or []) for gpu in opened))

    @property
    def who(self) -> str:
        """Who expects GPUs, in words."""
        return ", ".join(e["who"] if e["count"] is None else f"{e['who']}: {e['count']}" for e in self.expected)

    @property
    def counted(self) -> bool:
        """Whether somebody who expects GPUs says how many: an operator, a scheduler."""
        return any(e["count"] for e in self.expected)

    def claims(self) -> Iterator[tuple[str, int]]:
        """Everybody who says how many GPUs there are; the kernel only where nobody hands out a part of them."""
        yield from ((e["who"], e["count"]) for e in self.expected if e["count"] is not None)
        if not self.container and not self.in_job:
            yield "PCI", len(self.pci)
            yield "/proc/driver/nvidia/gpus", len(self.proc)

    def lines(self, host: Facts) -> Iterator[str]:
        """The sources side by side, a line each."""
        bound = ", ".join(f"{gpu['address']} ({gpu['driver']})" for gpu in [*self.pci, *self.reserved])
        yield f"buses: {len(self.pci) + len(self.reserved)} GPUs{': ' * bool(bound)}{bound}"
        yield f"device nodes: {', '.join(self.nodes) or 'none'}"
        modules = host.known("driver.modules")
        yield f"kernel modules: {', '.join(modules) if modules else told(host, 'driver.modules')}"
        yield f"driver: module {told(host, 'driver.module_version')}, library {told(host, 'driver.library_version')}"
        yield f"NVML: {told(host, 'nvml.status')}{'' if self.nvml is None else f', {len(self.nvml)} GPUs'}"
        yield f"expected by: {self.who or told(host, 'gpu.expected')}"


def told(host: Facts, name: str) -> str:
    """A fact in words: its value, "none", or why it is unknown."""
    fact = host[name]
    return f"unknown ({fact.why})" if fact.why is not None else str(fact.value or "none")


def look(host: Facts) -> Seen:
    """Gather the sources. Raises Unable when what decides could not be read."""
    nvml = host.known("nvml.gpus")
    decisive = ["gpu.nodes", *([] if nvml else ["gpu.pci", "gpu.hidden_by"])]
    unread = [f"{name}: {host[name].why} ({host[name].source})" for name in decisive if host[name].why is not None]
    if unread:
        raise Unable(*unread)
    pci = host.known("gpu.pci") or []
    return Seen(
        pci=[gpu for gpu in pci if gpu["driver"] not in RESERVED],
        reserved=[gpu for gpu in pci if gpu["driver"] in RESERVED],
        nodes=host.known("gpu.nodes"),
        proc=[gpu["address"] for gpu in host.known("gpu.proc") or []],
        nvml=nvml,
        expected=host.known("gpu.expected") or [],
        container=host.known("machine.container") not in ("none", None),
        in_job=host.known("scheduler.job") is not None,
        wsl=host.known("machine.wsl") is True,
    )


def rule_out(seen: Seen, host: Facts) -> None:
    """Raise NotApplicable when the GPUs were handed to nobody, or there are none and nothing expects one."""
    hidden = next((by for by in host.known("gpu.hidden_by") or [] if by["what"] == EVERY_GPU), None)
    if hidden and not seen.counted:
        raise NotApplicable("gpu.hidden_by", "every GPU is hidden from here", hidden["source"])
    if seen.reserved and not seen.anything and not seen.counted:
        drivers = ", ".join(sorted({gpu["driver"] for gpu in seen.reserved}))
        raise NotApplicable("gpu.pci_drivers", "every GPU is kept for a virtual machine", f"bound to {drivers}")
    if seen.anything or seen.expected:
        return
    expected = host["gpu.expected"]
    if expected.why is not None:
        raise Unable(f"whether anybody expects a GPU: {expected.why}")
    device = "no GPU was handed into this container" if seen.pci else "no NVIDIA device"
    raise NotApplicable("gpu.expected", f"{device}, and nothing expects one", expected.source)


def missing(report: Any, seen: Seen) -> None:
    """Nothing is there, and somebody expects something."""
    if seen.reserved:
        addresses = ", ".join(gpu["address"] for gpu in seen.reserved)
        report.bad("vfio-bound", f"{addresses} kept for a virtual machine; expected by {seen.who}", who=seen.who)
    elif seen.container and seen.pci:
        shown = f"the host has {len(seen.pci)} GPUs on PCI, this container has no /dev/nvidia<N>"
        report.bad("gpu-not-in-container", shown, f"expected by {seen.who}", who=seen.who)
    else:
        report.bad("gpu-missing", f"no GPU on any bus; expected by {seen.who}", who=seen.who)


def drivers_are_wrong(report: Any, seen: Seen, host: Facts) -> bool:
    """Report GPUs that another kernel driver holds, or none. In a container that is the host's business."""
    if seen.container:
        return False
    taken = [gpu["address"] for gpu in seen.pci if gpu["driver"] in OPEN_SOURCE]
    unbound = [gpu["address"] for gpu in seen.pci if gpu["driver"] == "none"]
    if taken:
        report.bad("nouveau-bound", f"held by nouveau: {', '.join(taken)}", devices=" ".join(taken))
    modules = host["driver.modules"]
    if unbound and modules.why is not None:
        raise Unable(f"whether the driver is loaded: {modules.why}")
    if unbound and "nvidia" not in modules.value:
        unloaded(report, host, unbound)
    return bool(report.findings)


def unloaded(report: Any, host: Facts, unbound: list[str]) -> None:
    """No module, no driver on the device: somebody installed it and it did not load, or nobody did."""
    installed = host["driver.installed"]
    if installed.why is not None:
        raise Unable(f"whether the driver is installed: {installed.why}")
    pitfall = "driver-not-loaded" if installed.value else "driver-missing"
    details = [f"no kernel driver: {', '.join(unbound)}", f"installed: {installed.source}"]
    if host.known("machine.secure_boot"):
        details.append("Secure Boot is on: an unsigned module is refused")
    report.bad(pitfall, *details, devices=" ".join(unbound), kernel=told(host, "machine.kernel"))


def nvml_fails(report: Any, seen: Seen, host: Facts) -> bool:
    """Report what NVML's refusal means for presence. Raises Unable when it leaves the question open."""
    status = host.known("nvml.status")
    if seen.nvml is not None or any(gpu.get("integrated") for gpu in seen.pci):
        return False
    if status == "NVML_ERROR_LIB_RM_VERSION_MISMATCH":
        module, library = told(host, "driver.module_version"), told(host, "driver.library_version")
        evidence = f"kernel module {module}, libraries {library}"
        report.bad("driver-library-mismatch", f"NVML: {status}", evidence, module=module, library=library)
    elif status in LOST:
        report.bad("gpu-lost", f"NVML: {status}")
    elif status == "NVML_ERROR_NO_PERMISSION" or host.known("nvml.control_node") in DENIED:
        opened = host.known("nvml.control_node")
        report.bad("gpu-hidden-device", f"NVML: {status}; opening /dev/nvidiactl: {opened}")
    else:
        raise Unable(f"the list of GPUs: NVML: {host['nvml.gpus'].why}")
    return True


def count(report: Any, seen: Seen) -> None:
    """Hold what can be used against everybody who says how many. Raises Unable in a job that names no GPUs."""
    usable = len(seen.nodes) or len(seen.pci) if seen.nvml is None else seen.usable
    report.measure("usable_gpus", usable)
    for gpu in seen.nvml or []:
        refused(report, gpu, seen)
    short = [f"{who}: {says}" for who, says in seen.claims() if says > usable]
    if report.findings:
        return
    if not usable and seen.in_job and not seen.counted:
        raise Unable("GPUs: NVML lists none, and this job does not say that it was given any")
    if short or not usable:
        pitfall = "gpu-partial" if usable or seen.pci else "gpu-missing"
        expected = max((says for _, says in seen.claims()), default=1)
        report.bad(pitfall, f"{usable} can be used", *short, have=usable, expected=expected, who=seen.who)
    report.saw(f"{usable} GPUs can be used; expected by {seen.who or 'nobody in particular'}")


def refused(report: Any, gpu: dict[str, Any], seen: Seen) -> None:
    """Report a GPU that NVML counts and does not open, or whose device node is not there."""
    why = gpu["unknown"].get("handle")
    node = f"/dev/nvidia{gpu['minor']}"
    if why is not None:
        pitfall = "gpu-lost" if why in LOST else "gpu-hidden-device"
        report.bad(pitfall, f"NVML does not open GPU {gpu['index']}: {why}", index=gpu["index"])
    elif gpu["minor"] is not None and node not in seen.nodes and not seen.wsl:
        report.bad("gpu-hidden-device", f"NVML lists GPU {gpu['index']}, and there is no {node}", index=gpu["index"])
