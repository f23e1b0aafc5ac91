"""Torch can be imported.

Looks at: `import torch` in a fresh process of the judged Python, with this environment, watched: an exception, a crash,
an exit, a hang. Where it fails: the module, library or symbol that was missing, what wanted it, what was imported
instead, and the environment variable without which it works.
Why it matters: a torch that is installed and does not import stops each job, with a GPU or without; other probes that
need torch can then not look at what they are for.
Does not apply when: torch is not installed.
Cost and disturbance: one import of torch, two to four seconds; disturbs nobody, leaves nothing.
If it is bad: the finding says what was missing or where the import hung, and what is to blame.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpucheck.judgement import computation, packages
from gpucheck.legs.replies import import_of_torch

if TYPE_CHECKING:
    from gpucheck.facts import Facts
    from gpucheck.fixtures import Child
    from gpucheck.report import Report

pytestmark = pytest.mark.probe(subject="host", essential=("import",), disturbs="none", deadline_s=120, cost_s=3)


def test_torch_imports(report: Report, host: Facts, child: Child) -> None:
    """Import it and say how that ended."""
    packages.must_know(host, "torch")
    packages.need(host, "torch")
    with report.leg("import"):
        told = import_of_torch(child)
        if (finding := computation.import_fault(told)) is not None:
            report.take(finding)
            return
        report.measure("import_s", told["import_s"])
        report.saw(f"torch {told['version']} was imported in {told['import_s']:.1f} s")
        report.sum_up(report.evidence[-1])
