"""The probe dataloader-feeds-gpu, over real torch on machines that are played; `ci/cuda` makes what that needs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpucheck.fakes import machine
from gpucheck.judgement.gpu_turns import Turns
from gpucheck.report import Report
from gpucheck.verdict import NotApplicable, Subject, Unable
from tests.fakes import answers
from tests.fakes.answers import facts, nvml_gpu
from tests.probes import drive

ROOT = Path(__file__).parents[2]
PYTHON = os.environ.get("GPUCHECK_CUDA_PYTHON") or str(ROOT / ".venv-cuda" / "bin" / "python")

needs_cuda_build = pytest.mark.skipif(
    not os.access(PYTHON, os.X_OK) or os.getuid() != 0, reason=f"no {PYTHON} (see ci/cuda), or not root"
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-ins for driver and CUDA runtime."""
    ask = [PYTHON, "-c", "import site; print(site.getsitepackages()[0])"]
    site_packages = subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip()
    return machine.build(tmp_path_factory.mktemp("built"), Path(site_packages))


def judged(name: str, built: Path, home: Path, **extra: Any) -> list[dict[str, Any]]:
    """The rows of that machine's GPUs; ``extra`` are answers of the last GPU's stand-ins."""
    played = machine.load(name)
    *others, last = played.cards
    played = replace(played, cards=(*others, replace(last, extra={**last.extra, **extra})))
    played.write(home, built)
    argv = [sys.executable, str(answers.HERE / "judge.py"), PYTHON, "dataloader_feeds_gpu"]
    env = os.environ | played.environment(home)
    done = subprocess.run(
        played.enter(home, argv), env=env, cwd=home, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return rows


def found(row: dict[str, Any]) -> list[str]:
    """The findings' ids."""
    return [finding["pitfall"] for finding in row["findings"]]


@needs_cuda_build
def test_eight_healthy_gpus(built: Path, tmp_path: Path) -> None:
    """Pinned batches, workers that compute, and a refusal after a fork: on each of eight, from three children."""
    rows = judged("eight-h100", built, tmp_path)
    assert [row["verdict"] for row in rows] == ["ok"] * 8
    for row in rows:
        assert row["legs"] == ["pinned", "in-workers", "forked"]
        evidence = "\n".join(row["evidence"])
        assert "pinned: 24 samples in each of 2 epochs by 2 workers, each once, in order, unaltered" in evidence
        assert "in-workers: 8 samples right, computed by 2 spawned workers" in evidence
        assert "forked: refused in the worker in torch's own words" in evidence


@needs_cuda_build
def test_kernels_that_fail_in_workers(built: Path, tmp_path: Path) -> None:
    """Copies work and kernels do not: the finding is the kernel's, not a worker's."""
    (row,) = judged("launch-fails", built, tmp_path)
    assert found(row) == ["launch-failure"]
    assert row["legs"] == ["pinned", "in-workers", "forked"]


@needs_cuda_build
def test_memory_that_cannot_be_pinned(built: Path, tmp_path: Path) -> None:
    """The pin-memory thread's error is told for what it is; the legs that pin nothing are right."""
    (row,) = judged("rtx-4090", built, tmp_path, pinned=2)
    assert row["verdict"] in ("bad", "unable"), row
    assert "out of memory" in json.dumps(row)
    assert row["legs"][-2:] == ["in-workers", "forked"]


@needs_cuda_build
def test_one_gpu_of_eight_fails(built: Path, tmp_path: Path) -> None:
    """Its kernels do not run in workers: it alone has the finding."""
    rows = judged("eight-h100", built, tmp_path, launch=719)
    assert [row["verdict"] for row in rows] == [*["ok"] * 7, "bad"]
    assert found(rows[7]) == ["launch-failure"]


def look(**told: dict[str, Any]) -> Report:
    """The legs of one GPU on what the payload told of it."""
    probe = drive.load("dataloader_feeds_gpu")
    report = Report("dataloader-feeds-gpu", "t", Subject("gpu", "x", "x"), essential=("pinned", "in-workers"))
    cards, card = probe.gpu_turns.place(facts({"package.torch": "2"}), nvml_gpu(0), "idle")
    turns = Turns({leg.replace("_", "-"): {0: one} for leg, one in told.items()})
    asked = probe.Look(report, None, turns, cards, card)
    for leg in told:
        with report.leg(leg.replace("_", "-")):
            getattr(asked, leg)()
    return report


COMPUTED: dict[str, Any] = {"samples": 8, "workers": [0, 1], "wrong": [], "errors": []}


@pytest.fixture(autouse=True)
def mark(request: pytest.FixtureRequest) -> None:
    """What markers.ini declares for probes."""
    request.config.addinivalue_line("markers", "probe: what markers.ini declares for probes")


def test_wrong_numbers_in_workers() -> None:
    """Samples that a worker computed wrong are named."""
    report = look(in_workers={**COMPUTED, "wrong": [3]})
    assert [finding.pitfall for finding in report.findings] == ["wrong-numbers"]


def test_batches_that_are_not_pinned_are_no_ok() -> None:
    """torch goes on in silence where it cannot pin; the leg does not."""
    report = look(pinned={"unpinned": 12})
    assert any("torch did not pin 12 batches" in missed.why for missed in report.missed)


def test_a_forked_worker_that_dies_of_cuda() -> None:
    """Being refused is right; dying of it is the defect."""
    fault = {"stage": "running", "told": "DataLoader timed out after 40 seconds", "exit_codes": [], "worker_stderr": ""}
    report = look(forked={"fault": fault})
    assert [finding.pitfall for finding in report.findings] == ["fork-after-cuda"]


def test_a_forked_worker_that_is_not_refused() -> None:
    """Where torch does not refuse, nothing is shown."""
    report = look(forked=COMPUTED)
    assert any("torch let a forked worker use CUDA" in missed.why for missed in report.missed)


@pytest.mark.parametrize(
    ("changes", "gpu", "kind"),
    [
        ({"package.torch": None}, nvml_gpu(0), NotApplicable),
        ({"package.torch": "2", "torch.cuda_build": "none"}, nvml_gpu(0), Unable),
        ({"package.torch": "2"}, nvml_gpu(0, processes=[{"pid": 7}]), Unable),
    ],
)
def test_when_it_does_not_look(changes: dict[str, Any], gpu: dict[str, Any], kind: type[Exception]) -> None:
    """No torch rules it out; a torch without CUDA, and a GPU in use, leave it unable."""
    probe = drive.load("dataloader_feeds_gpu")
    report = Report("dataloader-feeds-gpu", "t", Subject("gpu", "x", "x"))
    options = drive.options_of({}, {})
    with pytest.raises(kind):
        probe.test_dataloader_feeds_gpu(report, facts(changes, gpus=[gpu]), None, options, gpu, {})
