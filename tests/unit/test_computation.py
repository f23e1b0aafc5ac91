"""What torch's answers mean: a decision table, a row a rule."""

from __future__ import annotations

from typing import Any

import pytest

from gpucheck import profile, words
from gpucheck.architecture import Capability, Cuda, wheels_for
from gpucheck.judgement.computation import (
    Kernel,
    Seen,
    cpu_only,
    import_fault,
    in_use,
    judge,
    spared,
    start_cause,
    status_of,
    too_old,
)
from gpucheck.judgement.initialisation import Start
from gpucheck.verdict import Unable
from tests.fakes.answers import driver_answer, facts, nvml_gpu, torch_answer, uuid

WHEELS = wheels_for(Capability(9, 0), machine="x86_64", driver=Cuda(12, 4))
#: Recorded: torch 2.14.1+cu130 under stand-ins for the driver.
TOO_OLD = "RuntimeError: The NVIDIA driver on your system is too old (found version 12040). Please update"
UNEXPECTED = (
    "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling "
    "NumCudaDevices() that might have already set an error? Error 803: system has unsupported display driver"
)
UNKNOWN = "RuntimeError: CUDA unknown error - this may be due to an incorrectly set up environment, e.g. changing env"
WORKS = {"ended": "works", "code": 0, "text": ""}
NOTHING = dict.fromkeys(
    ("module", "library", "symbol", "needed_by", "damage", "found_in", "where", "shadow", "culprit")
)
UNTOLD = {"processes": None, "compute_mode": None, "unknown": {"processes": "NVML_ERROR_NO_PERMISSION"}}


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (TOO_OLD, 35),
        (UNEXPECTED, 803),
        (UNKNOWN, 999),
        ("RuntimeError: No CUDA GPUs are available", 100),
        ("RuntimeError: Found no NVIDIA driver on your system. Please check", 35),
        ("RuntimeError: CUDA driver initialization failed, you might not have a CUDA gpu.", 3),
        ("AcceleratorError CUDA error: no kernel image is available for execution on the device", 209),
        ("AcceleratorError CUDA error: the provided PTX was compiled with an unsupported toolchain.", 222),
        ("OutOfMemoryError CUDA out of memory. Tried to allocate 2.00 MiB", 2),
        ("something that nobody has seen", None),
    ],
)
def test_the_status_behind_the_words(text: str, code: int | None) -> None:
    """torch words some statuses itself and numbers others; words that are not known have none."""
    assert status_of(text) == code


@pytest.mark.parametrize(
    ("changes", "pitfall"),
    [
        pytest.param({"worst": 1.01}, "wrong-numbers", id="more than float32 may be off by"),
        pytest.param({"worst": None}, "wrong-numbers", id="not a number"),
        pytest.param({"ended": "hang", "step": "initialise"}, "cuda-init-hangs", id="hangs at the start"),
        pytest.param(
            {"ended": "hang", "step": "launch a kernel"}, "launch-failure", id="a kernel that does not return"
        ),
        pytest.param({"ended": "signal", "signal": "SIGSEGV"}, "native-crash", id="the process dies"),
        pytest.param(
            {"ended": "failure", "text": "CUDA error: no kernel image is available"}, "no-kernel-image", id="209"
        ),
        pytest.param({"ended": "failure", "text": "compiled with an unsupported toolchain"}, "ptx-too-new", id="222"),
        pytest.param(
            {"ended": "failure", "text": "uncorrectable ECC error encountered"}, "ecc-uncorrectable", id="214"
        ),
        pytest.param({"ended": "failure", "text": "an illegal memory access was"}, "illegal-memory-access", id="700"),
        pytest.param({"ended": "failure", "text": "unspecified launch failure"}, "launch-failure", id="719"),
        pytest.param({"ended": "failure", "text": "CUBLAS_STATUS_NOT_INITIALIZED"}, "cublas-init-failed", id="cuBLAS"),
    ],
)
def test_a_kernel_that_is_wrong(changes: dict[str, Any], pitfall: str) -> None:
    """Each way of being wrong has its pitfall, and the GPU is named."""
    told = torch_answer()["kernels"][0] | changes
    finding = judge(Kernel.parse(told), "GPU 0")
    assert finding is not None
    assert finding.pitfall == pitfall
    assert finding.evidence[0].startswith("GPU 0")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ended": "busy", "free_bytes": 100 << 20}, "100 MB are free"),
        ({"ended": "failure", "text": "CUDA out of memory"}, "out of memory"),
        ({"ended": "failure", "text": "CUDA-capable device(s) is/are busy or unavailable"}, "busy"),
        (
            {"ended": "failure", "text": "an error of next year", "step": "copy back"},
            "copy back: an error of next",
        ),
    ],
)
def test_a_kernel_that_could_not_be_judged(changes: dict[str, Any], words: str) -> None:
    """A GPU that somebody else uses, and a failure that nothing explains, are no verdict."""
    told = torch_answer()["kernels"][0] | changes
    with pytest.raises(Unable) as caught:
        judge(Kernel.parse(told), "GPU 0")
    assert words in str(caught.value)


