"""Facts and a status of ``cuInit`` to a finding: a decision table, a row a rule."""

from __future__ import annotations

from typing import Any

import pytest

from gpucheck.architecture import Cuda
from gpucheck.judgement.initialisation import Start, cause, hidden_on_purpose, view_of
from gpucheck.judgement.visibility import Gpu
from tests.fakes.answers import LIBRARY, driver_answer, facts, lost_gpu, nvml_gpu

MISMATCH = {"nvml.status": "NVML_ERROR_LIB_RM_VERSION_MISMATCH"}
COMPAT = "/usr/local/cuda/compat/libcuda.so.570.86.15"
NOUVEAU = [{"address": "0000:1b:00.0", "device": "0x2330", "class": "0302", "driver": "nouveau"}]
UNBOUND = {"driver.module_version": None, "gpu.pci": [{**NOUVEAU[0], "driver": "none"}]}
NOT_THERE = "libcuda.so.1: cannot open shared object file: No such file or directory"
EMPTY = {"env.CUDA_VISIBLE_DEVICES": ""}


def judged(code: int | None, changes: dict[str, Any], gpus: list[dict[str, Any]] | None = None, **answer: Any) -> Any:
    """The finding for one status on a machine."""
    return cause(facts(changes, gpus=gpus), Start.parse(driver_answer(code, **answer)))


@pytest.mark.parametrize(
    ("code", "changes", "answer", "pitfall"),
    [
        pytest.param(
            None, UNBOUND | {"driver.installed": False}, {"error": NOT_THERE}, "driver-missing", id="no driver"
        ),
        pytest.param(None, UNBOUND, {"error": NOT_THERE}, "driver-not-loaded", id="no library, driver not loaded"),
        pytest.param(None, {"gpu.pci": NOUVEAU}, {"error": NOT_THERE}, "nouveau-bound", id="no library, nouveau"),
        pytest.param(None, {}, {"error": NOT_THERE}, "driver-missing", id="module loaded, no library"),
        pytest.param(
            None,
            {"machine.container": "docker"},
            {"error": NOT_THERE},
            "gpu-not-in-container",
            id="no library in a container",
        ),
        pytest.param(
            None, {}, {"error": "libcuda.so.1: file too short"}, "driver-library-damaged", id="an empty library"
        ),
        pytest.param(2, {}, {}, "cuda-count-out-of-memory", id="2 without a limit"),
        pytest.param(2, {"limits.address_space_bytes": 1 << 30}, {}, "address-space-limited", id="2 under ulimit -v"),
        pytest.param(3, {"uvm.node": False}, {}, "uvm-missing", id="3 without the uvm node"),
        pytest.param(
            3, {}, {"refused": {"/dev/nvidia0": "EACCES"}}, "gpu-hidden-device", id="3, a node that is closed"
        ),
        pytest.param(3, MISMATCH, {}, "driver-library-mismatch", id="3 and NVML says mismatch"),
        pytest.param(3, {}, {}, None, id="3, nothing explains it"),
        pytest.param(34, {}, {"library": "/usr/local/cuda/lib64/stubs/libcuda.so"}, "stub-libcuda", id="34"),
        pytest.param(100, EMPTY, {}, "hidden-by-environment", id="100, the variable is empty"),
        pytest.param(100, {"env.CUDA_VISIBLE_DEVICES": "7"}, {}, "hidden-by-environment", id="100, out of range"),
        pytest.param(100, {"env.CUDA_VISIBLE_DEVICES": "0"}, {}, None, id="100, the variable is right"),
        pytest.param(
            100, {"env.CUDA_VISIBLE_DEVICES": "0,7"}, {}, "hidden-by-environment", id="100, its second is wrong"
        ),
        pytest.param(100, {}, {"refused": {"/dev/nvidia0": "EPERM"}}, "gpu-hidden-device", id="100, refused on a host"),
        pytest.param(
            100,
            {"machine.container": "docker"},
            {"refused": {"/dev/nvidia0": "EACCES"}},
            "gpu-hidden-device",
            id="100, a file mode in a container",
        ),
        pytest.param(
            803,
            {"driver.libcuda_path": COMPAT},
            {"library": "/opt/libcuda.so.570"},
            "compat-shadows-driver",
            id="803 by a link into a compat folder",
        ),
        pytest.param(100, {"gpu.pci": NOUVEAU}, {}, "nouveau-bound", id="100, nouveau"),
        pytest.param(100, {"gpu.pci": [NOUVEAU[0] | {"driver": "nova"}]}, {}, "nouveau-bound", id="100, nova"),
        pytest.param(100, UNBOUND, {}, "driver-not-loaded", id="100, not loaded"),
        pytest.param(
            100,
            {"machine.container": "docker", "gpu.nodes": []},
            {},
            "gpu-not-in-container",
            id="100, no nodes in a container",
        ),
        pytest.param(
            100,
            {"machine.container": "docker"},
            {"refused": {"/dev/nvidiactl": "EPERM"}},
            "nvml-devices-revoked",
            id="100, the device cgroup took the nodes back",
        ),
        pytest.param(
            100, {}, {"refused": {"/dev/nvidia0": "ENXIO"}}, None, id="100, a node without a device says nothing"
        ),
        pytest.param(100, {"uvm.node": False}, {}, "uvm-missing", id="100 without the uvm node"),
        pytest.param(
            100,
            {"driver.module_kind": "proprietary", "nvml.gpus": None},
            {},
            "closed-module-on-blackwell",
            id="100, the closed module found nothing",
        ),
        pytest.param(
            101, {"env.CUDA_VISIBLE_DEVICES": "GPU-dead"}, {}, "hidden-by-environment", id="101, no such UUID"
        ),
        pytest.param(101, {}, {}, None, id="101, nothing explains it"),
        pytest.param(802, {"fabric.switches": 4}, {}, "fabric-manager", id="802, switches and no manager"),
        pytest.param(
            802,
            {"fabric.switches": 4, "fabric.manager": "running", "fabric.manager_version": "570.1.1"},
            {},
            "fabric-manager",
            id="802, the manager of another version",
        ),
        pytest.param(
            802, {"fabric.state": "In Progress"}, {}, "fabric-not-completed", id="802, the host did not finish"
        ),
        pytest.param(
            802,
            {"fabric.switches": 4, "fabric.manager": "running", "fabric.manager_version": "580.95.05"},
            {},
            "fabric-not-completed",
            id="802, the right manager runs",
        ),
        pytest.param(802, {"fabric.state": "Completed"}, {}, None, id="802, and the fabric is complete"),
        pytest.param(803, {}, {"library": COMPAT}, "compat-shadows-driver", id="803 from a compat folder"),
        pytest.param(
            803, {"driver.library_version": "570.1"}, {}, "driver-library-mismatch", id="803, versions differ"
        ),
        pytest.param(803, {}, {}, "compat-shadows-driver", id="803, neither is seen"),
        pytest.param(804, {}, {"library": COMPAT}, "compat-unsupported-gpu", id="804 from a compat folder"),
        pytest.param(804, {}, {}, "compat-unsupported-gpu", id="804 says it by itself"),
        pytest.param(999, {"uvm.node": False, "uvm.loaded": False}, {}, "uvm-missing", id="999 without the uvm node"),
        pytest.param(999, {}, {}, "uvm-broken", id="999, NVML answers, the node is there"),
        pytest.param(999, MISMATCH, {}, "driver-library-mismatch", id="999 and NVML says mismatch"),
        pytest.param(999, {"nvml.status": "hang"}, {}, None, id="999 and NVML hangs: undecided"),
        pytest.param(1, {}, {}, None, id="a status without rules"),
    ],
)
def test_one_status_on_one_machine(
    code: int | None, changes: dict[str, Any], answer: dict[str, Any], pitfall: str
) -> None:
    """The first rule whose fact holds gives the finding; no rule, no finding."""
    finding = judged(code, changes, **answer)
    assert (finding.pitfall if finding else None) == pitfall


