"""The decision table from what a DataLoader's leg reports to a pitfall, a test a row."""

from __future__ import annotations

from typing import Any

import pytest

from gpucheck.diagnose.attribution import cause_of
from gpucheck.judgement.loader_faults import Fault, discrepancies, ending, last_error, raised_last, slips
from gpucheck.verdict import Unexplained

AWAY = "RuntimeError: DataLoader worker (pid(s) 17) exited unexpectedly"
GUARD = """Traceback (most recent call last):
  File "spawn.py", line 138, in _check_not_importing_main
    raise RuntimeError('''
RuntimeError:
        An attempt has been made to start a new process before the
        current process has finished its bootstrapping phase.
"""
NOT_FOUND = "Traceback (most recent call last):\nAttributeError: Can't get attribute 'D' on <module 'x' from 'x.py'>\n"
NO_MODULE = "Traceback (most recent call last):\nModuleNotFoundError: No module named 'tests'\n"
BUS = "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).\n"
FORKED = """RuntimeError: Caught RuntimeError in DataLoader worker process 0.
RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must"""
ANCDATA = "RuntimeError: received 0 items of ancdata"
KILLED = "RuntimeError: DataLoader worker (pid 17) is killed by signal: Killed. "
SEGV = "ERROR: Unexpected segmentation fault encountered in worker.\n"
BUS_ERROR = f"{AWAY}\nRuntimeError: DataLoader worker (pid 17) is killed by signal: Bus error. "
FULL = "RuntimeError: unable to allocate shared memory(shm) for file </torch_9_8_7>: No space left on device (28)"


@pytest.mark.parametrize(
    ("fault", "pitfall"),
    [
        (Fault("pickling", "TypeError: cannot pickle '_thread.lock' object"), "unpicklable-dataset"),
        (Fault("running", FORKED), "fork-after-cuda"),
        (Fault("running", AWAY, (1,), GUARD), "main-guard-missing"),
        (Fault("loading", AWAY, (), GUARD), "main-guard-missing"),
        (Fault("running", AWAY, (1,), NOT_FOUND), "main-module-not-importable"),
        (Fault("running", AWAY, (1,), NO_MODULE), "main-module-not-importable"),
        (Fault("running", "ModuleNotFoundError: No module named 'cv2'"), None),
        (Fault("running", "OSError: [Errno 24] Too many open files"), "nofile-too-low"),
        (Fault("running", ANCDATA), "nofile-too-low"),
        (Fault("running", AWAY, (1,), "OSError: [Errno 24] Too many open files\n"), "nofile-too-low"),
        (Fault("running", FULL), "shm-too-small"),
        (Fault("running", AWAY, (-7,), BUS), "shm-too-small"),
        (Fault("running", AWAY, (-7,)), "shm-too-small"),
        (Fault("running", BUS_ERROR), "shm-too-small"),
        (Fault("running", AWAY, (-9,)), "dataloader-worker-died"),
        (Fault("running", AWAY, (-11,), SEGV), "dataloader-worker-died"),
        (Fault("running", KILLED), "dataloader-worker-died"),
        (Fault("running", "RuntimeError: DataLoader timed out after 20 seconds"), "dataloader-timeout"),
        (Fault("running", "KeyError: Caught KeyError in DataLoader worker process 0."), None),
        (Fault("loading", "AttributeError: module 'x' has no attribute 'make'"), None),
    ],
)  # fmt: skip
def test_pitfall(fault: Fault, pitfall: str | None) -> None:
    """The cause decides, not the message that follows from it."""
    assert fault.pitfall() == pitfall


def test_evidence_names_the_true_reason() -> None:
    """torch's line, how the worker ended, the worker's own words."""
    assert Fault("running", AWAY, (1,), GUARD).evidence() == (
        f"torch: {AWAY}",
        "worker: exit 1",
        "worker's stderr: RuntimeError: An attempt has been made to start a new process before the",
    )


def test_evidence_names_what_does_not_pickle() -> None:
    """The attribute to blame is a line of its own."""
    fault = Fault.parse({"stage": "pickling", "told": "x", "exit_codes": [], "worker_stderr": "", "where": "dataset.f"})
    assert fault.evidence() == ("torch: x", "what does not pickle: dataset.f")


