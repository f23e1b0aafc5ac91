"""The probe model-exports: a healthy model is ok, and each broken one gets the finding that names its cause."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gpucheck import owner, scratch
from gpucheck.judgement.own_code import OwnCode
from gpucheck.process import Children
from gpucheck.report import Report
from gpucheck.verdict import Result, Subject, Verdict
from tests.probes import drive

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Judge = Callable[..., Result]

DATA = str(Path(__file__).parents[1] / "data")
INSTALLED = {"package.torch": "2", "package.onnx": "1", "package.onnxruntime": "1"}

pytestmark = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("torch", "onnx", "onnxscript", "onnxruntime")),
    reason="torch, onnx, onnxscript and onnxruntime are not all installed for this Python",
)


@pytest.fixture(scope="module")
def children() -> Iterator[Children]:
    """Children that import torch each for itself, as a user's code does."""
    here = owner.this_run()
    with scratch.folder(here) as folder, Children(here.run, folder, sys.executable) as made:
        yield made


@pytest.fixture
def judge(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, children: Children, tmp_path: Path) -> Judge:
    """Runs the probe on a model of `tests/data/broken_models.py`, by those exporters."""
    request.config.addinivalue_line("markers", "probe: what markers.ini declares for probes")
    probe = drive.load("model_exports")

    def run(factory: str, *legs: str, **facts: Any) -> Result:
        monkeypatch.setattr(probe, "EXPORTERS", legs)
        report = Report("model-exports", "t", Subject("model", "x", "x"), essential=legs[:1])
        own = OwnCode(f"broken_models:{factory}", DATA, 4 << 30)

        def child(payload: str, args: Any, *, deadline_s: float = 120, **how: Any) -> Any:
            return children.run(payload, args, deadline_s=deadline_s, **how)

        error = None
        try:
            probe.test_model_exports(report, drive.facts_of({**INSTALLED, **facts}), child, own, tmp_path)
        except Exception as raised:  # noqa: BLE001 - as the hooks around a probe take it
            error = raised
        return report.result(error)

    return run


def found(result: Result) -> list[tuple[str, str]]:
    """The findings' ids and weights."""
    return [(finding.pitfall, finding.weight.value) for finding in result.findings]


def evidence(result: Result) -> str:
    """All evidence, of the result and of its findings."""
    return "\n".join([*result.evidence, *(line for finding in result.findings for line in finding.evidence)])


@pytest.mark.parametrize("factory", ["healthy", "half", "embedded", "ignores_an_input"])
def test_a_healthy_model_is_ok(judge: Judge, factory: str) -> None:
    """Also in float16, with several inputs and outputs, and with an input that an exporter drops."""
    result = judge(factory, "legacy")
    assert result.verdict is Verdict.OK, (result.findings, result.lacking)
    assert "single (batch 1); CPUExecutionProvider ran" in evidence(result)


def test_both_exporters(judge: Judge) -> None:
    """Each is a leg."""
    result = judge("healthy", "legacy", "dynamo")
    assert (result.verdict, result.legs) == (Verdict.OK, ("legacy", "dynamo"))


@pytest.mark.parametrize(
    ("factory", "pitfall", "words"),
    [
        ("branch", "traced-constant", "the tracer warned: Converting a tensor to a Python boolean"),
        ("branch_in_training", "traced-constant", "the tracer warned: Converting a tensor to a Python boolean"),
        ("frozen_scale", "traced-constant", "something was frozen when it was exported"),
        ("tiny", "traced-constant", "something was frozen when it was exported"),
        ("frozen_batch", "traced-constant", "single input (batch 1)"),
        ("data_dependent_size", "traced-constant", "ONNX Runtime gives float32 [8]"),
        ("training", "exported-in-train-mode", "in training mode at export: 0, 1"),
        ("sways", "exported-in-train-mode", "in training mode at export: model"),
        ("dropout", "exported-in-train-mode", "PyTorch itself answers differently when asked twice"),
        ("not_a_number", "onnx-drift", "not finite"),
        ("infinite", "onnx-drift", "past tolerance"),
        ("unsupported", "onnx-operator-unsupported", "linalg_eigvalsh"),
        ("in_float64", "ort-op-not-implemented", "NOT_IMPLEMENTED"),
        ("not_a_model", "own-code-raises", "gives a Tensor, not a (module, example)"),
        ("fixed_batch", "own-code-raises", "legacy, running: RuntimeError: shape '[2, 8]' is invalid"),
    ],
)
def test_by_tracing(judge: Judge, factory: str, pitfall: str, words: str) -> None:
    """Each way to be wrong is one finding, which names its cause."""
    result = judge(factory, "legacy")
    assert found(result) == [(pitfall, "bad")], result.lacking
    assert words in evidence(result)


@pytest.mark.parametrize(
    ("factory", "pitfall"),
    [
        ("branch", "export-data-dependent"),
        ("frozen_batch", "traced-constant"),
        ("training", "exported-in-train-mode"),
        ("unsupported", "onnx-export-failed"),
    ],
)
def test_by_dynamo(judge: Judge, factory: str, pitfall: str) -> None:
    """A branch on the data is refused here; train mode and a fixed batch are no better than by tracing."""
    assert found(judge(factory, "dynamo")) == [(pitfall, "bad")]


def test_a_training_mode_that_changes_no_answer_is_not_accused(judge: Judge) -> None:
    """The flag of a linear layer means nothing; what the tracer froze is named alone."""
    assert "in training mode" not in evidence(judge("branch_in_training", "legacy"))


def test_one_cause_is_one_finding(judge: Judge) -> None:
    """What both exporters show is found once, with the evidence of both."""
    result = judge("training", "legacy", "dynamo")
    assert found(result) == [("exported-in-train-mode", "bad")]
    assert "dynamo: broken_models:training, negated input" in evidence(result)


def test_a_refusal_of_one_exporter_alone_is_degraded(judge: Judge) -> None:
    """The other takes the model, and gives it right."""
    result = judge("only_by_tracing", "legacy", "dynamo")
    assert found(result) == [("export-data-dependent", "degraded")]
    assert "the legacy exporter takes it, and gives it right" in evidence(result)


def test_bfloat16_is_not_compared(judge: Judge) -> None:
    """It is unable, and no fault of the model's."""
    result = judge("in_bfloat16", "legacy")
    assert (result.verdict, found(result)) == (Verdict.UNABLE, [])
    assert "bfloat16" in " ".join(result.lacking)


def test_constant_outputs_are_never_ok(judge: Judge) -> None:
    """Zeros on both sides show nothing."""
    result = judge("zeros", "legacy")
    assert result.verdict is Verdict.UNABLE
    assert "the same whatever the input" in str(result.lacking)


def test_a_name_that_is_not_there(judge: Judge) -> None:
    """Unable, naming the folder."""
    result = judge("absent", "legacy")
    assert (result.verdict, found(result)) == (Verdict.UNABLE, [])
    assert f"looked for from {DATA}" in " ".join(result.lacking)


@pytest.mark.parametrize("package", ["torch", "onnx", "onnxruntime"])
def test_without_a_package_it_does_not_apply(judge: Judge, package: str) -> None:
    """A known fact rules it out."""
    assert judge("healthy", "legacy", **{f"package.{package}": None}).verdict is Verdict.NOT_APPLICABLE
