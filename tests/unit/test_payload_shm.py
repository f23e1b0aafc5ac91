"""The payloads that use `/dev/shm`, run for real in namespaces; faults are made by the kernel or by a killer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gpucheck import owner, scratch
from gpucheck.judgement.shm_need import BATCH_SHAPE, MIB, SEGMENT_BYTES
from gpucheck.process import PAYLOADS, Children, Value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SHM = Path("/dev/shm")
FOUR_BATCHES = {"shape": list(BATCH_SHAPE), "batches": 4}


@pytest.fixture(scope="module")
def children() -> Iterator[Children]:
    """Children with torch preloaded, where there is torch."""
    here = owner.this_run()
    with scratch.folder(here) as folder, Children(here.run, folder, preload=("torch",)) as made:
        yield made


def answer(children: Children, payload: str, args: dict[str, Any], **how: Any) -> Any:
    """What the payload returned; the test is skipped where the kernel refuses a namespace."""
    reply = children.run(payload, args, deadline_s=60, **how)
    if reply.refusal:
        pytest.skip(f"no mount namespace here: {reply.refusal}")
    assert isinstance(reply.answer, Value), (reply.answer, reply.ended, reply.errors)
    return reply.answer.value


def segments(children: Children, shm_mib: int, *ways: str, **args: Any) -> list[dict[str, Any]]:
    """The tries of an exchange as two ranks with four channels make it."""
    plan = {"segments": 8, "segment_bytes": SEGMENT_BYTES, "ways": ways, **args}
    got: list[dict[str, Any]] = answer(children, "shm_segments", plan, shm_bytes=shm_mib * MIB)["tries"]
    return got


def ours_in(pid: int) -> Iterator[str]:
    """The descriptors through which a process holds one of our nameless segments, or of torch's."""
    try:
        for number in os.listdir(f"/proc/{pid}/fd"):
            path = f"/proc/{pid}/fd/{number}"
            if os.readlink(path).startswith(("/dev/shm/gpucheck-", "/dev/shm/torch_")):
                yield path
    except OSError:
        return


@contextmanager
def meddler(run: str, act: Callable[[int, str], None]) -> Iterator[None]:
    """While the block runs, call ``act(pid, descriptor path)`` on every segment of that run that can be seen."""
    stop = threading.Event()

    def meddle() -> None:
        mark = f"GPUCHECK_RUN={run}".encode()
        while not stop.wait(0.002):
            for entry in Path("/proc").iterdir():
                try:
                    if entry.name.isdigit() and mark in (entry / "environ").read_bytes():
                        for path in ours_in(int(entry.name)):
                            act(int(entry.name), path)
                except OSError:
                    continue

    thread = threading.Thread(target=meddle)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


# ------------------------------------------------------------------------------------------ segments


def test_space_runs_out_at_64m_in_each_of_the_two_ways_that_nccl_has(children: Children) -> None:
    """`posix_fallocate` says no space after six segments; `ftruncate` promises all eight, and the filling is killed."""
    fallocate, ftruncate = segments(children, 64, "fallocate", "ftruncate")
    assert (fallocate["outcome"], fallocate["errno"], fallocate["step"]) == ("refused", "ENOSPC", "make")
    assert fallocate["made"] in (5, 6)  # what the other was making then may not have been told
    assert (ftruncate["outcome"], ftruncate["signal"], ftruncate["step"]) == ("killed", "SIGBUS", "filling")
    assert ftruncate["made"] == 8


def test_an_exchange_fills_every_segment_at_the_same_time(children: Children) -> None:
    """At 128m both ways work, and all eight segments had their memory at once."""
    for tried in segments(children, 128, "fallocate", "ftruncate"):
        assert tried["outcome"] == "exchanged"
        assert tried["held_bytes"] >= 8 * SEGMENT_BYTES


def test_a_small_file_would_have_passed_64m(children: Children) -> None:
    """The false green that this payload replaces: 34 KB fit anywhere, the size that NCCL takes does not."""
    assert segments(children, 64, "fallocate", segment_bytes=34_000)[0]["outcome"] == "exchanged"
    assert segments(children, 64, "fallocate")[0]["outcome"] == "refused"


def test_more_segments_than_two_processes_share_evenly(children: Children) -> None:
    """An odd number is exchanged too, and one alone is our own mistake."""
    assert segments(children, 64, "fallocate", segments=3)[0]["made"] == 3
    reply = children.run("shm_segments", {"segments": 1, "segment_bytes": 1, "ways": []}, deadline_s=20)
    assert reply.answer.type == "ValueError"  # type: ignore[union-attr]


def test_a_segment_that_changes_on_its_way_is_corrupt(children: Children) -> None:
    """Somebody writes into the segments meanwhile: the other side's checksum differs."""

    def scribble(_pid: int, path: str) -> None:
        with open(path, "r+b", buffering=0) as stream:
            os.pwrite(stream.fileno(), os.urandom(8), 1000)

    with meddler(children.run_id, scribble):
        tried = segments(children, 512, "fallocate", segments=4, segment_bytes=96 * MIB)
    assert tried[0]["outcome"] == "corrupt"