def test_a_kernel_that_is_right() -> None:
    """Up to the bound itself, a product is right; a claim alone is not."""
    told = torch_answer()["kernels"][0]
    assert judge(Kernel.parse(told | {"worst": 1.0}), "GPU 0") is None
    assert not Kernel.parse(told | {"ended": "busy"}).is_right


@pytest.mark.parametrize(
    ("changes", "disturb", "words"),
    [
        ({}, "idle", None),
        ({"processes": [{"pid": 42}]}, "idle", "pid 42"),
        ({"processes": [{"pid": 42}]}, "any", None),
        ({"compute_mode": "prohibited"}, "any", "prohibited"),
        ({"compute_mode": "exclusive_process"}, "idle", None),
        ({}, "none", "no GPU may be loaded"),
        (UNTOLD, "idle", "who uses it is unknown: NVML: NVML_ERROR_NO_PERMISSION"),
        (UNTOLD, "any", None),
        (UNTOLD | {"unknown": {"processes": "NVML_ERROR_NOT_SUPPORTED"}}, "idle", None),
        (UNTOLD | {"unknown": {"handle": "NVML_ERROR_GPU_IS_LOST"}}, "idle", None),
    ],
)
def test_a_gpu_in_use(changes: dict[str, Any], disturb: str, words: str | None) -> None:
    """A GPU that somebody uses, or may be using, is left alone unless the operator says otherwise.

    One in prohibited mode always is. Where NVML never lists anybody (WSL, Jetson), or does not reach the GPU at all,
    that is no reason.
    """
    why = in_use(nvml_gpu(**changes), disturb)
    assert (why is None) == (words is None)
    assert words is None or words in (why or "")


def test_what_must_not_be_loaded_is_named_with_its_slices() -> None:
    """CUDA shows the slices of a GPU that MIG splits, so that each of them has to be spared by its own UUID."""
    slices = [{"uuid": f"MIG-{uuid(7)}"}]
    gpus = [nvml_gpu(0), nvml_gpu(1, processes=[{"pid": 42}], mig=True, mig_devices=slices), nvml_gpu(2, **UNTOLD)]
    assert spared(facts(gpus=gpus), "idle") == [uuid(1), uuid(7), uuid(2)]
    assert spared(facts(gpus=gpus), "any") == []


def test_a_cpu_build_is_told_with_the_wheel_that_fits() -> None:
    """None of the facts and None of torch are the same; advice and command name the newest wheel that fits."""
    for build in ("none", None):
        finding = cpu_only(build, "2.14.1+cpu", WHEELS)
        assert finding is not None
        assert finding.params == {"version": "2.14.1+cpu", "index": "cu128"}
        assert words.of(finding, None, profile.resolve({})).commands[-1].endswith("/whl/cu128")
    assert cpu_only("13.0", "2.14.1+cu130", WHEELS) is None
    rocm = cpu_only(None, "2.14.1+rocm", WHEELS, hip="7.1")
    assert rocm is not None
    assert "ROCm 7.1" in rocm.evidence[0]