@pytest.mark.parametrize(
    ("code", "text"), [(3, "exit 3"), (-9, "killed by SIGKILL"), (-7, "killed by SIGBUS"), (-50, "killed by signal 50")]
)
def test_ending(code: int, text: str) -> None:
    """Signals by name, also those that have none."""
    assert ending(code) == text


def test_a_neighbours_broken_pipe_is_no_cause() -> None:
    """A second worker whose queue is closed by the first one's death says so on the same standard error."""
    pipe = """Traceback (most recent call last):
  File "/usr/lib/python3.11/multiprocessing/resource_sharer.py", line 138, in _serve
    with self._listener.accept() as conn:
  File "/usr/lib/python3.11/multiprocessing/connection.py", line 384, in _send
    n = write(self._handle, buf)
BrokenPipeError: [Errno 32] Broken pipe
"""
    fault = Fault("running", AWAY, (3,), pipe)
    best = cause_of(Unexplained("w", fault.text), None)
    assert best is not None
    assert best.pitfall == "broken-pipe-secondary"
    assert cause_of(fault.unexplained("fork"), None) is None


def test_last_error_of_nothing() -> None:
    """A worker that wrote nothing, or only frames, has no last words."""
    assert (last_error(""), last_error("  File 'x'\n")) == ("", "")


def epoch(**changes: Any) -> dict[str, Any]:
    """An epoch in which all is well."""
    well = {
        "samples": 4, "expected": 4, "missing": [], "repeated": [], "altered": [], "in_order": True,
        "workers": [0, 1], "processes": ["ForkProcess"],
    }  # fmt: skip
    return {**well, **changes}


def leg(*epochs: dict[str, Any], steady: bool = True) -> dict[str, Any]:
    """A leg of those epochs."""
    return {"epochs": list(epochs), "steady": steady}


@pytest.mark.parametrize(
    ("shown", "found"),
    [
        (leg(epoch(), epoch()), []),
        (leg(epoch()), ["1 epochs instead of 2"]),
        (leg(), ["0 epochs instead of 2"]),
        (leg(epoch(expected=0), epoch()), ["the dataset is empty"]),
        (leg(epoch(workers=[0]), epoch()), ["read by workers [0] (ForkProcess)"]),
        (leg(epoch(workers=[-1]), epoch()), ["read by workers [-1] (ForkProcess)"]),
        (leg(epoch(processes=["SpawnProcess"]), epoch()), ["read by workers [0, 1] (SpawnProcess)"]),
    ],
)
def test_slips(shown: dict[str, Any], found: list[str]) -> None:
    """Too few epochs, no samples, other workers or another start method than asked for are no evidence."""
    assert slips(shown, "fork", workers=2, epochs=2) == found


@pytest.mark.parametrize(
    ("shown", "found"),
    [
        (leg(epoch(), epoch()), []),
        (leg(epoch(), epoch(missing=[2])), ["epoch 2: missing 1 of 4 samples: 2"]),
        (leg(epoch(repeated=[1, 3])), ["epoch 1: repeated 2 of 4 samples: 1, 3"]),
        (leg(epoch(altered=[0, 1, 2, 3])), ["epoch 1: altered 4 of 4 samples, first 0, 1, 2"]),
        (leg(epoch(altered=[0])), ["epoch 1: altered 1 of 4 samples: 0"]),
        (leg(epoch(altered=[0]), steady=False), []),
        (leg(epoch(in_order=False)), ["epoch 1: not in the sampler's order"]),
    ],
)
def test_discrepancies(shown: dict[str, Any], found: list[str]) -> None:
    """Every way in which what arrived can be wrong has a line."""
    assert discrepancies(shown) == found


CARRIED = """ValueError: Caught ValueError in DataLoader worker process 1.
Original Traceback (most recent call last):
  File "torch/worker.py", line 349, in _worker_loop
    data = fetcher.fetch(index)
  File "mydata.py", line 9, in __getitem__
    raise ValueError("bad sample")
ValueError: bad sample
of two lines
"""


@pytest.mark.parametrize(
    ("told", "raised"),
    [(CARRIED, "ValueError: bad sample"), (AWAY, ""), ("KeyError: 'x'", "")],
    ids=["carried", "worker gone", "parent's own"],
)
def test_what_a_worker_raised(told: str, raised: str) -> None:
    """The exception behind its last frame, where torch carries the traceback."""
    assert raised_last(told) == raised
