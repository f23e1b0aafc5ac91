"""The probe dataloader-spawn-safe: ok on this machine, and each finding provoked by a dataset, a limit or a cgroup."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import gpucheck
from gpucheck import owner, scratch
from gpucheck.facts import Fact, Facts
from gpucheck.process import Children
from gpucheck.report import Report
from gpucheck.verdict import NotApplicable, Result, Subject, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PROBE = Path(gpucheck.__file__).parent / "probes" / "test_dataloader_spawn_safe.py"
DATA = str(Path(__file__).parents[1] / "data")
MIB = 1 << 20
# A Python whose torch is a CUDA build; it needs no GPU. Too large to install for every run of the tests.
CUDA_PYTHON = os.environ.get("GPUCHECK_CUDA_PYTHON", "")
HERE = {"package.torch": "2", "torch.cuda_build": "none", "cpu.quota": None}

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed here")
needs_cuda_build = pytest.mark.skipif(not CUDA_PYTHON, reason="GPUCHECK_CUDA_PYTHON names no Python")


def no_container(*_: Any, **__: Any) -> Any:
    """What the fixture ``container`` is where there is no engine."""
    raise NotApplicable("engine.clients", "no container engine installed", "PATH")


@dataclass
class Seeded:
    """Children whose payload gets other arguments, or runs under other limits, for the legs that ``when`` picks."""

    children: Children
    args: dict[str, Any] = field(default_factory=dict)
    how: dict[str, Any] = field(default_factory=dict)
    when: Callable[[dict[str, Any], dict[str, Any]], bool] = lambda _args, _how: True
    asked: list[dict[str, Any]] = field(default_factory=list)

    def __call__(self, payload: str, args: dict[str, Any], **how: Any) -> Any:
        """Run a payload, seeded or not."""
        self.asked.append(args)
        if self.when(args, how):
            args, how = {**args, **self.args}, {**how, **self.how}
        return self.children.run(payload, args, deadline_s=100, **how)


def broken(children: Children, factory: str, *methods: str, **args: Any) -> Seeded:
    """Children that read a dataset of `tests/data/broken_datasets.py` by these start methods."""
    name = factory if ":" in factory else f"broken_datasets:{factory}"
    seed = {"dataset": name, "path": [DATA], "stack": False, "batch": 2, **args}
    return Seeded(children, seed, when=lambda asked, _: asked["start_methods"][0] in methods and "hold" not in asked)


@contextmanager
def leaving(what: Any, name: str, value: Any) -> Iterator[None]:
    """Set an attribute for the block's time."""
    before = getattr(what, name)
    setattr(what, name, value)
    try:
        yield
    finally:
        setattr(what, name, before)


@dataclass
class Judge:
    """Runs the probe's function, or one leg of it, as the hooks around a probe do."""

    probe: Any

    def __call__(
        self, child: Any, *, legs: tuple[str, ...] = (), container: Any = no_container, **facts: Any
    ) -> Result:
        """The probe's result; with ``legs`` only those start methods are tried. ``package__torch=None`` is a fact."""
        known = {name.replace("__", "."): value for name, value in facts.items()}
        rows = [Fact(name, value, "the test") for name, value in {**HERE, **known}.items()]
        report = Report("dataloader-spawn-safe", "t", Subject("host", "x", "here"), essential=legs or ("fork", "spawn"))
        error = None
        methods = {name: how for name, how in self.probe.METHODS.items() if not legs or name in legs}
        with leaving(self.probe, "METHODS", methods):
            try:
                self.probe.test_dataloader_spawn_safe(report, Facts(rows), child, container)
            except Exception as raised:  # noqa: BLE001 - as the hooks around a probe take it
                error = raised
        return report.result(error)

    def after_cuda(self, child: Seeded, build: str = "13.0") -> Report:
        """The leg fork-after-cuda by itself."""
        report = Report("dataloader-spawn-safe", "t", Subject("host", "x", "here"))
        with report.leg("fork-after-cuda"):
            self.probe.fork_after_cuda(report, Facts([Fact("torch.cuda_build", build, "torch/version.py")]), child)
        return report


