"""The probe dataset-spawn-safe: a healthy dataset is ok, and each broken one gets the finding that names its cause."""

from __future__ import annotations

import importlib.util
import subprocess
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
GIB = 1 << 30

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed here")


@pytest.fixture(scope="module")
def children() -> Iterator[Children]:
    """Children that import torch each for itself, as a user's code does."""
    here = owner.this_run()
    with scratch.folder(here) as folder, Children(here.run, folder, sys.executable) as made:
        yield made


@pytest.fixture
def judge(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, children: Children) -> Judge:
    """Runs the probe on a dataset of `tests/data`, by those start methods."""
    request.config.addinivalue_line("markers", "probe: what markers.ini declares for probes")
    probe = drive.load("dataset_spawn_safe")

    def run(factory: str, *legs: str, limit_s: float = 100, memory_bytes: int = 2 * GIB) -> Result:
        monkeypatch.setattr(probe, "METHODS", {leg: probe.METHODS[leg] for leg in legs})
        report = Report("dataset-spawn-safe", "t", Subject("dataset", "x", "x"), essential=legs)
        name = factory if ":" in factory else f"broken_datasets:{factory}"

        def child(payload: str, args: Any, *, deadline_s: float, **how: Any) -> Any:
            return children.run(payload, args, deadline_s=min(deadline_s, limit_s), **how)

        error = None
        try:
            facts = drive.facts_of({"package.torch": "2"})
            probe.test_dataset_spawn_safe(report, facts, child, OwnCode(name, DATA, memory_bytes))
        except Exception as raised:  # noqa: BLE001 - as the hooks around a probe take it
            error = raised
        return report.result(error)

    return run


def found(result: Result) -> list[str]:
    """The findings' ids; each of them bad."""
    assert {finding.weight for finding in result.findings} <= {Verdict.BAD}
    return [finding.pitfall for finding in result.findings]


def evidence(result: Result) -> str:
    """All evidence, of the result and of its findings."""
    return "\n".join([*result.evidence, *(line for finding in result.findings for line in finding.evidence)])


def test_a_healthy_dataset_is_ok(judge: Judge) -> None:
    """By every start method, with what was read and the cap as evidence."""
    result = judge("Numbers", "fork", "spawn", "forkserver")
    assert result.verdict is Verdict.OK, (result.findings, result.lacking)
    for method in ("fork", "spawn", "forkserver"):
        assert f"{method}: 8 samples in each of 2 epochs by 2 workers, each once, in order, unaltered" in evidence(
            result
        )
    assert result.limits["memory_bytes"]["value"] == 2 * GIB


def test_a_large_dataset_is_read_in_part(judge: Judge) -> None:
    """Of a million samples 64 are read, and the row says so."""
    assert "fork: 64 of 1000000 samples" in evidence(judge("Many", "fork"))


def test_samples_that_do_not_stack_are_no_fault(judge: Judge) -> None:
    """A batch is a list: what a collate_fn would do is not judged."""
    assert judge("Nested", "fork").verdict is Verdict.OK


def test_random_samples_are_not_compared(judge: Judge) -> None:
    """An augmentation is healthy; that its samples were not compared is said."""
    result = judge("Random", "fork", "spawn")
    assert result.verdict is Verdict.OK
    assert "not compared, because they differ each time they are read" in evidence(result)
    told = [(missed.leg, missed.why) for missed in result.not_run]
    assert told == [("contents of samples", "samples differ each time they are read")]
    assert result.gist == "8 samples in each of 2 epochs by 2 workers, each once, in order"


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        ("with_lambda", "what does not pickle: dataset.load"),
        ("with_file", "what does not pickle: dataset.load.held"),
        ("with_lock", "cannot pickle '_thread.lock'"),
        ("local_class", "Can't pickle local object"),
    ],
)
def test_unpicklable_dataset(judge: Judge, factory: str, words: str) -> None:
    """It works by fork and not by spawn: the finding names the attribute or the class, the row that fork works."""
    result = judge(factory, "fork", "spawn")
    assert found(result) == ["unpicklable-dataset"]
    assert words in evidence(result)
    assert "it works by fork only" in evidence(result)


