"""What a comparison shows: every way to be wrong, and every way to agree and show nothing."""

from __future__ import annotations

import math
from typing import Any

import pytest

from gpucheck.judgement.onnx_drift import drift, fallback, refused, slips, strays, worst_share

CPU = "CPUExecutionProvider"
NEAR = {"worst": 1e-7, "worst_share": 0.02, "beyond": 0}
FAR = {"worst": 0.5, "worst_share": 500.0, "beyond": 3}
NAN = {"worst": None, "worst_share": None, "beyond": 8}


def output(**changes: Any) -> dict[str, Any]:
    """An output that agrees."""
    well = {
        "dtype": "float32", "shape": [2, 4], "expected_shape": [2, 4], "elements": 8, "largest": 2.0, "spread": 3.0,
        "apart": NEAR, "torch_again": NEAR, "onnx_from_referee": NEAR, "torch_from_referee": NEAR,
    }  # fmt: skip
    return {name: part for name, part in {**well, **changes}.items() if part is not None}


def case(name: str, batch: int, *outputs: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A case."""
    return {"name": name, "batch": batch, "outputs": list(outputs or [output()]), **more}


def model(*cases: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A comparison in which all is well, but for what is given."""
    whole = {"cases": list(cases or (case("sample", 2), case("negated", 2), case("single", 1)))}
    return {**whole, "unmoved": [], "providers": [CPU], "nodes": {CPU: 8}, **changes}


def test_agreement() -> None:
    """Nothing is wrong, nothing is missing."""
    assert drift("m", model()) == []
    assert slips(model()) == []


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"apart": FAR, "onnx_from_referee": FAR}, "3 of 8 elements past tolerance, worst error 0.5 at up to 2"),
        ({"apart": NAN, "largest": None}, "8 of 8 elements past tolerance, not finite"),
        ({"mismatch": "float32 [2, 4]", "expected_shape": [1, 4]}, "gives float32 [2, 4], PyTorch float32 [1, 4]"),
        ({"onnx_from_referee": FAR, "torch_from_referee": FAR}, "0 of 8 elements past tolerance"),
        ({"elements": 0}, "0 of 0 elements"),
    ],
    ids=["far", "nan", "shape", "both wrong alike", "empty"],
)
def test_a_wrong_output_is_drift(changes: dict[str, Any], line: str) -> None:
    """Also when both sides agree with one another and neither with float64, and when there is nothing to compare."""
    lines = drift("m", model(case("sample", 2), case("single", 1, output(**changes))))
    assert line in lines[0]
    assert lines[0].startswith("m, single input (batch 1): ")


@pytest.mark.parametrize(
    ("onnx", "torch", "words"),
    [
        (FAR, NEAR, "ONNX Runtime's answer is the wrong one"),
        (NEAR, FAR, "PyTorch's own float32 answer is the wrong one"),
        (FAR, FAR, "both are far"),
        (NEAR, NEAR, "neither"),
    ],
)
def test_the_referee_names_the_side(onnx: Any, torch: Any, words: str) -> None:
    """By distance from a run in float64."""
    wrong = output(apart=FAR, onnx_from_referee=onnx, torch_from_referee=torch)
    assert any(line.startswith(f"float64 referee: {words}") for line in drift("m", model(case("negated", 2, wrong))))


def test_without_a_referee_no_side_is_blamed() -> None:
    """A model that does not run in float64."""
    wrong = output(apart=FAR, onnx_from_referee=None, torch_from_referee=None)
    assert "there is no float64 run to say which side is wrong" in drift("m", model(case("negated", 2, wrong)))


def test_randomness_comes_before_blame() -> None:
    """Where PyTorch does not agree with itself the referee's word means nothing."""
    wrong = output(apart=FAR, torch_again=FAR, onnx_from_referee=FAR)
    lines = drift("m", model(case("negated", 2, wrong)))
    assert not any("referee" in line for line in lines)