@pytest.fixture(scope="module")
def judge(request: pytest.FixtureRequest) -> Judge:
    """The probe, loaded from its file: nothing may import it."""
    request.config.addinivalue_line("markers", "probe: what markers.ini declares for probes")
    spec = importlib.util.spec_from_file_location("probe_dataloader_spawn_safe", PROBE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return Judge(module)


def found(result: Result) -> list[tuple[str, str]]:
    """The findings' ids and weights."""
    return [(finding.pitfall, finding.weight.value) for finding in result.findings]


def evidence(result: Result) -> str:
    """All evidence, of the result and of its findings."""
    return "\n".join([*result.evidence, *(line for finding in result.findings for line in finding.evidence)])


@pytest.fixture(scope="module")
def children() -> Iterator[Children]:
    """Children with torch preloaded."""
    here = owner.this_run()
    with scratch.folder(here) as folder, Children(here.run, folder, sys.executable, preload=("torch",)) as made:
        yield made


@needs_torch
def test_this_machine_is_ok(judge: Judge, children: Children) -> None:
    """Every leg that can run here runs, is measured and says what it saw; the others say why they did not."""
    result = judge(Seeded(children))
    assert result.verdict is Verdict.OK, (result.findings, result.lacking)
    assert result.legs == ("fork", "spawn", "forkserver", "descriptors")
    assert [missed.leg for missed in result.not_run] == ["fork-after-cuda", "container"]
    for method in ("fork", "spawn", "forkserver"):
        assert 0 < result.measures[f"{method}_epoch_s"] < 60
        assert result.measures[f"{method}_first_batch_s"] > 0
        read = f"{method}: 24 samples in each of 2 epochs by 2 workers, each once, in order, unaltered"
        assert read in evidence(result)
    assert "64 batches held" in evidence(result)


@needs_torch
def test_a_loader_never_waits_without_end(judge: Judge, children: Children) -> None:
    """Every leg gives the loader a time-out, its own or the payload's default."""
    child = Seeded(children)
    judge(child, legs=("fork",))
    assert all(asked.get("timeout_s", 20) > 0 for asked in child.asked)


@pytest.mark.usefixtures("children")
def test_without_torch_it_does_not_apply(judge: Judge, children: Children) -> None:
    """A known fact rules it out; no child is started."""
    child = Seeded(children)
    result = judge(child, package__torch=None)
    assert result.verdict is Verdict.NOT_APPLICABLE
    assert result.because is not None
    assert result.because.fact == "package.torch"
    assert child.asked == []


@needs_torch
def test_a_torch_that_cannot_be_imported_is_not_ours_to_judge(judge: Judge, children: Children, tmp_path: Path) -> None:
    """The probe that imports torch reports that; this one is unable and keeps the words."""
    (tmp_path / "torch").mkdir()
    broken_import = "raise ImportError('libcudart.so.13: cannot open shared object file')\n"
    (tmp_path / "torch" / "__init__.py").write_text(broken_import)
    result = judge(Seeded(children, how={"warm": False, "env": {"PYTHONPATH": str(tmp_path)}}), legs=("fork",))
    assert result.verdict is Verdict.UNABLE
    assert "libcudart.so.13" in " ".join(result.lacking)


@needs_torch
@pytest.mark.parametrize(
    ("factory", "pitfall", "words"),
    [
        ("killed", "dataloader-worker-died", "killed by SIGKILL"),
        ("segfaults", "dataloader-worker-crashed", "killed by SIGSEGV"),
        ("exits", "dataloader-worker-died", "worker: exit 3"),
    ],
)
def test_dataloader_worker_died(judge: Judge, children: Children, factory: str, pitfall: str, words: str) -> None:
    """A worker that is killed, crashes or leaves: the finding says how it ended, and is as sharp as its words."""
    result = judge(broken(children, factory, "fork"), legs=("fork",))
    assert found(result) == [(pitfall, "bad")]
    assert words in evidence(result)


@needs_torch
def test_dataloader_timeout(judge: Judge, children: Children) -> None:
    """A worker that hangs is found by the loader's own time-out."""
    result = judge(broken(children, "hangs", "fork", timeout_s=1), legs=("fork",))
    assert found(result) == [("dataloader-timeout", "bad")]


@needs_torch
def test_unpicklable_dataset(judge: Judge, children: Children) -> None:
    """Works by fork, fails by both others: one finding, with the attribute to blame; the second is more evidence."""
    result = judge(broken(children, "with_lambda", "fork", "spawn", "forkserver"))
    assert found(result) == [("unpicklable-dataset", "bad")]
    assert "spawn: what does not pickle: dataset.load" in evidence(result)
    assert "forkserver: what does not pickle: dataset.load" in evidence(result)


@needs_torch
def test_main_guard_missing(judge: Judge, children: Children) -> None:
    """The true reason is taken from the worker's stderr."""
    result = judge(broken(children, "no_main_guard:make", "spawn"), legs=("spawn",))
    assert found(result) == [("main-guard-missing", "bad")]
    assert "worker's stderr: RuntimeError: An attempt has been made to start a new process" in evidence(result)


@needs_torch
def test_main_module_not_importable(judge: Judge, children: Children) -> None:
    """A class that a fresh interpreter does not have."""
    result = judge(broken(children, "nowhere", "spawn", timeout_s=60), legs=("spawn",))
    assert found(result) == [("main-module-not-importable", "bad")]
    assert "Can't get attribute 'Nowhere'" in evidence(result)


@needs_torch
def test_shm_too_small(judge: Judge, children: Children) -> None:
    """Batches that do not fit into /dev/shm: not a worker that died."""
    seed = broken(children, "Large", "fork", stack=True)
    seed.how = {"shm_bytes": MIB}
    result = judge(seed, legs=("fork",))
    if result.verdict is Verdict.UNABLE:
        pytest.skip(f"no mount namespace here: {result.lacking}")
    assert found(result) == [("shm-too-small", "bad")]
    assert result.findings[0].params["shm_need"]


@needs_torch
def test_nofile_too_low(judge: Judge, children: Children) -> None:
    """The host's own limit does not suffice for an epoch's batches: the limit and the torch error are evidence."""
    child = Seeded(children, how={"limits": {"nofile": 200}}, when=lambda args, how: "hold" in args and not how)
    result = judge(child, legs=("fork",))
    assert found(result) == [("nofile-too-low", "bad")]
    assert "descriptors: limit 200 (hard 200)" in evidence(result)
    assert result.limits["nofile"]["value"] == 200


@needs_torch
def test_a_small_limit_that_is_not_felt_is_no_evidence(judge: Judge, children: Children) -> None:
    """Where 64 descriptors suffice, holding batches shows nothing about the host's limit, and the leg says so."""
    child = Seeded(children, args={"hold": False}, when=lambda args, how: "hold" in args and bool(how))
    result = judge(child, legs=("fork",))
    assert result.verdict is Verdict.OK
    assert "descriptors" not in result.legs
    assert any(missed.leg == "descriptors" and "64 open files were enough" in missed.why for missed in result.not_run)


@needs_torch
@pytest.mark.parametrize(("quota", "weight"), [(0.5, "degraded"), (None, None)])
def test_workers_exceed_cpu(judge: Judge, children: Children, quota: float | None, weight: str | None) -> None:
    """torch counts the CPUs of the affinity mask; a quota below that starves the workers it suggests."""
    result = judge(Seeded(children), legs=("fork",), cpu__quota=quota)
    assert found(result) == ([("workers-exceed-cpu", weight)] if weight else [])
    if weight:
        assert result.verdict is Verdict.DEGRADED
        assert f"torch counts {len(os.sched_getaffinity(0))} CPUs, the quota grants 0.5" in evidence(result)


@needs_torch
def test_a_narrow_affinity_that_torch_sees_is_no_finding(judge: Judge, children: Children) -> None:
    """One CPU in the mask and a quota of one: torch suggests one worker, and that is right."""
    mask = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(mask)})
    try:
        result = judge(Seeded(children, how={"warm": False}), legs=("fork",), cpu__quota=1.0)
    finally:
        os.sched_setaffinity(0, mask)
    assert found(result) == []
    assert "CPUs: 1 by affinity, quota 1" in evidence(result)