def test_a_driver_that_is_too_old_for_the_wheel() -> None:
    """The finding says what the driver supports, what the wheel needs, and which wheel it would start."""
    finding = too_old(Cuda(12, 4), Cuda(13, 0), WHEELS, "550.163.01")
    assert finding is not None
    assert finding.pitfall == "driver-too-old"
    assert finding.params == {
        "driver_cuda": "12.4",
        "wheel_cuda": "13.0",
        "driver_needed": "580.65.06",
        "index": "cu128",
    }
    assert too_old(Cuda(12, 4), Cuda(12, 8), WHEELS, "550.163.01") is None
    assert too_old(Cuda(13, 0), Cuda(12, 6), WHEELS, "580.95.05") is None


def test_the_rules_of_the_driver_hold_for_torch() -> None:
    """Where the driver starts alone and torch does not, the status behind torch's words is judged by the same facts."""
    start = Start.parse(driver_answer(0))
    finding = start_cause(facts({"uvm.node": False}), start, UNKNOWN)
    assert finding is not None
    assert finding.pitfall == "uvm-missing"
    assert start_cause(facts(), start, "words without a status") is None


def test_what_torch_saw_is_told_with_its_claim() -> None:
    """`is_available()` stands in the evidence as a claim, beside what really happened."""
    lying = Seen.parse(
        torch_answer(error={"type": "RuntimeError", "text": "CUDA unknown error"}, devices=[], kernels=[])
    )
    assert (
        lying.line
        == "torch 2.14.1+cu130 (CUDA 13.0): 0 GPU(s); is_available() claims True; RuntimeError: CUDA unknown error"
    )
    seen = Seen.parse(torch_answer())
    assert seen.ordinals([uuid(0), uuid(5)]) == (0,)
    assert Seen.parse(torch_answer(cuda_build=None, arch_flags=None)).build == "torch 2.14.1+cu130 (CPU only)"


@pytest.mark.parametrize(
    ("told", "pitfall", "words"),
    [
        (
            {"ended": "raises", "module": "torch", "text": "ModuleNotFoundError: No module named 'torch'"},
            "torch-missing",
            "raised",
        ),
        (
            {"ended": "raises", "module": "sympy", "text": "No module named 'sympy'"},
            "torch-import-failed",
            "module: sympy",
        ),
        (
            {"ended": "raises", "library": "libcudnn.so.9", "found_in": ["/opt/lib"]},
            "torch-import-failed",
            "also in: /opt/lib",
        ),
        (
            {"ended": "raises", "library": "/x/libc10.so", "damage": "too short"},
            "torch-import-failed",
            "libc10.so too short",
        ),
        (
            {"ended": "raises", "symbol": "ncclCommSplit", "culprit": "LD_LIBRARY_PATH"},
            "torch-import-failed",
            "works without",
        ),
        (
            {"ended": "signal", "code": "SIGILL", "where": ["torch/__init__.py:1 f"]},
            "torch-import-failed",
            "died of SIGILL",
        ),
        ({"ended": "hang", "where": ["x.py:3 f"]}, "torch-import-failed", "did not end"),
        ({"ended": "exits", "code": 7}, "torch-import-failed", "left with status 7"),
    ],
)
def test_why_an_import_fails(told: dict[str, Any], pitfall: str, words: str) -> None:
    """How the import ended, and what it missed, stand in the evidence."""
    finding = import_fault({**WORKS, **NOTHING, **told})
    assert finding is not None
    assert finding.pitfall == pitfall
    assert any(words in line for line in finding.evidence), finding.evidence


def test_an_import_that_works_is_no_finding() -> None:
    """Then something else is to blame."""
    assert import_fault({**WORKS, **NOTHING}) is None
