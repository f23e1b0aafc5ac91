"""The probe onnx-matches-torch-on-gpu: CUDA asked for and CPU used is a finding; the numbers are judged by provider."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gpucheck import owner, scratch
from gpucheck.judgement.gpu_turns import Turns
from gpucheck.process import Children
from gpucheck.report import Report
from gpucheck.verdict import Result, Subject, Verdict
from tests.fakes.answers import facts, nvml_gpu
from tests.probes import drive

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Judge = Callable[..., list[Result]]

DATA = str(Path(__file__).parents[1] / "data")
INSTALLED = {"package.torch": "2", "package.onnx": "1", "package.onnxruntime-gpu": "1.31"}
TWO = [nvml_gpu(0), nvml_gpu(1)]

needs_all = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("torch", "onnx", "onnxruntime")),
    reason="torch, onnx and onnxruntime are not all installed for this Python",
)


@pytest.fixture(scope="module")
def children() -> Iterator[Children]:
    """Children with torch preloaded."""
    here = owner.this_run()
    with scratch.folder(here) as folder, Children(here.run, folder, sys.executable, preload=("torch",)) as made:
        yield made


@pytest.fixture
def judge(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, children: Children, tmp_path: Path) -> Judge:
    """Runs the probe on each GPU of two; this machine has no CUDA, so what ONNX Runtime does is the real thing."""
    request.config.addinivalue_line("markers", "probe: what markers.ini declares for probes")
    probe = drive.load("onnx_matches_torch_on_gpu")
    monkeypatch.setattr(probe, "MODELS", ("onnx_models:lstm",))

    def run(provider: str = probe.CUDA, gpus: list[dict[str, Any]] = TWO, **changes: Any) -> list[Result]:
        monkeypatch.setattr(probe, "CUDA", provider)
        shared = probe.Shared(tmp_path, Turns())
        asked: list[str] = []

        def child(payload: str, args: Any, *, deadline_s: float = 120, **how: Any) -> Any:
            asked.append(payload)
            return children.run(payload, args, deadline_s=deadline_s, **how)

        results = []
        for gpu in gpus:
            report = Report("onnx-matches-torch-on-gpu", "t", Subject("gpu", gpu["uuid"], "x"), essential=("cuda",))
            read = facts({**INSTALLED, **changes}, gpus=gpus)
            error = None
            try:
                probe.test_onnx_matches_torch_on_gpu(report, read, child, drive.options_of({}, {}), gpu, shared)
            except Exception as raised:  # noqa: BLE001 - as the hooks around a probe take it
                error = raised
            results.append(report.result(error))
        assert asked.count("onnx_export") <= 1, "exports are shared"
        return results

    return run


def found(result: Result) -> list[tuple[str, str]]:
    """The findings' ids and weights."""
    return [(finding.pitfall, finding.weight.value) for finding in result.findings]


@needs_all
def test_onnx_provider_fallback(judge: Judge) -> None:
    """CUDA is asked for and the CPU runs every node, without an exception: bad, on each GPU, with the counts."""
    for result in judge():
        assert found(result) == [("onnx-provider-fallback", "bad")]
        evidence = " ".join(result.findings[0].evidence)
        assert "asked for CUDAExecutionProvider; CPUExecutionProvider ran" in evidence
        assert "CUDAExecutionProvider' is not in available provider names" in evidence


@needs_all
def test_a_provider_that_runs_its_nodes(judge: Judge) -> None:
    """Where the provider that is asked for runs every node and the numbers agree, each GPU's row is ok."""
    for result in judge("CPUExecutionProvider"):
        assert result.verdict is Verdict.OK, (result.lacking, result.findings)
        assert "cuda: the worst error is" in result.evidence[0]


@needs_all
@pytest.mark.parametrize("package", ["torch", "onnx", "onnxruntime-gpu"])
def test_without_a_package_it_does_not_apply(judge: Judge, package: str) -> None:
    """An onnxruntime for the CPU alone cannot be asked for CUDA."""
    for result in judge(**{"package.onnxruntime": "1", f"package.{package}": None}):
        assert result.verdict is Verdict.NOT_APPLICABLE
        assert result.because is not None
        assert result.because.fact == f"package.{package}"


def test_a_gpu_in_use_is_left_alone(judge: Judge) -> None:
    """Unable, with the process that is on it; the other is judged."""
    busy = [nvml_gpu(0, processes=[{"pid": 7}])]
    (result,) = judge(gpus=busy)
    assert result.verdict is Verdict.UNABLE
    assert "pid 7" in result.lacking[0]
