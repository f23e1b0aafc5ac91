"""Your own dataset gives every sample once, in order and unaltered, by every start method.

Looks at: the dataset that --gpucheck-dataset MODULE:FACTORY makes, imported from the folder in which gpucheck was
started: whether it pickles, and two epochs of at most 64 of its samples, spread from the first to the last, through two
worker processes by fork, spawn and forkserver, each sample compared with what the parent reads itself. A batch is a
list of samples; your collate_fn is not used.
Why it matters: Linux has forked workers for years and Python 3.14 no longer does; a lambda, an open file or a script
without a main guard then stops a job that has always worked, and torch often says only that a worker went away.
Does not apply when: torch is not installed. Without --gpucheck-dataset it is not there.
Cost and disturbance: your code runs, in an interpreter of its own a start method, for at most 90 seconds each and with
a quarter of the available memory a process; what it writes or downloads is yours.
If it is bad: the finding names the start method, the attribute or the exception, and the worker's own last words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from gpucheck.judgement import packages
from gpucheck.legs.loader import BATCH, EPOCHS, WORKERS, ended_itself, judge, value

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpucheck.facts import Facts
    from gpucheck.fixtures import Child
    from gpucheck.judgement.own_code import OwnCode
    from gpucheck.report import Report

pytestmark = pytest.mark.probe(
    subject="dataset", essential=("fork", "spawn"), extra=("forkserver",), deadline_s=240, cost_s=9
)

READING = {"workers": WORKERS, "epochs": EPOCHS, "batch": BATCH, "samples": 64, "stack": False}
METHODS: Mapping[str, Mapping[str, Any]] = {
    "fork": {"timeout_s": 30},
    "spawn": {"persistent": True, "timeout_s": 60},
    "forkserver": {"persistent": True, "timeout_s": 60},
}


def test_dataset_spawn_safe(report: Report, host: Facts, child: Child, dataset: OwnCode) -> None:
    """Read it by every start method, cold and capped."""
    packages.need(host, "torch")
    report.limit("memory_bytes", dataset.memory_bytes, "a quarter of what is available, for each process")
    works = []
    for method, how in METHODS.items():
        before = len(report.findings)
        with report.leg(method):
            args = {"dataset": dataset.spec, "start_methods": [method], **READING, **how, **dataset.args}
            reply = child("loader_epochs", args, **dataset.how)
            if not ended_itself(report, method, reply, dataset, dataset.reading(None)):
                leg = value(reply, f"{dataset.spec} by {method}")["legs"][method]
                judge(report, method, leg, method, dataset)
                works += [method] if "fault" not in leg and len(report.findings) == before else []
    if works == ["fork"] and report.findings:
        report.saw("it works by fork only, which is not Python's default from 3.14 on")