def test_inherited_handle(judge: Judge) -> None:
    """One open file under forked workers gives other samples; the file is named."""
    result = judge("Shared", "fork")
    assert found(result) == ["inherited-handle"]
    assert "opened before the workers started: /" in evidence(result)


def test_samples_altered(judge: Judge) -> None:
    """Other samples without an open file are no handle's fault."""
    assert found(judge("InWorkers", "fork")) == ["samples-altered"]


@pytest.mark.parametrize(
    ("factory", "leg", "words"),
    [
        ("no_main_guard:make", "spawn", "An attempt has been made to start a new process"),
        ("trains_at_import:make", "fork", "trains_at_import.py:24 starts a process when it is imported"),
    ],
)
def test_main_guard_missing(judge: Judge, factory: str, leg: str, words: str) -> None:
    """A script that starts workers where it is imported, by spawn or, without any error, by fork."""
    result = judge(factory, leg)
    assert found(result) == ["main-guard-missing"]
    assert words in evidence(result)


def test_main_module_not_importable(judge: Judge) -> None:
    """A class that a fresh interpreter does not have."""
    assert found(judge("nowhere", "spawn")) == ["main-module-not-importable"]


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        ("raises", "fork: sample 5: "),
        ("Stream", "no __getitem__ and __len__"),
        ("leaves", "SystemExit: no data here"),
        ("crashes", "its process: killed by SIGSEGV"),
    ],
)
def test_own_code_raises(judge: Judge, factory: str, words: str) -> None:
    """In a worker, where the dataset is made, by leaving and by crashing."""
    result = judge(factory, "fork")
    assert found(result) == ["own-code-raises"]
    assert words in evidence(result)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_the_exception_is_told_with_the_sample_and_a_call_that_raises_it(judge: Judge, method: str) -> None:
    """Its own type and words, not torch's "Caught ... in worker process"; what is typed fails as the worker did."""
    (finding,) = judge("Torn", method).findings
    assert finding.evidence == (f"{method}: sample 5: KeyError: 'no such sample'",)
    assert finding.params["call"] == "broken_datasets.Torn()[5]"
    code = f"import {finding.params['module']}; {finding.params['call']}"
    argv = [sys.executable, "-c", code]
    done = subprocess.run(argv, cwd=finding.params["folder"], capture_output=True, check=False)
    assert done.stderr.decode().splitlines()[-1] == "KeyError: 'no such sample'"


@pytest.mark.parametrize(("factory", "pitfall"), [("killed", "dataloader-worker-died"), ("Empty", "dataset-empty")])
def test_other_faults(judge: Judge, factory: str, pitfall: str) -> None:
    """A worker that is killed, and a dataset without samples."""
    assert found(judge(factory, "fork")) == [pitfall]


def test_the_time_cap(judge: Judge) -> None:
    """Code that does not come back is unable, with where it hung."""
    result = judge("waits", "fork", limit_s=15)
    assert (result.verdict, found(result)) == (Verdict.UNABLE, [])
    assert "broken_datasets.py" in " ".join(result.lacking)


def test_the_memory_cap(judge: Judge) -> None:
    """Code that wants more than its cap is unable, whatever torch makes of it."""
    result = judge("Huge", "fork")
    assert (result.verdict, found(result)) == (Verdict.UNABLE, [])
    assert "wants more than its cap of 2.0 GiB a process" in " ".join(result.lacking)


@pytest.mark.parametrize("factory", ["nothing_there:make", "broken_datasets:absent"])
def test_a_name_that_is_not_there(judge: Judge, factory: str) -> None:
    """Module or factory not found: unable, naming the folder, not a defect of a dataset."""
    result = judge(factory, "fork")
    assert (result.verdict, found(result)) == (Verdict.UNABLE, [])
    assert f"looked for from {DATA}" in " ".join(result.lacking)
