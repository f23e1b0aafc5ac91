"""Each fault end to end: the fault is brought up, its probe goes red in its words, and the record says what it was.

The faults of one probe are rehearsed in one run, one after another. What needs a CUDA build of torch is rehearsed with
the Python that ``GPUCHECK_CUDA_PYTHON`` names.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest

import gpucheck
from gpucheck.rehearsal.faults import FAULTS, Fault, Need
from tests.conftest import lacking

if TYPE_CHECKING:
    from collections.abc import Callable

CUDA_PYTHON = os.environ.get("GPUCHECK_CUDA_PYTHON", "")
LIMIT_S = 900


@dataclass(frozen=True)
class Rehearsed:
    """What one run printed, wrote and returned."""

    status: int
    out: str
    rows: list[dict[str, Any]]

    def results(self, fault: str) -> list[dict[str, Any]]:
        """The rows of one fault."""
        return [row for row in self.rows if row["kind"] == "result" and row["rehearsal"] == fault]


def run(folder: Path, *faults: str, python: str = "", env: dict[str, str] | None = None) -> Rehearsed:
    """``gpucheck run --rehearse`` of those faults."""
    record = folder / f"{'-'.join(faults)[:60]}.jsonl"
    argv = [
        sys.executable,
        "-m",
        "gpucheck",
        "run",
        "--lang=en",
        f"--rehearse={','.join(faults)}",
        f"--record={record}",
    ]
    argv += [f"--python={python}"] if python else []
    done = subprocess.run(
        argv, cwd=folder, env=os.environ | (env or {}), capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.stderr == ""
    return Rehearsed(done.returncode, done.stdout, [json.loads(line) for line in record.read_text().splitlines()])


def needs_cuda(fault: Fault) -> bool:
    """Whether it is rehearsed with the CUDA build."""
    return Need.CUDA_TORCH in fault.needs


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Fault, str], Rehearsed]:
    """The run of a fault and of all others of its probe that need the same Python, made once."""
    made: dict[tuple[str, bool], Rehearsed] = {}

    def of(fault: Fault, docker_host: str) -> Rehearsed:
        key = (fault.probe, needs_cuda(fault))
        if key not in made:
            alike = [other.id for other in FAULTS.values() if (other.probe, needs_cuda(other)) == key]
            python = CUDA_PYTHON if needs_cuda(fault) else ""
            folder = tmp_path_factory.mktemp("rehearsal")
            made[key] = run(folder, *alike, python=python, env={"DOCKER_HOST": docker_host})
        return made[key]

    return of


def demand(fault: Fault) -> None:
    """Skip where this machine cannot rehearse it; in CI that is a failure."""
    if needs_cuda(fault) and not CUDA_PYTHON:
        pytest.skip("GPUCHECK_CUDA_PYTHON names no Python")
    if Need.MACHINE in fault.needs and (os.geteuid() != 0 or not shutil.which("gcc")):
        lacking("playing a machine needs root and gcc")
    if Need.ONNX in fault.needs:
        pytest.importorskip("onnxruntime")
    if Need.TORCH in fault.needs:
        pytest.importorskip("torch")
    if Need.NO_PODMAN in fault.needs and shutil.which("podman"):
        pytest.skip("podman is installed")


@pytest.mark.timeout(LIMIT_S)
@pytest.mark.parametrize("fault", FAULTS.values(), ids=lambda fault: fault.id)
def test_a_fault_turns_its_probe_red(
    fault: Fault, rehearsed: Callable[[Fault, str], Rehearsed], docker_host: str
) -> None:
    """Its pitfall is found, with evidence, words and something to do, in rows that say which fault was rehearsed."""
    demand(fault)
    ran = rehearsed(fault, docker_host)
    rows = ran.results(fault.id)
    found = {finding["pitfall"]: finding for row in rows for finding in row["findings"]}
    brought = [found[pitfall] for pitfall in fault.pitfalls if pitfall in found]
    assert brought, ran.out
    assert {row["probe"] for row in rows} == {fault.probe}
    assert brought[0]["headline"] in ran.out
    assert brought[0]["evidence"]
    assert brought[0]["remedy"]
    assert f"rehearsal: {fault.id}: {fault.probe} went red: {brought[0]['pitfall']}" in ran.out
    assert not [row for row in ran.rows if row["kind"] == "result" and row["verdict"] == "checker-error"], ran.out


def test_the_record_says_that_it_was_a_rehearsal(tmp_path: Path) -> None:
    """Its run, its rows and its verdict about the machine; and it follows the schema. Status 1: the probe went red."""
    ran = run(tmp_path, "gpu-missing")
    first, last = ran.rows[0], ran.rows[-1]
    assert ran.status == 1
    assert first["rehearsal"] == ["gpu-missing"]
    assert (last["kind"], last["machine_verdict"], last["exit"]) == ("summary", "rehearsal", 1)
    assert "REHEARSAL of gpu-missing: what follows says nothing about this machine" in ran.out
    (left_out,) = [row["left_out"] for row in ran.rows if row["kind"] == "plan"]
    assert {"probe": "cuda-available", "why": "rehearsal of another"} in left_out
    schema = json.loads(Path(gpucheck.__file__).with_name("record.schema.json").read_text())
    for row in ran.rows:
        jsonschema.validate(row, schema)


def test_it_has_a_record_of_its_own_kind(tmp_path: Path) -> None:
    """Without a file named, it lies beside the machine's records under a name that says what it is."""
    argv = [sys.executable, "-m", "gpucheck", "run", "--rehearse=gpu-missing"]
    environment = os.environ | {"XDG_STATE_HOME": str(tmp_path)}
    subprocess.run(argv, cwd=tmp_path, env=environment, capture_output=True, timeout=120, check=False)
    (record,) = (tmp_path / "gpucheck").iterdir()
    assert record.name.startswith("rehearsal-")


