"""NVML's facts, through the real pynvml against a small library of our own: answers, refusals, hangs, crashes."""

from __future__ import annotations

import os
import subprocess
import textwrap
import time
from typing import TYPE_CHECKING, Any

import pytest

from gpucheck import facts

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gpucheck.facts import Facts

NOT_SUPPORTED, LOST, MISMATCH = 3, 15, 18
NAMES = ("nvml.status", "nvml.gpus", "nvml.gpu_count", "nvml.driver_version", "nvml.cuda_version", "fabric.state")
SOURCE = r"""
#include <string.h>
#include <unistd.h>
typedef struct { char old[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } pci_t;
typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct {
  unsigned version; unsigned char cluster[16]; unsigned status, clique; unsigned char state; unsigned health;
} fabric_t;
typedef struct { unsigned pid; unsigned long long memory; unsigned instance, compute; } process_t;
int nvmlInitWithFlags(unsigned flags) { INIT }
int nvmlSystemGetDriverVersion(char *text, unsigned size) { strcpy(text, "580.65.06"); return 0; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 13000; return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = COUNT; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **gpu) { *gpu = (void *)(long)(index + 1); return HANDLE; }
int nvmlDeviceGetUUID(void *gpu, char *text, unsigned size) { strcpy(text, "GPU-1"); return 0; }
int nvmlDeviceGetName(void *gpu, char *text, unsigned size) { strcpy(text, "NVIDIA H100"); return 0; }
int nvmlDeviceGetMinorNumber(void *gpu, unsigned *minor) { *minor = (long)gpu - 1; return 0; }
int nvmlDeviceGetPciInfo_v3(void *gpu, pci_t *pci) { strcpy(pci->bus_id, "0000000F:1B:00.0"); return 0; }
int nvmlDeviceGetCudaComputeCapability(void *gpu, int *major, int *minor) { *major = 9; *minor = 0; return 0; }
int nvmlDeviceGetMemoryInfo(void *gpu, memory_t *memory)
{ memory->total = 1ull << 36; memory->free = 1 << 30; return MEMORY; }
int nvmlDeviceGetComputeMode(void *gpu, int *mode) { *mode = 3; return 0; }
int nvmlDeviceGetMigMode(void *gpu, unsigned *mode, unsigned *pending) { *mode = 0; return 0; }
int nvmlDeviceGetCurrentClocksThrottleReasons(void *gpu, unsigned long long *reasons) { *reasons = 0x44; return 0; }
int nvmlDeviceGetRemappedRows(
  void *gpu, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed)
{ *corrected = 1; *uncorrected = 2; *pending = 1; *failed = 0; return 0; }
int nvmlDeviceGetTotalEccErrors(void *gpu, int type, int counter, unsigned long long *count)
{ *count = 7 + counter; return 0; }
int nvmlDeviceGetGpuFabricInfoV(void *gpu, fabric_t *info) { info->state = FABRIC; info->status = 0; return 0; }
int PROCESSES(void *gpu, unsigned *count, process_t *found)
{ unsigned room = *count; *count = 1; if (!room) return 7; found->pid = 42; found->memory = 1 << 20; return 0; }
"""


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Compile the library with some answers changed; its folder."""

    def build(**changes: str) -> Path:
        defaults = {"INIT": "return 0;", "COUNT": "1", "HANDLE": "0", "MEMORY": "0", "FABRIC": "3"}
        defaults["PROCESSES"] = "nvmlDeviceGetComputeRunningProcesses_v3"
        folder = tmp_path_factory.mktemp("nvml")
        macros = [f"-D{name}={text}" for name, text in (defaults | changes).items()]
        (folder / "nvml.c").write_text(textwrap.dedent(SOURCE))
        library = str(folder / "libnvidia-ml.so.1")
        subprocess.run(["gcc", "-shared", "-fPIC", "-w", *macros, "-o", library, str(folder / "nvml.c")], check=True)
        return folder

    return build


@pytest.fixture(scope="session")
def healthy(compiled: Callable[..., Path]) -> Path:
    """A machine with one H100."""
    return compiled()


def read(folder: Path | str, *names: str, deadline_s: float = 20) -> Facts:
    """NVML's facts where the loader finds its library in ``folder`` first."""
    environ = {**os.environ, "LD_LIBRARY_PATH": str(folder)}
    return facts.read(names or NAMES, environ=environ, deadline_s=deadline_s)


