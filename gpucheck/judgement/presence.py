"""Which GPUs are here, by each source of facts, and whether there is one to ask about at all. Pure.

The probe `gpus-present` judges presence from facts alone (:mod:`gpucheck.judgement.absence`). Probes that go on from
there must neither judge a machine without GPUs nor report its defects a second time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gpucheck.judgement.driver_words import MISMATCH, RESERVED
from gpucheck.verdict import NotApplicable, Unable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gpucheck.facts import Facts
    from gpucheck.verdict import Finding

    Told = tuple[Mapping[str, Any], ...]

PROBE: Final = "gpus-present"
EVERY_GPU: Final = "every GPU"


@dataclass(frozen=True, slots=True)
class Seen:
    """What each source shows; empty where it was not read, see :func:`unread`.

    ``pci`` is without ``reserved``, those kept for somebody else; ``nvml`` is None when it gave no list.
    """

    pci: Told
    reserved: Told
    nodes: tuple[str, ...]
    proc: Told
    nvml: Told | None
    expected: Told
    in_container: bool
    in_job: bool
    in_wsl: bool

    @classmethod
    def of(cls, facts: Facts) -> Seen:
        """What these facts show."""
        pci, nvml = facts.known("gpu.pci") or (), facts.known("nvml.gpus")
        return cls(
            pci=tuple(gpu for gpu in pci if gpu["driver"] not in RESERVED),
            reserved=tuple(gpu for gpu in pci if gpu["driver"] in RESERVED),
            nodes=tuple(facts.known("gpu.nodes") or ()),
            proc=tuple(facts.known("gpu.proc") or ()),
            nvml=None if nvml is None else tuple(nvml),
            expected=tuple(facts.known("gpu.expected") or ()),
            in_container=facts.known("machine.container") not in ("none", None),
            in_job=facts.known("scheduler.job") is not None,
            in_wsl=facts.known("machine.wsl") is True,
        )

    @property
    def anything(self) -> bool:
        """Whether any source shows a GPU. In a container PCI shows the host's, which says nothing of what was given."""
        return bool(self.nodes or self.nvml or (not self.in_container and (self.pci or self.proc)))

    @property
    def integrated(self) -> bool:
        """Whether a GPU is part of the processor (Jetson), whose older systems have no NVML."""
        return any(gpu.get("integrated") for gpu in self.pci)

    @property
    def opened(self) -> int | None:
        """How many GPUs NVML opens; None: unknown. Integrated ones count by their nodes where there is no NVML."""
        if self.nvml is None:
            return (len(self.nodes) or len(self.pci)) if self.integrated else None
        return sum("handle" not in gpu["unknown"] for gpu in self.nvml)

    @property
    def usable(self) -> int | None:
        """The same; slices of GPUs count where a scheduler may have counted them."""
        slices = sum(len(gpu["mig_devices"] or []) for gpu in self.nvml or () if "handle" not in gpu["unknown"])
        return None if self.opened is None else max(self.opened, slices)

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
        if not self.in_container and not self.in_job:
            yield "PCI", len(self.pci)
            yield "/proc/driver/nvidia/gpus", len(self.proc)


def lines(facts: Facts, seen: Seen) -> Iterator[str]:
    """The sources side by side, a line of evidence each."""
    bound = ", ".join(f"{gpu['address']} ({gpu['driver']})" for gpu in (*seen.pci, *seen.reserved))
    yield f"buses: {len(seen.pci) + len(seen.reserved)} GPUs{': ' * bool(bound)}{bound}"
    yield f"device nodes: {', '.join(seen.nodes) or 'none'}"
    modules = facts.known("driver.modules")
    yield f"kernel modules: {', '.join(modules) if modules else told(facts, 'driver.modules')}"
    yield f"driver: module {told(facts, 'driver.module_version')}, library {told(facts, 'driver.library_version')}"
    yield f"NVML: {told(facts, 'nvml.status')}{'' if seen.nvml is None else f', {len(seen.nvml)} GPUs'}"
    yield f"expected by: {seen.who or told(facts, 'gpu.expected')}"


def told(facts: Facts, name: str) -> str:
    """A fact in words: its value, "none", or why it is unknown."""
    fact = facts[name]
    return f"unknown ({fact.why})" if fact.why is not None else str(fact.value or "none")


def unread(facts: Facts) -> list[str]:
    """What decides whether GPUs are here and could not be read, a line each."""
    decisive = ["gpu.nodes", *([] if facts.known("nvml.gpus") else ["gpu.pci", "gpu.hidden_by"])]
    return [f"{name}: {facts[name].why} ({facts[name].source})" for name in decisive if facts[name].why is not None]


def ruled_out(facts: Facts, seen: Seen) -> NotApplicable | Unable | None:
    """Why presence is no question here: the GPUs were handed to nobody here, or there are none and nobody expects one.

    Unable where it is not known whether somebody does.
    """
    hidden = next((by for by in facts.known("gpu.hidden_by") or () if by["what"] == EVERY_GPU), None)
    if hidden and not seen.counted:
        return NotApplicable("gpu.hidden_by", "every GPU is hidden from here", hidden["source"])
    if seen.reserved and not seen.anything and not seen.counted:
        drivers = ", ".join(sorted({gpu["driver"] for gpu in seen.reserved}))
        return NotApplicable("gpu.pci_drivers", "every GPU is kept for a virtual machine", f"bound to {drivers}")
    if seen.anything or seen.expected:
        return None
    expected = facts["gpu.expected"]
    if expected.why is not None:
        return Unable(f"whether anybody expects a GPU: {expected.why} ({expected.source})")
    device = "no GPU was handed into this container" if seen.pci else "no NVIDIA device"
    return NotApplicable("gpu.expected", f"{device}, and nothing expects one", expected.source)


def nothing_to_ask(facts: Facts) -> NotApplicable | Unable | None:
    """Why there is no GPU to ask, or None when there is one."""
    seen = Seen.of(facts)
    if not seen.anything and (lack := unread(facts)):
        return Unable(*(f"whether there is a GPU: {line}" for line in lack), blocked_by=PROBE)
    reason = ruled_out(facts, seen)
    if isinstance(reason, Unable):
        return Unable(*reason.lacking, blocked_by=PROBE)
    if reason is not None or seen.anything:
        return reason
    return Unable(f"a GPU: none is here; expected by {seen.who}", blocked_by=PROBE)


def told_there(facts: Facts, finding: Finding) -> bool:
    """Whether `gpus-present` reports this defect from the same facts."""
    match finding.pitfall:
        case "nouveau-bound" | "driver-not-loaded" | "gpu-lost":
            return True
        case "driver-missing":
            return facts.known("driver.module_version") is None
        case "driver-library-mismatch":
            return bool(facts.known("nvml.status") == MISMATCH)
        case "gpu-not-in-container":
            return not facts.known("gpu.nodes")
        case "gpu-hidden-device" | "nvml-devices-revoked":
            return facts.known("nvml.gpus") is None
    return False