STOPPED = """
import os, signal
import shm_segments

forks = []

def stop_first():
    if len(forks) == 1:
        os.kill(os.getpid(), signal.SIGSTOP)

def main(args):
    os.register_at_fork(before=lambda: forks.append(True), after_in_child=stop_first)
    return shm_segments.main(args)
"""


def test_a_process_that_stops_is_a_hang_within_the_deadline(children: Children, tmp_path: Path) -> None:
    """A stopped process is not waited for; the answer comes from inside, and says how far each of the two came."""
    payload = tmp_path / "stopped_segments.py"
    payload.write_text(STOPPED)
    begun = time.monotonic()
    plan = {"segments": 4, "segment_bytes": MIB, "ways": ["fallocate"], "deadline_s": 1.0}
    tried = answer(children, str(payload), plan, shm_bytes=64 * MIB)["tries"]
    assert (tried[0]["outcome"], tried[0]["step"]) == ("hang", "start | made")
    assert time.monotonic() - begun < 10


def test_a_limit_of_open_files_is_told_as_that(children: Children) -> None:
    """With few descriptors the error is EMFILE, not a lack of space."""
    plan = {"segments": 64, "segment_bytes": 4096, "ways": ["fallocate"]}
    tried = answer(children, "shm_segments", plan, shm_bytes=64 * MIB, limits={"nofile": 24})["tries"]
    assert (tried[0]["outcome"], tried[0]["errno"]) == ("refused", "EMFILE")


def test_no_folder_is_told_as_that(children: Children) -> None:
    """Where there is no `/dev/shm` at all, the answer says so and nothing is raised."""
    plan = {"segments": 2, "segment_bytes": 4096, "ways": ["fallocate"], "folder": "/nonexistent"}
    value = answer(children, "shm_segments", plan)
    assert value["room"] is None
    assert value["tries"][0]["errno"] == "ENOENT"


def test_nothing_is_left_whenever_the_payload_is_killed() -> None:
    """Killed with its whole group at ten moments, on the real `/dev/shm`, it leaves no file there."""
    run = owner.new_run_id()
    env = {**os.environ, "GPUCHECK_RUN": run}
    args = '{"segments": 8, "segment_bytes": 9637892, "ways": ["fallocate", "ftruncate"]}'
    argv = [sys.executable, "-B", "-S", str(PAYLOADS / "envelope.py"), str(PAYLOADS / "shm_segments.py"), args]
    for moment in range(10):
        process = subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL, start_new_session=True)
        time.sleep(0.03 + 0.02 * moment)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert not list(SHM.glob(f"gpucheck-{run}-*"))


# ------------------------------------------------------------------------------------------- tensors


def tensors(children: Children, shm_mib: int, held_bytes: int = 0, **how: Any) -> Any:
    """The answer of an exchange of four image batches."""
    pytest.importorskip("torch")
    return answer(children, "shm_tensors", {**FOUR_BATCHES, "held_bytes": held_bytes}, shm_bytes=shm_mib * MIB, **how)


def test_real_batches_reach_the_other_side_and_its_answer_comes_back(children: Children) -> None:
    """Four batches of 18.4 MiB are in flight at once beside NCCL's segments, and both sides check every byte."""
    got = tensors(children, 256, held_bytes=8 * SEGMENT_BYTES)
    assert got["outcome"] == "exchanged", got
    assert got["received"] == 4
    assert got["held_bytes"] == 4 * 19_267_584


def test_a_batch_that_does_not_fit_is_lost_in_silence_or_kills_its_sender(children: Children) -> None:
    """From torch 2.10 on the queue drops the fourth batch and goes on; before, its sender dies of SIGBUS."""
    got = tensors(children, 64)
    if got["outcome"] == "killed":
        assert got["signal"] == "SIGBUS"
        return
    assert (got["outcome"], got["lost"], got["received"]) == ("lost", 1, 3)
    assert "No space left on device" in got["error"]


def test_a_batch_lost_for_another_reason_carries_that_reason(children: Children) -> None:
    """A limit on file sizes loses a batch where there is room enough; what the sender's thread wrote says why."""
    got = tensors(children, 256, limits={"fsize": 12 * MIB})
    assert got["outcome"] == "lost"
    assert "File too large" in got["error"]


def test_a_process_that_dies_of_the_bus_error_is_told_as_that(children: Children) -> None:
    """What torch before 2.10 meets without space: memory that is promised and not there; the answer has the signal."""

    def take_away(_pid: int, path: str) -> None:
        os.truncate(path, 0)

    with meddler(children.run_id, take_away):
        got = tensors(children, 256)
    assert (got["outcome"], got["signal"]) == ("killed", "SIGBUS")


