"""Torch can be imported.

Looks at: `import torch` in a fresh process of the judged Python, with this environment, watched: an exception, a crash,
an exit, a hang. Where it fails: the module, library or symbol that was missing, what wanted it, what was imported
instead, and the environment variable without which it works.
Why it matters: a torch that is installed and does not import stops each job, with a GPU or without; other probes that
need torch can then not look at what they are for.
Without torch: "torch is not installed" is no reason to be green, since nothing was then learnt of a job that needs it.
It is bad in a Python that was named to be judged, and unable elsewhere. Where no job uses this machine's own Python,
name the images of the jobs (--gpucheck-image), or say so: --gpucheck-allow-unable torch-imports.
Does not apply when: torch is not installed, and images were named whose torch is judged in its place.
Cost and disturbance: one import of torch, two to four seconds; disturbs nobody, leaves nothing.
If it is bad: the finding says what was missing or where the import hung, and what is to blame.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from gpucheck.judgement import computation, packages
from gpucheck.legs.replies import import_of_torch
from gpucheck.verdict import NotApplicable, Unable

if TYPE_CHECKING:
    from gpucheck.facts import Facts
    from gpucheck.fixtures import Child
    from gpucheck.profile import Options
    from gpucheck.report import Report

pytestmark = pytest.mark.probe(subject="host", essential=("import",), disturbs="none", deadline_s=120, cost_s=3)


def test_torch_imports(report: Report, host: Facts, child: Child, options: Options) -> None:
    """Import it and say how that ended."""
    packages.must_know(host, "torch")
    if packages.without(host, "torch") is not None:
        without_torch(report, host, options)
        return
    with report.leg("import"):
        told = import_of_torch(child)
        if (finding := computation.import_fault(told)) is not None:
            report.take(finding)
            return
        report.measure("import_s", told["import_s"])
        report.saw(f"torch {told['version']} was imported in {told['import_s']:.1f} s")
        report.sum_up(report.evidence[-1])


def without_torch(report: Report, host: Facts, options: Options) -> None:
    """No torch: a defect, unless nobody said that it should be here; never a green."""
    python = host.known("python.executable") or sys.executable
    if options["python"] is not None:
        report.bad("torch-missing", f"{python}: torch is not installed")
    elif options["image"]:
        said = "torch is not installed; that of the images is judged"
        raise NotApplicable("package.torch", said, "--gpucheck-image")
    else:
        raise Unable(
            f"torch: it is not installed in {python}: {packages.install('torch')}",
            "or the Python that your jobs use: --gpucheck-python PYTHON",
            "or the image that they run in: --gpucheck-image IMAGE",
        )
