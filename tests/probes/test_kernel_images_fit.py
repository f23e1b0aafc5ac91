"""Each verdict of ``kernel-images-fit``, from torch's answers as recorded; whole machines are in ``tests/real``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from gpucheck import profile
from gpucheck.probes import test_kernel_images_fit
from gpucheck.process import Ended, Failure, NoAnswer, Reply, Value
from gpucheck.report import Report
from gpucheck.verdict import Result, Subject
from tests.fakes.answers import driver_answer, facts, nvml_gpu, torch_answer, uuid

probe: Any = test_kernel_images_fit  # taken with children that answer what a test gives
TORCH = {"package.torch": "2.14.1", "nvml.cuda_version": "13.0"}
NO_IMAGE = "CUDA error: no kernel image is available for execution on the device\nSearch for `cudaErrorNoKernelImage"
V100: dict[str, Any] = {"name": "Tesla V100", "capability": "7.0"}


@dataclass
class Answering:
    """A child whose payloads answer what a test gives; it keeps what was asked."""

    answers: dict[str, Any]

    def __post_init__(self) -> None:
        self.asked: list[tuple[str, Any]] = []

    def __call__(self, payload: str, args: Any, **_: Any) -> Reply:
        """The answer as a reply."""
        self.asked.append((payload, args))
        answer = self.answers[payload]
        return Reply(answer if isinstance(answer, Failure | NoAnswer) else Value(answer), Ended("exit", 0))


def answering(**torch: Any) -> Answering:
    """A driver that starts and torch with these changes."""
    return Answering({"cuda_driver": driver_answer(0), "cuda_torch": torch_answer(**torch)})


def judge_gpu(gpu: dict[str, Any], child: Answering, host: dict[str, Any] | None = None, **option: str) -> Result:
    """What the probe says of one GPU."""
    report = Report("kernel-images-fit", "a title", Subject("gpu", "id", "GPU 0"), essential=("images", "launch"))
    machine = facts({**TORCH, **(host or {})}, gpus=[gpu])
    error = None
    try:
        probe.test_runs(report, machine, child, profile.resolve(option), gpu, {})
    except Exception as raised:  # noqa: BLE001 - as the hooks around a probe take it
        error = raised
    return report.result(error)


def judge_host(child: Answering, *capabilities: str, gpus: list[dict[str, Any]], **host: Any) -> Result:
    """What the probe says of a host whose profile expects these capabilities."""
    report = Report("kernel-images-fit", "a title", Subject("host", "id", "here"), essential=("images",))
    options = replace(profile.resolve({}), profile=profile.Profile(expect={"capabilities": list(capabilities)}))
    error = None
    try:
        probe.test_kernel_images_fit(report, facts({**TORCH, **host}, gpus=gpus), child, options, {})
    except Exception as raised:  # noqa: BLE001 - as above
        error = raised
    return report.result(error)


def kernel(**changes: Any) -> list[dict[str, Any]]:
    """The one kernel's entry, with changes."""
    return [torch_answer()["kernels"][0] | changes]


def found(result: Result) -> list[str]:
    """The pitfalls of a result."""
    return [finding.pitfall for finding in result.findings]


def test_machine_code_that_runs() -> None:
    """By the rules and by a launch: both stand in the evidence."""
    result = judge_gpu(nvml_gpu(), answering())
    assert result.verdict == "ok"
    assert result.legs == ("images", "launch")
    assert "runs as it is" in result.evidence[0]
    assert "its numbers are right" in result.evidence[1]


def test_a_gpu_that_newer_wheels_dropped() -> None:
    """V100 under CUDA 13: the launch confirms it, and the finding says that an upgrade cannot help."""
    device = torch_answer()["devices"][0] | V100
    child = answering(devices=[device], kernels=kernel(ended="failure", type="AcceleratorError", text=NO_IMAGE))
    result = judge_gpu(nvml_gpu(**V100), child)
    assert found(result) == ["wheel-newer-wrong"]
    assert any("a newer CUDA than 12.8 does not help" in line for line in result.findings[0].evidence)
    assert any("no kernel image" in line for line in result.evidence)


@pytest.mark.parametrize(
    ("flags", "cuda", "driver", "verdict", "pitfall"),
    [
        pytest.param("sm_50 sm_90", "12.6", "13.0", "bad", "no-kernel-image", id="a newer wheel fits"),
        pytest.param("sm_80 compute_80", "12.6", "13.0", "degraded", "jit-only", id="PTX alone"),
        pytest.param("sm_80 compute_80", "13.0", "12.8", "bad", "ptx-too-new", id="PTX that the driver cannot read"),
    ],
)
def test_code_that_does_not_fit(flags: str, cuda: str, driver: str, verdict: str, pitfall: str) -> None:
    """B200 under wheels that were built for others."""
    device = torch_answer()["devices"][0] | {"capability": "10.0"}
    runs = kernel() if pitfall == "jit-only" else kernel(ended="failure", type="AcceleratorError", text=NO_IMAGE)
    child = answering(arch_flags=flags.split(), cuda_build=cuda, devices=[device], kernels=runs)
    result = judge_gpu(nvml_gpu(capability="10.0"), child, {"nvml.cuda_version": driver})
    assert (result.verdict, found(result)) == (verdict, [pitfall])