@needs_torch
def test_workers_exceed_cpu_in_a_real_cgroup(judge: Judge, children: Children) -> None:
    """A cgroup with half a CPU: the fact is read there, and the finding follows from it."""
    parent = Path("/sys/fs/cgroup/cpu")
    made = (parent if parent.is_dir() else parent.parent) / "gpucheck-test-quota"
    try:
        made.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    try:
        if (made / "cpu.cfs_quota_us").exists():
            (made / "cpu.cfs_quota_us").write_text("50000")
        else:
            (made / "cpu.max").write_text("50000 100000")
        inside = f'echo $$ > {made}/cgroup.procs; exec "$@"'
        argv = ["sh", "-c", inside, "sh", sys.executable, "-m", "gpucheck.facts", "--names", "cpu.quota"]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
    except OSError as error:
        pytest.skip(f"this cgroup takes no quota: {error}")
    finally:
        made.rmdir()
    quota = json.loads(done.stdout)["facts"]["cpu.quota"]["value"]
    assert quota == 0.5
    assert found(judge(Seeded(children), legs=("fork",), cpu__quota=quota)) == [("workers-exceed-cpu", "degraded")]


@needs_torch
def test_samples_altered(judge: Judge, children: Children) -> None:
    """Workers that deliver other bytes than the parent reads, named by sample."""
    result = judge(broken(children, "InWorkers", "fork"), legs=("fork",))
    assert found(result) == [("samples-altered", "bad")]
    assert "fork: epoch 1: altered 8 of 8 samples, first 0, 1, 2" in evidence(result)


