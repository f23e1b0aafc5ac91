"""Whether there is a GPU to ask, and whose finding explains a driver that does not start."""

from __future__ import annotations

from typing import Any

import pytest

from gpucheck.judgement.presence import nothing_to_ask, told_there
from gpucheck.verdict import NotApplicable, Unable, bad
from tests.fakes.answers import facts

NONE: dict[str, Any] = {"gpu.pci": [], "gpu.nodes": [], "gpu.proc": [], "gpu.expected": [], "nvml.gpus": None}
VFIO = [{"address": "0000:1b:00.0", "device": "0x2330", "class": "0302", "driver": "vfio-pci"}]
HIDDEN = [{"what": "every GPU", "source": "NVIDIA_VISIBLE_DEVICES=void"}]
#: A container into which no GPU was handed, on a host that has them.
INSIDE: dict[str, Any] = {
    "machine.container": "docker",
    "gpu.nodes": [],
    "nvml.gpus": None,
    "gpu.expected": [{"who": "the loaded kernel module nvidia", "count": None}],
}


@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [
        pytest.param({}, None, "", id="a healthy machine"),
        pytest.param(NONE, NotApplicable, "nothing expects one", id="no device, nobody expects one"),
        pytest.param(
            NONE | {"gpu.expected": [{"who": "the profile", "count": 8}]},
            Unable,
            "expected by the profile: 8",
            id="expected",
        ),
        pytest.param(NONE | {"gpu.pci": VFIO}, NotApplicable, "virtual machine", id="kept for a virtual machine"),
        pytest.param(INSIDE | {"gpu.hidden_by": HIDDEN}, NotApplicable, "hidden from here", id="handed to nobody"),
        pytest.param(
            INSIDE | {"gpu.hidden_by": HIDDEN, "gpu.expected": [{"who": "slurm job 7", "count": 2}]},
            Unable,
            "expected by slurm job 7: 2",
            id="handed to nobody, and promised",
        ),
        pytest.param(INSIDE, Unable, "expected by", id="in a container PCI shows the host's GPUs"),
        pytest.param(NONE | {"gpu.nodes": ["/dev/nvidia0"]}, None, "", id="a node alone is enough to ask"),
    ],
)
def test_whether_there_is_a_gpu_to_ask(changes: dict[str, Any], kind: type | None, words: str) -> None:
    """Not applicable by a known fact, unable where somebody expects a GPU, None where there is one."""
    said = nothing_to_ask(facts(changes))
    assert said is None if kind is None else isinstance(said, kind)
    assert words in str(said)


@pytest.mark.parametrize("unread", ["gpu.nodes", "gpu.pci", "gpu.expected", "gpu.hidden_by"])
def test_what_was_not_read_makes_it_unable(unread: str) -> None:
    """That nobody expects a GPU must be known to say that there is none."""
    said = nothing_to_ask(facts(NONE, unread={unread: "permission denied"}))
    assert isinstance(said, Unable)
    assert said.blocked_by == "gpus-present"


@pytest.mark.parametrize(
    ("pitfall", "changes", "told"),
    [
        ("nouveau-bound", {}, True),
        ("gpu-lost", {}, True),
        ("driver-missing", {"driver.module_version": None}, True),
        ("driver-missing", {}, False),
        ("driver-library-mismatch", {"nvml.status": "NVML_ERROR_LIB_RM_VERSION_MISMATCH"}, True),
        ("driver-library-mismatch", {}, False),
        ("gpu-not-in-container", {"gpu.nodes": []}, True),
        ("gpu-not-in-container", {}, False),
        ("gpu-hidden-device", {"nvml.gpus": None}, True),
        ("gpu-hidden-device", {}, False),
        ("uvm-missing", {}, False),
    ],
)
def test_whose_finding_it_is(pitfall: str, changes: dict[str, Any], told: bool) -> None:
    """A defect that facts alone show belongs to `gpus-present`, any other to who asked the driver."""
    assert told_there(facts(changes), bad(pitfall)) is told
