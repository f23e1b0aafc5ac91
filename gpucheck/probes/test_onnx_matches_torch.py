"""An exported model gives PyTorch's numbers in ONNX Runtime.

Looks at: three small models (convolution with batch norm, transformer block, LSTM), exported by the tracing exporter,
and one of them (deep: all) by the dynamo exporter, each with a dynamic batch; ONNX Runtime's answers against PyTorch's
on inputs that differ from the export sample in sign, scale and batch size, 1 among them; a run in float64 that says
which side is wrong; which execution provider really ran the nodes, from ONNX Runtime's own profile.
Why it matters: an export that is wrong still runs. Branches, sizes and statistics frozen at export agree on the sample
and nowhere else, and a provider that cannot be loaded is replaced by the CPU in silence.
Does not apply when: torch, onnx or onnxruntime is not installed. Without onnxscript the dynamo leg is
not run.
Cost and disturbance: 7 s on two cores, most of it the dynamo exporter's imports; disturbs nobody, leaves nothing.
If it is bad: each finding names model, input, size of the error and the side that is wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpucheck.legs.onnx import CPU, compare, export, judge, rule_out, sort_out

if TYPE_CHECKING:
    from pathlib import Path

    from gpucheck.facts import Facts
    from gpucheck.fixtures import Child
    from gpucheck.report import Report

pytestmark = pytest.mark.probe(subject="host", essential=("legacy",), extra=("dynamo",), deadline_s=180, cost_s=8)

MODELS = ("onnx_models:conv_norm", "onnx_models:transformer", "onnx_models:lstm")
DYNAMO = ("onnx_models:transformer",)


def test_onnx_matches_torch(report: Report, host: Facts, child: Child, scratch_folder: Path) -> None:
    """Export by each exporter, compare in a process that has never seen torch."""
    rule_out(host)
    for exporter, models in (("legacy", MODELS), ("dynamo", MODELS if report.deep else DYNAMO)):
        if report.ruled_out is not None:
            return
        with report.leg(exporter):
            exported = export(child, exporter, models, scratch_folder)
            made = sort_out(report, exporter, exported)
            if made and (compared := compare(report, child, made, [[CPU, {}]], scratch_folder)):
                judge(report, exporter, made, *compared)
