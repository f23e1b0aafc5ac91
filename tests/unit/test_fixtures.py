"""What a probe gets where the thing that it asks for is not here."""

from __future__ import annotations

from typing import Any

import pytest

from gpucheck.fixtures import no_gpu
from gpucheck.verdict import NotApplicable, Unable
from tests.fakes.answers import facts

BUSES: dict[str, Any] = {"gpu.nodes": [], "gpu.proc": [], "gpu.expected": []}
NO_LIST = {"nvml.gpus": "NVML_ERROR_UNKNOWN: unknown error"}
VFIO = [{"address": "0000:1b:00.0", "device": "0x2330", "class": "0302", "driver": "vfio-pci"}]


@pytest.mark.parametrize(
    ("changes", "unread", "kind", "words"),
    [
        pytest.param(BUSES | {"gpu.pci": []}, NO_LIST, NotApplicable, "nothing expects one", id="none"),
        pytest.param(BUSES | {"gpu.pci": VFIO}, NO_LIST, NotApplicable, "virtual machine", id="of a virtual machine"),
        pytest.param(
            BUSES | {"gpu.pci": []},
            NO_LIST | {"gpu.expected": "permission denied"},
            Unable,
            "permission denied",
            id="who expects one is unknown",
        ),
        pytest.param({}, NO_LIST, Unable, "NVML: NVML_ERROR_UNKNOWN", id="NVML gives no list"),
        pytest.param({"nvml.gpus": []}, {}, Unable, "none is listed", id="NVML lists none of those on the bus"),
    ],
)
def test_why_there_is_no_gpu(changes: dict[str, Any], unread: dict[str, str], kind: type, words: str) -> None:
    """A GPU's row says the same of this machine as the host's row does; never "None", never that a GPU is not there."""
    said = no_gpu(facts(changes, unread=unread))
    assert isinstance(said, kind)
    assert words in str(said)
    assert not isinstance(said, Unable) or said.blocked_by == "gpus-present"
