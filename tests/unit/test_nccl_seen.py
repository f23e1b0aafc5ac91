"""What ranks came to, from their entries alone: each end by its own name, and never a consequence for the cause."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpucheck import pitfalls
from gpucheck.judgement import nccl_plan
from gpucheck.judgement.nccl_log import Version
from gpucheck.judgement.nccl_seen import PITFALLS, End, alone, no_size_works, seen, version_of
from gpucheck.judgement.shm_need import MIB, Need
from gpucheck.verdict import NotApplicable
from tests.fakes.answers import facts, nvml_gpu

RECORDED = Path(__file__).parent.parent / "data" / "nccl"
LIMIT_S = 45.0
RIGHT = {"ended": "value", "value": {"wrong": 0, "checked": 100, "version": [2, 27, 5], "torch": "2.9.1"}}


def rank(number: int, **told: Any) -> dict[str, Any]:
    """One rank's entry: by default it came through."""
    entry = {"rank": number, "step": "collective", "collective": 3, "gone_s": 2.0, "log": "", "output": "", "stack": []}
    return entry | (told if "ended" in told else {**RIGHT, **told})


def answer(*ranks: dict[str, Any], log: str | None = None) -> dict[str, Any]:
    """The payload's answer of these ranks; ``log``: a recorded one, of rank 0."""
    if log is not None:
        ranks[0]["log"] = (RECORDED / f"{log}.log").read_text(encoding="utf-8")
    shm = {"total_bytes": 64 * MIB, "free_bytes": 64 * MIB, "peak_bytes": 30 * MIB}
    return {"ranks": list(ranks), "shm": shm, "removed": [], "spent_s": 3.0}


def failure(number: int, kind: str, text: str, **told: Any) -> dict[str, Any]:
    """A rank that raised."""
    return rank(number, ended="failure", type=kind, text=text, **told)


BACKEND = ("DistBackendError", "NCCL error in: ProcessGroupNCCL.cpp:3690, unhandled system error, NCCL version 2.27.5")
WAITED = {"ended": "waited"}
HUNG = {"ended": "hang"}


@pytest.mark.parametrize(
    ("ranks", "log", "end", "words"),
    [
        ([rank(0), rank(1)], "2.27-good", End.WORKS, "100 numbers right in each of 2 rank(s), via SHM/direct/direct"),
        ([rank(0), rank(1, value={"wrong": 3, "checked": 100})], "2.27-good", End.WRONG, "3 of 100 in rank 1"),
        (
            [rank(0, **WAITED), rank(1, ended="signal", signal="SIGBUS")],
            "2.18-bus-error",
            End.BUS_ERROR,
            "rank 1 in collective 3 was killed by SIGBUS; rank 0 in collective 3 waited for it",
        ),
        ([rank(0, **WAITED), rank(1, ended="signal", signal="SIGKILL")], None, End.KILLED, "killed by SIGKILL"),
        ([rank(0, **WAITED), rank(1, ended="signal", signal="SIGSEGV")], None, End.CRASH, "killed by SIGSEGV"),
        (
            [rank(0, ended="signal", signal="SIGABRT"), rank(1, **WAITED)],
            "2.30-no-space",
            End.NO_SPACE,
            "failed to extend /dev/shm/nccl-3pQx9V",
        ),
        ([failure(0, *BACKEND), failure(1, *BACKEND)], "before-2.12-no-space", End.NO_SPACE, "posix_fallocate"),
        ([failure(0, *BACKEND), rank(1, **WAITED)], "2.21-not-extended", End.NOT_EXTENDED, "failed to extend"),
        ([failure(0, *BACKEND), rank(1, **WAITED)], "2.21-not-registered", End.NOT_REGISTERED, "invalid argument"),
        ([failure(0, *BACKEND), rank(1, **WAITED)], "2.27-cumem-refused", End.HOST_BUFFER, "Cuda failure 217"),
        ([failure(0, *BACKEND), failure(1, *BACKEND)], "2.27-same-gpu", End.SAME_GPU, "Duplicate GPU detected"),
        ([failure(0, *BACKEND), failure(1, *BACKEND)], "2.27-attach-size-0", End.OTHER, "(size 0)"),
        (
            [rank(0, **HUNG), rank(1, **HUNG)],
            "2.27-peer-to-peer",
            End.HANG,
            "no end within 45 s: rank 0 in collective 3",
        ),
        ([rank(0, ended="stuck"), rank(1, **HUNG)], None, End.HANG, "rank 0 did not die when killed"),
        ([rank(0, ended="exit", code=3), rank(1, **WAITED)], None, End.CRASH, "ended with exit 3 and no word"),
        (
            [failure(0, "OutOfMemoryError", "CUDA out of memory."), rank(1, **WAITED)],
            None,
            End.GPU_MEMORY,
            "out of memory",
        ),
        ([failure(0, "RuntimeError", "CUDA error: unspecified launch failure")], None, End.CUDA, "launch failure"),
        ([failure(0, "OSError", "[Errno 28] No space left on device")], None, End.NO_SPACE, "Errno 28"),
        (
            [failure(0, "AssertionError", "Torch not compiled with CUDA enabled", step="CUDA", collective=0)],
            None,
            End.NO_CUDA,
            "rank 0 at CUDA: AssertionError",
        ),
        ([failure(0, *BACKEND)], None, End.OTHER, "unhandled system error"),
    ],
)
def test_each_end_has_its_name(ranks: list[dict[str, Any]], log: str | None, end: End, words: str) -> None:
    """A row of what can happen to ranks each."""
    told = seen(answer(*ranks, log=log), LIMIT_S)
    assert told.end is end, told
    assert words in told.words
    assert told.works is (end is End.WORKS)