@needs_torch
@pytest.mark.parametrize("factory", ["Empty", "raises"])
def test_what_our_own_dataset_never_does_is_our_bug(judge: Judge, children: Children, factory: str) -> None:
    """An empty epoch, and an exception of the dataset's own, are never an ok."""
    result = judge(broken(children, factory, "fork"), legs=("fork",))
    assert result.verdict is Verdict.CHECKER_ERROR


@needs_torch
def test_fewer_workers_than_asked_for_is_our_bug(judge: Judge, children: Children) -> None:
    """A leg read by one worker is no evidence for two."""
    child = Seeded(children, args={"workers": 1}, when=lambda args, _: "workers" in args)
    assert judge(child, legs=("fork",)).verdict is Verdict.CHECKER_ERROR


@needs_torch
def test_in_a_container(children: Children, docker_host: str) -> None:
    """The same payload, by fork and spawn, in one container of the mirror image."""
    argv = [sys.executable, "-m", "gpucheck", "run", "-k", "dataloader_spawn_safe"]
    with scratch.folder(owner.this_run()) as folder:
        record = folder / "record.jsonl"
        env = {**os.environ, "DOCKER_HOST": docker_host}
        argv += ["--record", str(record), "--level", "default"]
        subprocess.run(argv, env=env, cwd=folder, capture_output=True, timeout=250, check=False)
        rows = [json.loads(line) for line in record.read_text().splitlines()]
    (result,) = [row for row in rows if row["kind"] == "result"]
    assert "container" in result["legs"], result["not_run"]
    assert {"container_fork_epoch_s", "container_spawn_epoch_s"} <= set(result["measures"])


# ---------------------------------------------------------------------------------- CUDA builds of torch


def test_fork_after_cuda_is_not_run_on_a_cpu_build(judge: Judge, children: Children) -> None:
    """A CPU build has no CUDA to initialise; the fact that says so is named."""
    report = judge.after_cuda(Seeded(children), build="none")
    assert [missed.leg for missed in report.missed] == ["fork-after-cuda"]
    assert report.missed[0].why.startswith("a CPU build of torch")


@pytest.fixture(scope="module")
def cuda_children() -> Iterator[Children]:
    """Children of a Python with a CUDA build of torch, preloaded."""
    here = owner.this_run()
    with scratch.folder(here) as folder, Children(here.run, folder, CUDA_PYTHON, preload=("torch",)) as made:
        yield made


@needs_cuda_build
def test_being_refused_after_cuda_is_the_safe_outcome(judge: Judge, cuda_children: Children) -> None:
    """torch tells the forked worker that it cannot use CUDA; nothing hangs."""
    report = judge.after_cuda(Seeded(cuda_children))
    assert report.findings == []
    assert report.ran == ["fork-after-cuda"]
    assert report.evidence == ["fork-after-cuda: refused in the worker with torch's own words, as it must be"]


@needs_cuda_build
@pytest.mark.parametrize("factory", ["hangs", "segfaults"])
def test_fork_after_cuda(judge: Judge, cuda_children: Children, factory: str) -> None:
    """A forked worker that hangs or crashes instead is the defect."""
    report = judge.after_cuda(broken(cuda_children, factory, "fork", timeout_s=1))
    assert [finding.pitfall for finding in report.findings] == ["fork-after-cuda"]


@needs_cuda_build
def test_a_dataset_that_uses_cuda_in_forked_workers(judge: Judge, cuda_children: Children) -> None:
    """The same refusal in a leg that must work, a user's dataset, is a finding."""
    seed = Seeded(cuda_children, {"dataset": "loader_datasets:after_cuda"}, when=lambda args, _: "hold" not in args)
    result = judge(seed, legs=("fork",))
    assert found(result) == [("fork-after-cuda", "bad")]