def gpu_of(folder: Path) -> dict[str, Any]:
    """The one GPU of that machine."""
    [gpu] = read(folder).known("nvml.gpus")
    found: dict[str, Any] = gpu
    return found


def test_a_healthy_gpu_is_described(healthy: Path) -> None:
    """Versions, count and each GPU's fields come out in the vocabulary of the facts."""
    found = read(healthy)
    assert [found.known(f"nvml.{name}") for name in ("status", "driver_version", "cuda_version", "gpu_count")] == [
        "ok",
        "580.65.06",
        "13.0",
        1,
    ]
    gpu = gpu_of(healthy)
    assert gpu["index"] == 0
    assert (gpu["uuid"], gpu["name"], gpu["minor"]) == ("GPU-1", "NVIDIA H100", 0)
    assert (gpu["capability"], gpu["memory_bytes"], gpu["memory_free_bytes"]) == ("9.0", 1 << 36, 1 << 30)
    assert (gpu["pci"], gpu["compute_mode"], gpu["mig"]) == ("000f:1b:00.0", "exclusive_process", False)
    assert gpu["mig_devices"] == []
    assert gpu["remapped_rows"] == {"corrected": 1, "uncorrected": 2, "pending": True, "failed": False}
    assert (gpu["ecc_uncorrected_volatile"], gpu["ecc_uncorrected_aggregate"]) == (7, 8)


def test_what_the_driver_lacks_costs_its_field_alone(healthy: Path) -> None:
    """A function that this driver does not have, or that the GPU does not support, is unknown for that field only."""
    gpu = gpu_of(healthy)
    assert gpu["pcie_width"] is None
    assert gpu["unknown"]["pcie_width"] == "NVML_ERROR_FUNCTION_NOT_FOUND"
    assert "uuid" not in gpu["unknown"]


def test_an_older_drivers_name_for_throttling_is_asked_too(healthy: Path) -> None:
    """Reasons for lower clocks are read by their old name where the new one does not exist."""
    assert gpu_of(healthy)["throttle_reasons"] == ["sw_power_cap", "hw_thermal"]


def test_processes_are_listed_where_graphics_is_not_supported(healthy: Path) -> None:
    """That a GPU does not tell its graphics processes does not hide that somebody computes on it."""
    assert gpu_of(healthy)["processes"] == [{"pid": 42, "kind": "compute", "memory_bytes": 1 << 20}]


def test_an_older_drivers_list_of_processes_is_read(compiled: Callable[..., Path]) -> None:
    """A driver that knows only the second version of the question is asked that one."""
    gpu = gpu_of(compiled(PROCESSES="nvmlDeviceGetComputeRunningProcesses_v2"))
    assert [process["pid"] for process in gpu["processes"]] == [42]


def test_memory_that_is_shared_with_the_host_is_unknown_for_its_fields(compiled: Callable[..., Path]) -> None:
    """An integrated GPU (GB10) supports no question about its memory, and all others."""
    gpu = gpu_of(compiled(MEMORY=str(NOT_SUPPORTED)))
    assert gpu["memory_bytes"] is None
    assert gpu["unknown"]["memory_bytes"] == "NVML_ERROR_NOT_SUPPORTED"
    assert gpu["capability"] == "9.0"


def test_a_lost_gpu_has_its_index_and_the_reason(compiled: Callable[..., Path]) -> None:
    """A GPU that does not open is counted, with no field but why; the state of its fabric is unknown."""
    folder = compiled(HANDLE=str(LOST))
    gpu = gpu_of(folder)
    assert gpu["index"] == 0
    assert gpu["unknown"] == {"handle": "NVML_ERROR_GPU_IS_LOST"}
    assert gpu["uuid"] is None
    assert read(folder)["fabric.state"].why == "not told for GPU 0"


@pytest.mark.parametrize(
    ("state", "words"), [("3", "Completed"), ("2", "In Progress"), ("1", "Not Started"), ("0", None)]
)
def test_the_state_of_the_fabric_is_worded_as_nvidia_smi_does(
    compiled: Callable[..., Path], state: str, words: str
) -> None:
    """A GPU on no fabric is known to have none."""
    fact = read(compiled(FABRIC=state), "fabric.state")["fabric.state"]
    assert fact.is_known
    assert fact.value == words


