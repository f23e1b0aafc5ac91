"""Your own model gives PyTorch's numbers when it is exported to ONNX.

Looks at: the model and the example that --gpucheck-model MODULE:FACTORY gives, imported from the folder in which
gpucheck was started: export by the tracing and the dynamo exporter with a dynamic batch; ONNX Runtime's answers against
PyTorch's on inputs that differ from the example in sign, scale and batch size, 1 among them; a run in float64 that
says which side is wrong; whether a module is in training mode, and whether PyTorch itself answers alike twice.
Why it matters: an export that is wrong still runs. A branch, a size or a statistic frozen at export agrees on the
example and nowhere else; an exporter that refuses is the better case.
Does not apply when: torch, onnx or onnxruntime is not installed. Without --gpucheck-model it is not
there. Without onnxscript the dynamo leg is not run.
Cost and disturbance: your code runs, in an interpreter of its own an exporter, for at most 90 seconds each and with a
quarter of the available memory; what it writes or downloads is yours.
If it is bad: each finding names exporter, input, size of the error and the side that is wrong. A model that one
exporter takes and gives right, and the other refuses, is degraded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from gpucheck.judgement import onnx_drift, own_code
from gpucheck.legs.loader import ended_itself
from gpucheck.legs.onnx import CPU, compare, exported, judge, rule_out
from gpucheck.verdict import Unable, bad

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from gpucheck.facts import Facts
    from gpucheck.fixtures import Child
    from gpucheck.judgement.own_code import OwnCode
    from gpucheck.report import Report

pytestmark = pytest.mark.probe(subject="model", essential=("legacy",), extra=("dynamo",), deadline_s=240, cost_s=15)

EXPORTERS = ("legacy", "dynamo")


def test_model_exports(report: Report, host: Facts, child: Child, model: OwnCode, scratch_folder: Path) -> None:
    """Export it by each exporter, cold and capped; compare in a process that has never seen torch."""
    rule_out(host)
    report.limit("memory_bytes", model.memory_bytes, "a quarter of what is available")
    refused: dict[str, str] = {}
    for exporter in EXPORTERS:
        if report.ruled_out is not None:
            break
        with report.leg(exporter):
            made = export(report, child, exporter, model, scratch_folder)
            fault = made.get("fault") if made else None
            if fault and fault["kind"] == "unjudged":
                raise Unable(f"a comparison: {fault['told']}")
            if fault and fault["stage"] == "exporting":
                refused[exporter] = fault["told"]
            elif fault:
                raised(report, exporter, fault, model)
            elif made and (compared := compare(report, child, {model.spec: made}, [[CPU, {}]], scratch_folder)):
                judge(report, exporter, {model.spec: made}, *compared, own=True)
    weigh(report, refused, model)


def export(report: Report, child: Child, exporter: str, model: OwnCode, folder: Path) -> Mapping[str, Any] | None:
    """The export by one exporter, or its fault; None where the model ended its process, which is a finding."""
    args = {"exporter": exporter, "folder": str(folder), "models": [model.spec], **model.args}
    reply = child("onnx_export", args, **model.how)
    if ended_itself(report, exporter, reply, model, model.running(None)):
        return None
    made: Mapping[str, Any] = exported(reply, exporter)[model.spec]
    return made


def raised(report: Report, exporter: str, fault: Mapping[str, Any], model: OwnCode) -> None:
    """An exception of the model's own, before an exporter had a part in it."""
    params = own_code.at_loading(model, fault["told"])
    if fault["stage"] == "running":
        params["call"] = model.running(fault["batch"])
    report.take(bad(own_code.RAISES, fault["told"], **params), label=f"{exporter}, {fault['stage']}")


def weigh(report: Report, refused: Mapping[str, str], model: OwnCode) -> None:
    """A refusal is a defect where no exporter gave a right model, and a warning where the other one did."""
    works = [one for one in EXPORTERS if one in report.ran and one not in refused] if not report.findings else []
    for exporter, told in refused.items():
        model.refuse_at_cap(told)
        say = report.degraded if works else report.bad
        also = [f"the {works[0]} exporter takes it, and gives it right"] if works else []
        say(onnx_drift.refused(told), f"{exporter}: {told}", *also, exporter=exporter, model=model.spec)
