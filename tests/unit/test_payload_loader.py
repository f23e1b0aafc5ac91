"""The payload that reads a DataLoader, run in children: every fault is made by the dataset or by the kernel."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gpucheck import owner, scratch
from gpucheck.judgement.loader_faults import Fault, discrepancies, slips
from gpucheck.process import Children, Failure, Value

if TYPE_CHECKING:
    from collections.abc import Iterator

DATA = str(Path(__file__).parents[1] / "data")
MIB = 1 << 20

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed for this Python")


@pytest.fixture(scope="module")
def children() -> Iterator[Children]:
    """Children with torch preloaded."""
    here = owner.this_run()
    with scratch.folder(here) as folder, Children(here.run, folder, sys.executable, preload=("torch",)) as made:
        yield made


def answer(children: Children, method: str, args: dict[str, Any] | None = None, **how: Any) -> dict[str, Any]:
    """What the payload returned."""
    reply = children.run("loader_epochs", {"start_methods": [method], **(args or {})}, deadline_s=100, **how)
    if reply.refusal:
        pytest.skip(f"no mount namespace here: {reply.refusal}")
    assert isinstance(reply.answer, Value), (reply.answer, reply.ended, reply.errors)
    value: dict[str, Any] = reply.answer.value
    return value


def broken(children: Children, method: str, factory: str, args: dict[str, Any] | None = None, **how: Any) -> Any:
    """The leg of one start method with a dataset of `tests/data/broken_datasets.py`."""
    name = factory if ":" in factory else f"broken_datasets:{factory}"
    seeded = {"dataset": name, "path": [DATA], "stack": False, "batch": 2, **(args or {})}
    return answer(children, method, seeded, **how)["legs"][method]


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_reads_every_sample_once_in_order(children: Children, method: str) -> None:
    """Two epochs by two persistent workers of the start method asked for: all samples, shuffled, unaltered."""
    leg = answer(children, method, {"persistent": True, "timeout_s": 60})["legs"][method]
    assert slips(leg, method, workers=2, epochs=2) == []
    assert discrepancies(leg) == []
    assert [epoch["samples"] for epoch in leg["epochs"]] == [24, 24]
    assert leg["epochs"][0]["pids"] == leg["epochs"][1]["pids"]
    assert leg["epochs"][0]["first_batch_s"] > 0
    assert leg["steady"]


def test_workers_of_each_epoch_are_new_unless_they_persist(children: Children) -> None:
    """Without `persistent` every epoch starts workers of its own, none of which is left."""
    leg = answer(children, "fork")["legs"]["fork"]
    first, second = (set(epoch["pids"]) for epoch in leg["epochs"])
    assert not first & second
    assert leg["killed"] == 0


def test_several_start_methods_in_one_run(children: Children) -> None:
    """A container is asked for two start methods at once; each has a leg."""
    args = {"start_methods": ["fork", "spawn"], "persistent": True, "timeout_s": 60}
    reply = children.run("loader_epochs", args, deadline_s=100)
    assert isinstance(reply.answer, Value)
    assert {method: len(leg["epochs"]) for method, leg in reply.answer.value["legs"].items()} == {"fork": 2, "spawn": 2}


def test_says_how_torch_was_built_and_what_it_counts(children: Children) -> None:
    """The answer carries torch's version and CUDA build, and the CPUs in the affinity mask."""
    got = answer(children, "fork", {"epochs": 1})
    assert got["affinity"] == len(os.sched_getaffinity(0))
    assert got["torch"]
    assert "cuda_build" in got


@pytest.mark.parametrize(
    ("factory", "code"), [("killed", -9), ("segfaults", -11), ("exits", 3)], ids=["SIGKILL", "SIGSEGV", "exit"]
)
def test_a_worker_that_dies(children: Children, factory: str, code: int) -> None:
    """How the worker ended is in the answer, though torch's message only says that it went away."""
    fault = Fault.parse(broken(children, "fork", factory)["fault"])
    assert fault.exit_codes == (code,)
    assert fault.pitfall() == "dataloader-worker-died"


def test_a_segfault_is_told_by_the_workers_stderr(children: Children) -> None:
    """What torch's own signal handler writes in the worker is kept."""
    fault = Fault.parse(broken(children, "fork", "segfaults")["fault"])
    assert "segmentation fault" in fault.worker_stderr


def test_a_worker_that_hangs(children: Children) -> None:
    """The loader always has a time-out, so a hang is a fault and not a hang."""
    fault = Fault.parse(broken(children, "fork", "hangs", {"timeout_s": 1})["fault"])
    assert fault.pitfall() == "dataloader-timeout"


def test_a_dataset_that_raises(children: Children) -> None:
    """An exception of the dataset's own is none of our pitfalls and keeps its text."""
    fault = Fault.parse(broken(children, "fork", "raises")["fault"])
    assert fault.pitfall() is None
    assert fault.told.startswith("KeyError: Caught KeyError in DataLoader worker process")


@pytest.mark.parametrize(
    ("factory", "where"),
    [
        ("with_lambda", "dataset.load"),
        ("with_file", "dataset.load.held"),
        ("with_lock", "dataset.load"),
        ("local_class", "dataset"),
    ],
)
def test_a_dataset_that_does_not_pickle(children: Children, factory: str, where: str) -> None:
    """The attribute that does not pickle is named, before any worker is started; under fork the same dataset works."""
    fault = Fault.parse(broken(children, "forkserver", factory)["fault"])
    assert (fault.pitfall(), fault.stage, fault.where) == ("unpicklable-dataset", "pickling", where)
    assert "fault" not in broken(children, "fork", factory)


