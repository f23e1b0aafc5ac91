"""Facts and payloads' answers as a machine with one healthy H100 gives them, to be changed by a test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpucheck.facts import Fact, Facts

HERE = Path(__file__).parent

LIBRARY = "/usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05"
HEALTHY: dict[str, Any] = {
    "machine.hostname": "node7",
    "machine.container": "none",
    "machine.secure_boot": False,
    "gpu.pci": [{"address": "0000:1b:00.0", "device": "0x2330", "class": "0302", "driver": "nvidia"}],
    "gpu.nodes": ["/dev/nvidia0"],
    "gpu.proc": [{"address": "0000:1b:00.0", "model": "NVIDIA H100", "uuid": "GPU-0", "minor": 0}],
    "gpu.expected": [{"who": "the loaded kernel module nvidia", "count": 1}],
    "gpu.hidden_by": [],
    "driver.installed": True,
    "driver.module_version": "580.95.05",
    "driver.module_kind": "open",
    "driver.library_version": "580.95.05",
    "driver.libcuda_path": LIBRARY,
    "driver.compat_path": None,
    "uvm.node": True,
    "uvm.loaded": True,
    "fabric.switches": 0,
    "fabric.manager": "absent",
    "fabric.manager_version": None,
    "fabric.state": None,
    "nvml.status": "ok",
    "limits.address_space_bytes": None,
}


def uuid(index: int) -> str:
    """The UUID of a GPU, without its kind in front."""
    return f"{index:08x}-1111-2222-3333-444444444444"


def nvml_gpu(index: int = 0, **changes: Any) -> dict[str, Any]:
    """One GPU as ``payload/nvml.py`` describes it."""
    gpu = {
        "index": index,
        "uuid": f"GPU-{uuid(index)}",
        "name": "NVIDIA H100",
        "capability": "9.0",
        "mig": False,
        "mig_devices": [],
        "compute_mode": "default",
        "processes": [],
        "unknown": {},
    }
    return gpu | changes


def lost_gpu(index: int, error: str = "NVML_ERROR_GPU_IS_LOST") -> dict[str, Any]:
    """A GPU that NVML counts and cannot reach."""
    return dict.fromkeys(nvml_gpu()) | {"index": index, "unknown": {"handle": error}}


def facts(
    changes: dict[str, Any] | None = None,
    *,
    gpus: list[dict[str, Any]] | None = None,
    unread: dict[str, str] | None = None,
) -> Facts:
    """The healthy machine's facts with ``changes``; ``unread`` are those that could not be read, and why."""
    listed = {"nvml.gpus": [nvml_gpu()] if gpus is None else gpus}
    why = unread or {}
    known = {name: value for name, value in {**HEALTHY, **listed, **(changes or {})}.items() if name not in why}
    families = (Fact("env.*", 0, "environment"), Fact("package.*", 0, "packages"))
    rows = [Fact(name, value, "the test") for name, value in known.items()]
    return Facts([*families, *rows, *(Fact(name, None, "the test", text) for name, text in why.items())])


def driver_answer(code: int | None = 0, **changes: Any) -> dict[str, Any]:
    """What ``payload/cuda_driver.py`` answers for a status of ``cuInit``."""
    init = None if code is None else {"code": code, "name": f"CUDA_{code}", "text": f"status {code}"}
    answer: dict[str, Any] = {
        "error": None,
        "library": LIBRARY,
        "version": 13000,
        "init": init,
        "devices": [],
        "refused": {},
    }
    return answer | changes


def torch_answer(**changes: Any) -> dict[str, Any]:
    """What ``payload/cuda_torch.py`` answers: one H100 that computes right."""
    device = {"ordinal": 0, "uuid": uuid(0), "name": "NVIDIA H100", "capability": "9.0", "memory_bytes": 80 << 30}
    kernel = {
        "ordinal": 0,
        "ended": "value",
        "step": "copy back",
        "worst": 0.01,
        "free_bytes": 79 << 30,
        "kernel_s": 0.4,
    }
    answer = {
        "version": "2.14.1+cu130",
        "cuda_build": "13.0",
        "hip_build": None,
        "arch_flags": ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"],
        "is_available": True,
        "error": None,
        "warnings": [],
        "devices": [device],
        "kernels": [kernel],
    }
    return answer | changes