def test_the_first_rank_that_died_is_the_cause() -> None:
    """A bus error in rank 1, and rank 0 dies of the closed connection later."""
    first = rank(1, ended="signal", signal="SIGBUS", gone_s=1.0)
    later = rank(0, ended="signal", signal="SIGABRT", gone_s=2.0)
    assert seen(answer(later, first), LIMIT_S).words.startswith("rank 1")


def test_a_rank_that_told_its_failure_may_live_on() -> None:
    """One that does not die of SIGKILL has no end; one that ended before it is the cause."""
    alive = failure(0, "RuntimeError", "CUDA error: unspecified launch failure", gone_s=None)
    assert seen(answer(alive, rank(1, **HUNG)), LIMIT_S).end is End.CUDA
    assert seen(answer(alive, rank(1, ended="exit", code=3)), LIMIT_S).words.startswith("rank 1")


def test_what_is_printed_is_read_like_the_log() -> None:
    """NCCL writes to the standard output when it has no file."""
    line = "x:1:2 [0] init.cc:9 NCCL WARN Mismatched NCCL version detected : rank 0 version 22705 rank 1 version 22809"
    told = seen(answer(failure(0, *BACKEND, output=line), rank(1, **WAITED)), LIMIT_S)
    assert (told.end, told.pitfall) == (End.VERSIONS_DIFFER, "nccl-version-mismatch")
    line = "x:1:2 [0] bootstrap.cc:115 NCCL WARN Bootstrap : no socket interface found"
    told = seen(answer(failure(0, *BACKEND, output=line), rank(1, **WAITED)), LIMIT_S)
    assert (told.end, told.pitfall) == (End.NO_INTERFACE, "interface-missing")


@pytest.mark.parametrize("end", [end for end in End if end is not End.WORKS])
def test_every_end_has_a_pitfall_with_words_or_none_on_purpose(end: End) -> None:
    """A killed rank and a full GPU are no fault of what was tried."""
    pitfall = PITFALLS[end]
    assert pitfall in pitfalls.load() if pitfall else end in (End.KILLED, End.GPU_MEMORY, End.NO_CUDA)


def test_a_failing_cuda_call_is_nccls_messenger() -> None:
    """NCCL passes on what another kernel or the GPU did."""
    line = "x:1:2 [0] enqueue.cc:9 NCCL WARN Cuda failure 700 'an illegal memory access was encountered'"
    told = seen(answer(failure(0, *BACKEND, output=line), rank(1, **WAITED)), LIMIT_S)
    assert (told.end, told.pitfall) == (End.CUDA, "nccl-cuda-error")


def test_the_details_of_a_hang_are_stacks_and_nccls_last_lines() -> None:
    """Innermost frames first, rank by rank; without a complaint what NCCL said last."""
    frames = ['File "x.py", line 3 in synchronize', 'File "y.py", line 9 in take_part']
    details = seen(answer(rank(0, **HUNG, stack=frames), rank(1, **HUNG), log="2.27-good"), LIMIT_S).details
    assert details[0] == 'rank 0: File "x.py", line 3 in synchronize < File "y.py", line 9 in take_part'
    assert details[-1] == "NCCL's last lines: NCCL INFO Connected all rings, use ring PXN 0 GDR 1"