def test_a_dataset_that_a_fresh_interpreter_does_not_have(children: Children) -> None:
    """It pickles, but the spawned worker cannot load it; only the worker's stderr says why."""
    fault = Fault.parse(broken(children, "spawn", "nowhere", {"timeout_s": 60})["fault"])
    assert "Can't get attribute" not in fault.told
    assert fault.pitfall() == "main-module-not-importable"


def test_a_script_without_a_main_guard(children: Children) -> None:
    """The true reason stands on the worker's stderr; torch says only that it exited."""
    fault = Fault.parse(broken(children, "fork", "no_main_guard:make")["fault"])
    assert "bootstrapping" not in fault.told
    assert (fault.stage, fault.pitfall()) == ("loading", "main-guard-missing")


def test_a_small_descriptor_limit_is_felt_by_held_batches(children: Children) -> None:
    """Each tensor of a held batch costs a descriptor; the same loader that holds nothing works under the same limit."""
    args = {"dataset": "loader_datasets:many_small", "batch": 2, "epochs": 1}
    held = answer(children, "fork", {**args, "hold": True}, limits={"nofile": 64})["legs"]["fork"]
    assert Fault.parse(held["fault"]).pitfall() == "nofile-too-low"
    assert "epochs" in answer(children, "fork", args, limits={"nofile": 64})["legs"]["fork"]


def test_descriptors_of_held_batches_are_counted(children: Children) -> None:
    """64 batches of four tensors hold 256 descriptors."""
    args = {"dataset": "loader_datasets:many_small", "batch": 2, "epochs": 1, "hold": True}
    used = answer(children, "fork", args, limits={"nofile": 500})["legs"]["fork"]["descriptors"]
    assert (used["soft"], used["held_batches"]) == (500, 64)
    assert used["open"] - used["before"] >= 4 * 64


def test_a_shm_that_is_too_small_is_not_a_worker_that_died(children: Children) -> None:
    """Batches of 8 MB in a /dev/shm of 1 MB: the pitfall is the size of /dev/shm."""
    leg = broken(children, "fork", "Large", {"stack": True}, shm_bytes=MIB)
    assert Fault.parse(leg["fault"]).pitfall() == "shm-too-small"


def test_every_way_to_arrive_wrong_is_counted(children: Children, tmp_path: Path) -> None:
    """Missing, repeated, altered, out of order: a loader does none of it by itself, so the arrivals are made."""
    payload = tmp_path / "sums.py"
    summed = "loader_epochs.summary(args['one'], dict(enumerate(args['expected'])))"
    payload.write_text(f"import loader_epochs\n\n\ndef main(args):\n    return {summed}\n")
    arrived = [
        {"index": index, "digest": digest, "worker": 0, "pid": 1, "process": "ForkProcess"}
        for index, digest in ((0, "a"), (2, "x"), (2, "c"))
    ]
    one = {"arrived": arrived, "order": [0, 1, 2], "first_s": 0.1, "total_s": 0.2}
    reply = children.run(str(payload), {"one": one, "expected": ["a", "b", "c"]}, deadline_s=60)
    assert isinstance(reply.answer, Value), reply.answer
    got = reply.answer.value
    assert (got["missing"], got["repeated"], got["altered"], got["in_order"]) == ([1], [2], [2], False)


def test_other_values_in_the_workers_are_seen(children: Children) -> None:
    """A sample that the parent reads otherwise counts as altered."""
    leg = broken(children, "fork", "InWorkers")
    assert discrepancies(leg) == [f"epoch {n}: altered 8 of 8 samples, first 0, 1, 2" for n in (1, 2)]


def test_a_dataset_that_answers_otherwise_each_time_is_not_compared(children: Children) -> None:
    """Random augmentation is no alteration."""
    leg = broken(children, "fork", "Random")
    assert not leg["steady"]
    assert discrepancies(leg) == []


def test_an_empty_dataset_is_no_evidence(children: Children) -> None:
    """An epoch without samples is a slip, never an ok."""
    leg = broken(children, "fork", "Empty")
    assert slips(leg, "fork", workers=2, epochs=2) == ["the dataset is empty"] * 2


def test_samples_that_do_not_stack_are_compared_too(children: Children) -> None:
    """Nested samples of different sizes are checked part by part."""
    leg = broken(children, "fork", "Nested")
    assert leg["steady"]
    assert discrepancies(leg) == []


@pytest.mark.parametrize("wrong", [{"workers": 0}, {"timeout_s": 0}, {"epochs": 0}])
def test_refuses_arguments_that_would_show_nothing(children: Children, wrong: dict[str, int]) -> None:
    """No workers, no time-out or no epoch is an error of ours."""
    reply = children.run("loader_epochs", {"start_methods": ["fork"], **wrong}, deadline_s=60)
    assert isinstance(reply.answer, Failure)
    assert reply.answer.type == "ValueError"


def test_torchs_own_warning_about_workers_is_kept(children: Children) -> None:
    """More workers than CPUs in the affinity mask: torch warns, and the answer carries its words."""
    many = len(os.sched_getaffinity(0)) + 1
    leg = answer(children, "fork", {"workers": many, "epochs": 1})["legs"]["fork"]
    assert any("suggested max number of worker" in text for text in leg["warnings"])


def test_leaves_no_process_and_no_shared_memory(children: Children) -> None:
    """After a run that failed nothing of it is alive and /dev/shm is as before."""
    before = set(os.listdir("/dev/shm"))
    broken(children, "fork", "killed")
    mark = f"GPUCHECK_RUN={children.run_id}".encode()
    alive = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (entry / "environ").read_bytes() and b"loader_epochs" in (entry / "cmdline").read_bytes():
                alive.append(entry.name)
        except OSError:
            continue
    assert alive == []
    assert {name for name in set(os.listdir("/dev/shm")) - before if name.startswith("torch_")} == set()
