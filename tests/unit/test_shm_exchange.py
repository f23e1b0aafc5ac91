"""What is asked of two processes and what their answers mean."""

from __future__ import annotations

from typing import Any

import pytest

from gpucheck.judgement import shm_exchange as exchange
from gpucheck.judgement.shm_exchange import End
from gpucheck.judgement.shm_need import BATCH_BYTES, MIB, SEGMENT_BYTES, Need
from gpucheck.verdict import Bug

NEED = Need(2)
PLAN = exchange.segments_plan(NEED, whole=False)
TENSORS = exchange.tensors_plan(NEED)


def segments(outcome: str, **details: Any) -> exchange.Seen:
    """What is seen of one try."""
    tried = {"way": "fallocate", "outcome": outcome, "made": 6, "held_bytes": 8 * SEGMENT_BYTES, **details}
    return exchange.segments_seen({"tries": [tried]}, PLAN)


def tensors(outcome: str, **details: Any) -> exchange.Seen:
    """What is seen of the batches."""
    answer = {"outcome": outcome, "torch": "2.13.0", "batch_bytes": BATCH_BYTES, "error": "…", **details}
    return exchange.tensors_seen(answer, TENSORS)


def test_the_plan_has_nccls_segments_and_a_real_batch() -> None:
    """Eight segments for two ranks; tensors beside as much as the rest of the job takes."""
    assert PLAN["segments"] == 8
    assert PLAN["segment_bytes"] == 9_637_892
    assert TENSORS["held_bytes"] + NEED.rank_loader_bytes == NEED.total_bytes
    assert exchange.segments_plan(NEED, whole=True)["segments"] == NEED.segments_for_all


def test_where_the_job_does_not_fit_half_of_the_batches_do() -> None:
    """So that a queue that loses what does not fit is seen to lose it."""
    plan = exchange.tensors_plan(NEED, 128 * MIB)
    assert 2 * BATCH_BYTES < 128 * MIB - plan["held_bytes"] < 3 * BATCH_BYTES
    assert exchange.tensors_plan(NEED, 16 * MIB)["held_bytes"] == 0


SEEN = [
    (segments("exchanged"), End.WORKS, None),
    (segments("refused", errno="ENOSPC", error="No space", step="make"), End.NO_SPACE, "shm-full"),
    (segments("refused", errno="EMFILE", error="Too many", step="pass on"), End.REFUSED, "nofile-too-low"),
    (segments("refused", errno="EACCES", error="Permission denied", step="make"), End.REFUSED, "shm-unusable"),
    (segments("killed", signal="SIGBUS", step="filling"), End.BUS_ERROR, "shm-full"),
    (segments("killed", signal="SIGKILL", step="filling"), End.KILLED, None),
    (segments("corrupt"), End.CORRUPT, "shm-unusable"),
    (segments("hang", step="made | made"), End.HANG, None),
    (tensors("exchanged"), End.WORKS, None),
    (tensors("lost", lost=2), End.LOST, "shm-item-lost"),
    (tensors("refused", errno="ENOSPC", step="hold"), End.NO_SPACE, "shm-full"),
    (tensors("refused", errno="EACCES", step="hold"), End.REFUSED, "shm-unusable"),
    (tensors("killed", signal="SIGBUS", who="sender"), End.BUS_ERROR, "shm-full"),
    (tensors("killed", signal="SIGKILL", who="sender"), End.KILLED, None),
    (tensors("broken"), End.REFUSED, "shm-unusable"),
    (tensors("corrupt"), End.CORRUPT, "shm-unusable"),
    (tensors("hang", step="after flushed"), End.HANG, None),
]


@pytest.mark.parametrize(("seen", "end", "pitfall"), SEEN, ids=[seen.words[:40] for seen, _, _ in SEEN])
def test_every_end_is_told_apart_and_has_its_pitfall(seen: exchange.Seen, end: End, pitfall: str | None) -> None:
    """What it means where there was room enough; None where the machine did not let us see."""
    assert seen.end is end
    assert seen.pitfall == pitfall
    assert seen.works == (end is End.WORKS)


def test_a_size_that_was_not_filled_did_not_work() -> None:
    """An exchange that took less memory than its segments have is our bug, never a green."""
    with pytest.raises(Bug, match="took only"):
        segments("exchanged", held_bytes=34_000)


def test_the_first_way_that_failed_decides_and_all_are_told() -> None:
    """With fallocate it works, with ftruncate it does not: that is not a size that works."""
    tries = [
        {"way": "fallocate", "outcome": "exchanged", "made": 8, "held_bytes": 8 * SEGMENT_BYTES},
        {"way": "ftruncate", "outcome": "killed", "signal": "SIGBUS", "step": "filling"},
    ]
    seen = exchange.segments_seen({"tries": tries}, PLAN)
    assert seen.end is End.BUS_ERROR
    assert "8 segments of 9.2 MiB filled" in seen.words
    assert "killed by SIGBUS" in seen.words


def test_of_segments_and_tensors_the_first_that_failed_decides() -> None:
    """The words of both are kept."""
    lost = tensors("lost", lost=2)
    assert exchange.both(segments("exchanged"), lost).end is End.LOST
    assert exchange.both(segments("corrupt"), lost).end is End.CORRUPT
    assert lost.words in exchange.both(segments("exchanged"), lost).words


@pytest.mark.parametrize("room", [None, {"total_bytes": 65_536_000}])
def test_another_size_than_was_asked_for_is_our_bug(room: dict[str, int] | None) -> None:
    """A size that was not applied must not be judged."""
    with pytest.raises(Bug, match="64m"):
        exchange.check_size({"room": room}, 64 * MIB)
    exchange.check_size({"room": {"total_bytes": 64 * MIB}}, 64 * MIB)
