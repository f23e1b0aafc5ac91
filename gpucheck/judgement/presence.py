"""Whether there is an NVIDIA GPU to ask about at all, and who has already said what is wrong with it. Pure, a leaf.

The probe `gpus-present` judges presence from facts alone. Probes that go on from there must neither judge a machine
without GPUs nor report its defects a second time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpucheck.verdict import NotApplicable, Unable

if TYPE_CHECKING:
    from gpucheck.facts import Facts
    from gpucheck.verdict import Finding

PROBE: Final = "gpus-present"
EVERY_GPU: Final = "every GPU"
_RESERVED: Final = ("vfio-pci", "pci-stub", "xen-pciback", "pciback")
_MISMATCH: Final = "NVML_ERROR_LIB_RM_VERSION_MISMATCH"


def nothing_to_ask(facts: Facts) -> NotApplicable | Unable | None:
    """Why there is no GPU to ask, or None when there is one."""
    for hidden in facts.known("gpu.hidden_by") or ():
        if hidden["what"] == EVERY_GPU:
            return NotApplicable("gpu.hidden_by", "every GPU is hidden from here", hidden["source"])
    if _anything(facts):
        return None
    if drivers := sorted({gpu["driver"] for gpu in _reserved(facts)}):
        return NotApplicable(
            "gpu.pci_drivers", "every GPU is kept for a virtual machine", f"bound to {', '.join(drivers)}"
        )
    return _nobody(facts)


def told_there(facts: Facts, finding: Finding) -> bool:
    """Whether `gpus-present` reports this defect from the same facts."""
    match finding.pitfall:
        case "nouveau-bound" | "driver-not-loaded" | "gpu-lost":
            return True
        case "driver-missing":
            return facts.known("driver.module_version") is None
        case "driver-library-mismatch":
            return bool(facts.known("nvml.status") == _MISMATCH)
        case "gpu-not-in-container":
            return not facts.known("gpu.nodes")
        case "gpu-hidden-device" | "nvml-devices-revoked":
            return facts.known("nvml.gpus") is None
    return False


def _anything(facts: Facts) -> bool:
    """In a container PCI shows the host's GPUs, which says nothing of what was given."""
    inside = facts.known("machine.container") not in ("none", None)
    on_bus = [gpu for gpu in facts.known("gpu.pci") or () if gpu["driver"] not in _RESERVED]
    return bool(facts.known("gpu.nodes") or facts.known("nvml.gpus") or (on_bus and not inside))


def _reserved(facts: Facts) -> list[dict[str, str]]:
    return [gpu for gpu in facts.known("gpu.pci") or () if gpu["driver"] in _RESERVED]


def _nobody(facts: Facts) -> NotApplicable | Unable:
    expected, pci = facts["gpu.expected"], facts["gpu.pci"]
    if expected.value:
        who = ", ".join(expectation["who"] for expectation in expected.value)
        return Unable(f"a GPU: {who} expects one, and none is here", blocked_by=PROBE)
    for fact in (pci, expected):
        if fact.why is not None:
            return Unable(f"whether there is a GPU: {fact.why} ({fact.source})", blocked_by=PROBE)
    return NotApplicable("gpu.expected", "no NVIDIA device, and nothing expects one", expected.source)