def test_the_gpu_that_lags_decides_the_state_of_the_fabric(compiled: Callable[..., Path]) -> None:
    """A job needs all GPUs: one that is in progress among completed ones is what the machine is."""
    folder = compiled(COUNT="3", FABRIC="(((long)gpu)==2?2:3)")
    assert read(folder, "fabric.state").known("fabric.state") == "In Progress"


def test_a_mismatch_is_nvmls_status_and_the_rest_is_unknown(compiled: Callable[..., Path]) -> None:
    """NVML's own error name is a known fact; what it would have told is unknown, with that reason."""
    found = read(compiled(INIT=f"return {MISMATCH};"))
    assert found.known("nvml.status") == "NVML_ERROR_LIB_RM_VERSION_MISMATCH"
    assert str(found["nvml.gpus"].why).startswith("NVML_ERROR_LIB_RM_VERSION_MISMATCH: ")


def test_a_code_from_the_future_is_still_an_error(compiled: Callable[..., Path]) -> None:
    """A code that this pynvml does not know is neither ok nor a crash of ours."""
    found = read(compiled(INIT="return 777;"))
    assert found.known("nvml.status") == "NVML_ERROR 777"
    assert not found.failures


def test_without_a_library_nvml_says_so(tmp_path: Path) -> None:
    """No driver: NVML's library is not found; an empty file in front of a real one has the same effect."""
    (tmp_path / "libnvidia-ml.so.1").touch()
    assert read(tmp_path).known("nvml.status") == "NVML_ERROR_LIBRARY_NOT_FOUND"


def test_a_hanging_nvml_costs_its_own_facts_alone(compiled: Callable[..., Path]) -> None:
    """The child that asks is killed at its deadline; that NVML hangs is the fact, and others are read."""
    folder = compiled(INIT="for (;;) pause();")
    found = read(folder, "nvml.status", "nvml.gpus", "cpu.count", deadline_s=1)
    assert found.known("nvml.status") == "hang"
    assert found["nvml.gpus"].why == "hang"
    assert found["cpu.count"].is_known


def test_a_driver_that_hangs_whoever_asks_costs_its_own_facts_alone(compiled: Callable[..., Path], plant: Any) -> None:
    """NVML and the driver's own files both wait for a GPU; all else is read, within the time of one whole reading."""
    plant.driven(1)
    information = next(plant.root.glob("proc/driver/nvidia/gpus/*/information"))
    information.unlink()
    os.mkfifo(information)
    environ = {**os.environ, "LD_LIBRARY_PATH": str(compiled(INIT="for (;;) pause();"))}
    begun = time.monotonic()
    found = facts.read(root=plant.root, environ=environ, deadline_s=6)
    assert time.monotonic() - begun < 6
    assert found.known("nvml.status") == "hang"
    assert found["gpu.proc"].why == "hang"
    assert found["package.pytest"].is_known
    assert found.known("machine.hostname") == "node7"


def test_a_crashing_nvml_costs_its_own_facts_alone(compiled: Callable[..., Path]) -> None:
    """A library that kills its process is reported by the signal."""
    found = read(compiled(INIT="*(volatile int *)0 = 1; return 0;"))
    assert found.known("nvml.status") == "signal 11"
    assert not found.failures


def test_without_pynvml_nvml_is_not_installed(tmp_path: Path) -> None:
    """Where nvidia-ml-py cannot be imported the status says that, not that there is no GPU."""
    (tmp_path / "pynvml.py").write_text("raise ImportError('no module named pynvml')")
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    assert facts.read(NAMES, environ=environ).known("nvml.status") == "not installed"


def test_a_control_node_that_cannot_be_opened_is_told_by_its_error(plant: Any) -> None:
    """Whether /dev/nvidiactl opens tells a denied device from a missing one."""
    name = "nvml.control_node"
    assert plant.facts(name, **os.environ).known(name) == "ENOENT"
    plant.device("/dev/nvidiactl")
    assert plant.facts(name, **os.environ).known(name) == "ok"