@pytest.mark.parametrize(
    ("log", "tests"), [("2.27-good", True), ("2.28-network", True), ("2.27-cumem", False), ("2.27-peer-to-peer", False)]
)
def test_what_says_something_about_dev_shm(log: str, tests: bool) -> None:
    """SHM, and the network's pools where bytes were taken; peer to peer does not."""
    assert seen(answer(rank(0), rank(1), log=log), LIMIT_S).tests_shm is tests


def test_one_rank_of_many_worlds_is_judged_by_itself() -> None:
    """World size 1: what happens to the neighbour is not its concern."""
    told = answer(rank(0), rank(1, ended="signal", signal="SIGSEGV"))
    assert alone(told, 0, LIMIT_S).works
    assert alone(told, 1, LIMIT_S).end is End.CRASH


def test_the_version_comes_from_torch_or_from_the_log() -> None:
    """Torch's word first; a rank that failed has NCCL's own."""
    assert version_of(answer(rank(0))) == Version(2, 27, 5)
    assert version_of(answer(failure(0, *BACKEND), log="2.30-no-space")) == Version(2, 30, 7)
    assert version_of(answer(failure(0, "RuntimeError", "nothing"))) is None


@pytest.mark.parametrize(
    ("size", "log", "pitfall"),
    [
        (64 * MIB, "2.30-no-space", "nccl-shm-too-small"),
        # 2.18 makes the file and CUDA cannot have it: with too little room that is too little room.
        (64 * MIB, "2.21-not-registered", "nccl-shm-too-small"),
        (128 * MIB, "2.21-not-registered", "shm-register-failed"),
        (64 * MIB, "2.27-cumem-refused", "nccl-cumem-host"),
        (64 * MIB, "2.27-same-gpu", "nccl-duplicate-gpu"),
    ],
)
def test_too_small_is_said_only_where_it_was(size: int, log: str, pitfall: str) -> None:
    """What looks like too little room is that only below what the ranks take."""
    told = seen(answer(failure(0, *BACKEND), rank(1, **WAITED), log=log), LIMIT_S)
    finding = no_size_works({size: told}, Need(2), Need(8))
    assert finding.pitfall == pitfall
    assert finding.params["shm_need"] == Need(8).flag


def test_cards_that_ranks_may_be_put_on() -> None:
    """Busy, split, hidden and nameless GPUs are left out with the reason; the others keep their order."""
    told = [
        nvml_gpu(0),
        nvml_gpu(1, processes=[{"pid": 5}]),
        nvml_gpu(2, mig=True),
        nvml_gpu(3, uuid=None, unknown={"handle": "NVML_ERROR_GPU_IS_LOST"}),
        nvml_gpu(4),
        nvml_gpu(5),
    ]
    host = facts({"nvml.gpus": told, "package.torch": "2.11.0", "env.CUDA_VISIBLE_DEVICES": "0,1,2,3,4"})
    cards = nccl_plan.cards_of(host, "idle")
    assert [gpu.index for gpu in cards.free] == [0, 4]
    assert cards.visible == ",".join(str(told[index]["uuid"]) for index in (0, 4))
    assert {left.gpu.index for left in cards.left_out} == {1, 2, 3, 5}
    assert [gpu.index for gpu in nccl_plan.cards_of(host, "any").free] == [0, 1, 4]


def test_without_torch_there_is_nothing_to_run() -> None:
    """A known absence."""
    with pytest.raises(NotApplicable):
        nccl_plan.cards_of(facts({"nvml.gpus": [nvml_gpu(0)], "package.torch": None}), "idle")


@pytest.mark.parametrize(
    ("gpus", "version", "deep", "legs"),
    [
        (1, Version(2, 30), False, ["as-it-comes", "all-gpus", "pairs"]),
        (1, Version(2, 28, 9), False, ["as-it-comes", "shm-transport", "all-gpus", "pairs"]),
        (2, Version(2, 28, 9), False, ["all-gpus", "pairs"]),
        (8, Version(2, 28, 9), False, ["pairs"]),
        (8, Version(2, 28, 9), True, []),
    ],
)
def test_what_was_not_exercised_is_named(gpus: int, version: Version, deep: bool, legs: list[str]) -> None:
    """By the number of GPUs, NCCL's version and the level."""
    assert [missed.leg for missed in nccl_plan.not_tried(gpus, version, deep=deep)] == legs


def test_every_pair_is_counted_once() -> None:
    """Eight GPUs have 28 pairs."""
    assert len(set(nccl_plan.pairs(8))) == 28