@pytest.mark.parametrize("right", [True, False])
def test_frozen_is_said_only_when_the_sample_agrees(right: bool) -> None:
    """Agreement on the sample alone is what freezing looks like."""
    sample = output() if right else output(apart=FAR)
    lines = drift("m", model(case("sample", 2, sample), case("negated", 2, output(apart=FAR))))
    assert any("frozen" in line for line in lines) is right


def test_a_refusal_to_run_is_drift() -> None:
    """In ONNX Runtime's words, on one line."""
    refused = {"name": "smaller", "batch": 5, "refused": "InvalidArgument: Got invalid\n dimensions"}
    lines = drift("m", model(case("sample", 2), refused))
    assert lines[0] == "m, smaller input (batch 5): InvalidArgument: Got invalid dimensions"


@pytest.mark.parametrize(
    ("shown", "found"),
    [
        (model(case("sample", 2)), ["nothing but the export sample was compared", "batch sizes [2] only"]),
        (model(case("sample", 2), case("negated", 2)), ["batch sizes [2] only"]),
        (model(case("sample", 2), case("smaller", 5)), ["batch sizes [2, 5] only"]),
        (model(unmoved=[0]), ["output 0 is the same whatever the input"]),
        (model(nodes={}), ["no node left a trace in ONNX Runtime's profile"]),
        (
            model({"name": "sample", "batch": 2, "outputs": []}, {"name": "single", "batch": 1, "outputs": []}),
            ["nothing but the export sample was compared"],
        ),
    ],
)
def test_slips(shown: dict[str, Any], found: list[str]) -> None:
    """Each way to agree and show nothing is named."""
    assert slips(shown) == found


@pytest.mark.parametrize(
    ("nodes", "fell_back"),
    [
        ({CPU: 8}, True),
        ({}, True),
        ({"CUDAExecutionProvider": 7, CPU: 1}, False),
        ({"CUDAExecutionProvider": 8}, False),
    ],
)
def test_fallback(nodes: dict[str, int], fell_back: bool) -> None:
    """The provider that was asked for must have run nodes; a few shape computations on the CPU are normal."""
    assert (fallback("CUDAExecutionProvider", model(nodes=nodes)) is not None) is fell_back


def test_worst_share() -> None:
    """The worst of all, infinite when something is not finite or nothing was compared."""
    assert worst_share({"a": model(), "b": model(case("single", 1, output(apart=FAR)))}) == 500.0
    assert worst_share({"a": model(case("single", 1, output(apart=NAN)))}) == math.inf
    assert worst_share({}) == math.inf


CUDA = "CUDAExecutionProvider"


@pytest.mark.parametrize(
    ("operators", "elsewhere"),
    [
        ({CUDA: ["Conv", "Gemm"]}, ""),
        ({CUDA: ["Conv"], "CPUExecutionProvider": ["Gather", "Shape", "Concat"]}, ""),
        (
            {CUDA: ["Conv"], "CPUExecutionProvider": ["Softmax", "Shape", "Gemm"]},
            "Gemm, Softmax on CPUExecutionProvider",
        ),
    ],
)
def test_operators_that_ran_elsewhere(operators: dict[str, list[str]], elsewhere: str) -> None:
    """Operators on shapes belong on the CPU; those that compute do not."""
    assert strays(CUDA, {"operators": operators}) == elsewhere


@pytest.mark.parametrize(
    ("told", "pitfall"),
    [
        ("GuardOnDataDependentSymNode: Could not guard on data-dependent expression", "export-data-dependent"),
        ("ConstraintViolationError: Constraints violated (batch)!", "export-dynamic-shapes"),
        ("UnsupportedOperatorError: Exporting the operator 'aten::x'", "onnx-operator-unsupported"),
        ("ValueError: something else", "onnx-export-failed"),
    ],
)
def test_what_an_exporters_refusal_means(told: str, pitfall: str) -> None:
    """By the exporter's own words; what they do not say is an export that failed."""
    assert refused(told) == pitfall