def test_a_launch_without_an_image_against_the_rules() -> None:
    """Where the list promises code and the driver finds none, the launch decides."""
    result = judge_gpu(nvml_gpu(), answering(kernels=kernel(ended="failure", type="AcceleratorError", text=NO_IMAGE)))
    assert found(result) == ["no-kernel-image"]


def test_a_launch_that_the_rules_exclude_is_our_bug() -> None:
    """A kernel that ran although no image is for the GPU shows that the rules are wrong: no ok, and no defect."""
    result = judge_gpu(nvml_gpu(capability="12.0"), answering(arch_flags=["sm_90"], cuda_build="12.8"))
    assert (result.verdict, found(result)) == ("checker-error", [])
    assert "by the rules no image is for 12.0" in result.lacking[0]


ERROR_802 = {"type": "RuntimeError", "text": "Error 802: system not yet initialized"}
FAILURE_719 = {"ended": "failure", "text": "unspecified launch failure"}
NO_TORCH = Answering({"cuda_driver": driver_answer(0), "cuda_torch": Failure("ImportError", "no", "")})


@pytest.mark.parametrize(
    ("child", "host", "words"),
    [
        pytest.param(
            Answering({"cuda_driver": driver_answer(999)}), {}, "a driver that starts", id="CUDA does not start"
        ),
        pytest.param(answering(cuda_build=None, arch_flags=None), {}, "CPU only", id="a CPU build"),
        pytest.param(answering(error=ERROR_802), {}, "Error 802", id="torch does not start"),
        pytest.param(answering(kernels=kernel(**FAILURE_719)), {}, "unspecified", id="the kernel fails"),
        pytest.param(answering(devices=[], kernels=[]), {}, "does not show it", id="torch does not show the GPU"),
        pytest.param(NO_TORCH, {}, "ImportError", id="torch cannot be imported"),
    ],
)
def test_what_cuda_available_explains_is_no_second_finding(child: Answering, host: dict[str, Any], words: str) -> None:
    """A GPU on which nothing could be launched for another reason is unable, and blocked by that probe."""
    result = judge_gpu(nvml_gpu(), child, host)
    assert (result.verdict, found(result), result.blocked_by) == ("unable", [], "cuda-available")
    assert words in " ".join(result.lacking)


def test_a_busy_gpu_is_not_asked() -> None:
    """Not even counted: no payload runs."""
    child = answering()
    result = judge_gpu(nvml_gpu(processes=[{"pid": 4242}]), child)
    assert result.verdict == "unable"
    assert child.asked == []


def test_a_busy_neighbour_is_spared() -> None:
    """The payload is told which GPU to leave alone."""
    child = answering()
    busy = nvml_gpu(1, processes=[{"pid": 7}])
    machine = {"nvml.gpus": [nvml_gpu(0), busy]}
    judge_gpu(nvml_gpu(0), child, machine)
    (args,) = [args for payload, args in child.asked if payload == "cuda_torch"]
    assert args["kernel"] == "add"
    assert uuid(0) not in args["spare"]


def test_expected_capabilities_are_judged_by_the_rules_alone() -> None:
    """No GPU has them here, so nothing is launched, and the row says so."""
    child = answering()
    result = judge_host(child, "9.0", "12.1", gpus=[])
    assert result.verdict == "ok"
    assert [missed.leg for missed in result.not_run] == ["launch"]
    assert child.asked[0][1]["kernel"] is None
    assert found(judge_host(answering(), "7.0", gpus=[])) == ["wheel-newer-wrong"]


def test_a_cpu_build_cannot_serve_what_is_expected() -> None:
    """The profile expects a GPU somewhere, and this torch has no CUDA."""
    result = judge_host(answering(cuda_build=None, arch_flags=None), "9.0", gpus=[])
    assert found(result) == ["cpu-only-wheel"]
    assert result.findings[0].params["index"] == "cu134"


def test_nothing_expected_beside_the_gpus_here() -> None:
    """Each GPU has a row of its own; the host's row has nothing to add, by the profile."""
    for expected in ((), ("9.0",)):
        result = judge_host(answering(), *expected, gpus=[nvml_gpu()])
        assert result.verdict == "not-applicable"


def test_no_gpu_and_nothing_expected() -> None:
    """The reason is that there is no GPU, in the words of the other probes."""
    none: dict[str, Any] = {"gpu.pci": [], "gpu.nodes": [], "gpu.proc": [], "gpu.expected": []}
    result = judge_host(answering(), gpus=[], **none)
    assert result.because is not None
    assert result.because.value == "no NVIDIA device, and nothing expects one"