def test_what_cannot_be_rehearsed_is_undecided(tmp_path: Path) -> None:
    """One fault of two lacks what it needs: 10, with the reason, and the other is rehearsed all the same."""
    argv = [sys.executable, "-m", "gpucheck", "run", "--engine=none", "--rehearse=volume-lost,gpu-missing"]
    record = tmp_path / "record.jsonl"
    done = subprocess.run(
        [*argv, f"--record={record}"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 10
    said = " ".join(done.stdout.split())
    assert "rehearsal: volume-lost: volume-persists could not be rehearsed: a container engine: " in said
    assert "rehearsal: gpu-missing: gpus-present went red: gpu-missing" in said
    rows = [json.loads(line) for line in record.read_text().splitlines()]
    (lost,) = [row for row in rows if row["kind"] == "result" and row["rehearsal"] == "volume-lost"]
    assert (lost["probe"], lost["verdict"]) == ("volume-persists", "unable")


def test_a_probe_that_stays_green_is_a_defect_of_ours(tmp_path: Path) -> None:
    """Where the probe looks and does not go red the run says so loudly and is undecided.

    A data set that does nothing wrong cannot be named as a fault, so a payload that ignores its fault is put in place.
    """
    package = tmp_path / "gpucheck"
    shutil.copytree(Path(gpucheck.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    faults = package / "rehearsal" / "faults.py"
    faults.write_text(faults.read_text().replace('Change(expect={"gpus": 1000})', 'Change(options={"engine": "none"})'))
    probe = package / "probes" / "test_gpus_present.py"
    start = '    """The probe."""\n'
    assert start in probe.read_text()
    probe.write_text(probe.read_text().replace(start, f'{start}    report.saw("nothing")\n    return\n', 1))
    argv = [sys.executable, "-m", "gpucheck", "run", "--rehearse=gpu-missing", f"--record={tmp_path / 'r.jsonl'}"]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 10
    assert "gpu-missing: gpus-present did NOT go red: it said ok" in " ".join(done.stdout.split())
    assert "CHECKER ERROR" in done.stdout


def test_an_unknown_fault_is_a_usage_error(tmp_path: Path) -> None:
    """It names those that there are, by both doors, and nothing runs."""
    for argv in (["gpucheck", "run", "--rehearse=shm"], ["pytest", "--gpucheck", "--gpucheck-rehearse=shm"]):
        done = subprocess.run(
            [sys.executable, "-m", *argv], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 4
        assert "no fault is called shm; those to rehearse are shm-too-small, " in done.stdout + done.stderr


def test_in_a_pytest_session_it_closes_the_gate(tmp_path: Path) -> None:
    """The user's tests do not run on a machine that was made to fail, and the status is the rehearsal's."""
    (tmp_path / "test_mine.py").write_text("def test_mine():\n    assert True\n")
    argv = [sys.executable, "-m", "pytest", "--gpucheck", "--gpucheck-rehearse=gpu-missing", "test_mine.py"]
    done = subprocess.run(
        [*argv, f"--gpucheck-record={tmp_path / 'r.jsonl'}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    assert "REHEARSAL of gpu-missing" in done.stdout
    assert "rehearsal: gpu-missing: gpus-present went red: gpu-missing" in done.stdout
    assert "1 skipped" in done.stdout


def test_the_list_says_what_each_fault_brings_up_and_needs() -> None:
    """Every fault stands in ``gpucheck list --faults`` with probe, pitfall and needs."""
    done = subprocess.run(
        [sys.executable, "-m", "gpucheck", "list", "--faults"], capture_output=True, text=True, timeout=60, check=True
    )
    for fault in FAULTS.values():
        assert f"{fault.id} " in done.stdout
        assert f"{fault.probe} says {' or '.join(fault.pitfalls)}" in done.stdout
    assert "cuda-available says driver-too-old; needs root, unshare and gcc, a CUDA build of torch" in done.stdout