def test_what_is_held_meanwhile_may_not_fit_by_itself(children: Children) -> None:
    """Then there is no exchange, and the step says that it was the holding."""
    got = tensors(children, 64, held_bytes=8 * SEGMENT_BYTES)
    assert (got["outcome"], got["step"], got["errno"]) == ("refused", "hold", "ENOSPC")


def test_a_lost_batch_is_noticed_without_waiting_for_the_deadline(children: Children) -> None:
    """The receiver knows that the sender has sent all, so an empty queue is an answer and not a wait."""
    begun = time.monotonic()
    tensors(children, 64)
    assert time.monotonic() - begun < 10


def test_torch_leaves_no_name_behind_for_the_batch_it_lost() -> None:
    """The empty file that torch keeps of a batch without room is removed, when its maker was a process of ours."""
    pytest.importorskip("torch")
    args = '{"shape": [32, 3, 224, 224], "batches": 4}'
    payload = f"{sys.executable} -B {PAYLOADS / 'envelope.py'} {PAYLOADS / 'shm_tensors.py'} '{args}'"
    script = f"mount -t tmpfs -o size=64m tmpfs /dev/shm && {payload} && echo left: $(ls /dev/shm)"
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    if "Operation not permitted" in done.stderr:
        pytest.skip("no mount namespace here")
    assert '"outcome": "exchanged"' not in done.stdout
    assert done.stdout.endswith("left:\n"), done.stdout


# -------------------------------------------------------------------------------------------- census

LITTER = """
import ctypes, os, shm_census

libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p


def put(name, mib):
    with open("/dev/shm/" + name, "wb") as stream:
        os.posix_fallocate(stream.fileno(), 0, mib << 20)


def asked_by_another():
    read, write = os.pipe()
    if os.fork() == 0:
        os.write(write, json.dumps(shm_census.main({})).encode())
        os._exit(0)
    os.close(write)
    with open(read) as stream:
        return json.load(stream)


def main(args):
    dead = os.fork()
    if not dead:
        os._exit(0)
    os.waitpid(dead, 0)
    os.mkdir("/dev/shm/below")
    put("nccl-orphan", 5)
    put("torch_%d_1_0" % dead, 3)
    put("torch_%d_1_0" % os.getpid(), 2)
    put("nccl-open", 1)
    put("mapped", 7)
    put("below/plain", 1)
    kept = open("/dev/shm/nccl-open")
    with open("/dev/shm/mapped") as stream:
        # Python's own mmap would keep a descriptor, as NCCL does not.
        libc.mmap(None, ctypes.c_size_t(7 << 20), 1, 1, stream.fileno(), ctypes.c_long(0))
    put("gone", 4)
    gone = open("/dev/shm/gone")
    os.unlink("/dev/shm/gone")
    return asked_by_another()
"""


@pytest.fixture
def littered(children: Children, tmp_path: Path) -> Any:
    """The census of a 64m `/dev/shm` with left-over, living, mapped and nameless files in it."""
    payload = tmp_path / "litter.py"
    payload.write_text(f"import json, sys\nsys.path.append({str(PAYLOADS)!r})\n{LITTER}")
    return answer(children, str(payload), {}, shm_bytes=64 * MIB)


def test_a_left_over_file_is_one_that_nobody_living_made_or_holds(littered: Any) -> None:
    """Orphans of NCCL and of a dead torch process are left over; open, mapped, or of a living maker they are not."""
    states = {file["name"]: file["state"] for file in littered["files"]}
    assert {file["name"] for file in littered["leftovers"]} == {
        name for name, state in states.items() if state == "orphan" and name != "below/plain"
    }
    assert states["nccl-orphan"] == "orphan"
    assert states["nccl-open"] == "held"
    assert states["mapped"] == "held"
    assert [state for name, state in states.items() if name.startswith("torch_")].count("orphan") == 1
    assert littered["leftover_bytes"] == 8 * MIB


def test_what_has_no_name_counts_as_held(littered: Any) -> None:
    """A file whose name is gone lives only while a process holds it: its bytes are counted, by subtraction."""
    assert littered["unnamed_bytes"] == 4 * MIB
    assert littered["bytes_by_state"] == {"held": (2 + 1 + 7) * MIB, "orphan": (5 + 3 + 1) * MIB, "unknown": 0}


def test_the_census_tells_the_file_system_and_its_room(littered: Any) -> None:
    """Type, size and free bytes are those of the mount that hides the others."""
    assert littered["filesystem"] == "tmpfs"
    assert littered["total_bytes"] == 64 * MIB
    assert littered["free_bytes"] == (64 - 23) * MIB
    assert littered["refused"] is None


def test_no_folder_and_a_plain_folder_are_told_apart(children: Children, tmp_path: Path) -> None:
    """Without a folder there is no file system; a folder on a disk names the disk's."""
    assert answer(children, "shm_census", {"folder": "/nonexistent"}) == {"filesystem": None}
    here = answer(children, "shm_census", {"folder": str(tmp_path)})
    assert here["filesystem"] not in (None, "tmpfs") or str(tmp_path).startswith("/dev/shm")