@pytest.mark.parametrize("code", [100, 101, 999])
def test_a_lost_gpu_is_the_cause_of_any_of_these(code: int) -> None:
    """A GPU that NVML cannot reach explains that CUDA finds none, or does not know why."""
    finding = judged(code, {}, [nvml_gpu(0), lost_gpu(1)])
    assert finding.pitfall == "gpu-lost"
    assert finding.params["index"] == "1"


def test_mig_on_every_gpu_and_no_instance() -> None:
    """100 on a machine whose GPUs are all split into nothing."""
    assert judged(100, {}, [nvml_gpu(0, mig=True)]).pitfall == "mig-without-instances"
    assert judged(100, {}, [nvml_gpu(0, mig=True), nvml_gpu(1)]) is None


def test_a_hang_is_a_finding_of_its_own() -> None:
    """A cuInit that never returns is told with what NVML said meanwhile."""
    finding = cause(facts(), Start(None, hung=True))
    assert finding is not None
    assert finding.pitfall == "cuda-init-hangs"
    assert finding.evidence == ("cuInit did not return", "NVML: ok")


def test_evidence_holds_what_was_run_and_what_came_back() -> None:
    """Each finding carries the library that was opened, its CUDA version and the driver's own words."""
    finding = judged(999, {})
    assert finding.evidence[-1] == f"cuInit of {LIBRARY}, CUDA 13.0: 999 CUDA_999 status 999"
    assert finding.confidence == "medium"


def test_secure_boot_is_told_beside_a_module_that_is_not_loaded() -> None:
    """It is the usual reason, and it is a fact."""
    finding = judged(100, UNBOUND | {"machine.secure_boot": True})
    assert any("Secure Boot" in line for line in finding.evidence)


def test_unknown_facts_decide_nothing() -> None:
    """A fact that could not be read is neither true nor false: the rule that needs it does not hold."""
    unread = facts(unread={"uvm.node": "permission denied", "driver.module_version": "permission denied"})
    assert cause(unread, Start.parse(driver_answer(3))) is None


def test_an_attempt_is_read_from_the_payload() -> None:
    """The version is decoded, and a library that could not be opened has no status."""
    assert Start.parse(driver_answer(0)).version == Cuda(13, 0)
    failed = Start.parse(driver_answer(None, error=NOT_THERE, library=None, version=None))
    assert failed.code is None
    assert failed.line == f"libcuda.so.1: {NOT_THERE}"


def test_a_gpu_that_a_job_was_not_given_is_hidden_on_purpose() -> None:
    """The variable and its value are the known fact that rules that GPU out."""
    host = facts({"env.CUDA_VISIBLE_DEVICES": "1"}, gpus=[nvml_gpu(0), nvml_gpu(1)])
    first, second = (Gpu.parse(nvml_gpu(index)) for index in range(2))
    assert view_of(host).shown == (second,)
    hidden = hidden_on_purpose(host, first)
    assert hidden is not None
    assert hidden.because.source == "CUDA_VISIBLE_DEVICES=1"
    assert hidden_on_purpose(host, second) is None
