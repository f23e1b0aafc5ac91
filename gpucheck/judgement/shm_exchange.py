"""What two processes are asked to exchange through ``/dev/shm``, and what their answers mean. Pure.

The arguments and answers are those of ``payload/shm_segments.py`` and ``payload/shm_tensors.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from gpucheck.judgement.shm_need import (
    BATCH_BYTES,
    BATCH_SHAPE,
    BATCHES_PER_RANK,
    QUEUES_BYTES,
    SEGMENT_BYTES,
    bytes_text,
    size_text,
)
from gpucheck.verdict import Bug

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpucheck.judgement.shm_need import Need

SEGMENTS_S = 20.0
TENSORS_S = 20.0


class End(str, Enum):
    """How an exchange ended."""

    WORKS = "works"
    NO_SPACE = "no space"
    BUS_ERROR = "bus error"
    LOST = "lost in silence"
    KILLED = "killed"
    HANG = "hang"
    CORRUPT = "corrupt"
    REFUSED = "refused"

    __str__ = str.__str__


# What it is called where there was room enough for the exchange. None: the machine did not let us see.
PITFALLS = {
    End.NO_SPACE: "shm-full",
    End.BUS_ERROR: "shm-full",
    End.LOST: "shm-item-lost",
    End.CORRUPT: "shm-unusable",
    End.REFUSED: "shm-unusable",
    End.KILLED: None,
    End.HANG: None,
}


@dataclass(frozen=True, slots=True)
class Seen:
    """One exchange: how it ended, in words, and the error's symbol where there was one."""

    end: End
    words: str
    errno: str = ""

    @property
    def works(self) -> bool:
        """Whether everything arrived, and was right."""
        return self.end is End.WORKS

    @property
    def pitfall(self) -> str | None:
        """What it is, given that there was room enough."""
        return "nofile-too-low" if self.errno == "EMFILE" else PITFALLS.get(self.end)


def segments_plan(need: Need, *, whole: bool, ways: tuple[str, ...] = ("fallocate",)) -> dict[str, Any]:
    """NCCL's segments of a job; ``whole``: as many as take what the whole job takes, where no tensors are sent too."""
    number = need.segments_for_all if whole else max(2, need.segments)
    return {"segments": number, "segment_bytes": SEGMENT_BYTES, "ways": list(ways), "deadline_s": SEGMENTS_S}


def tensors_plan(need: Need, size: int | None = None) -> dict[str, Any]:
    """One rank's batches in flight, while the rest of what the job takes is held.

    In a ``/dev/shm`` of ``size`` bytes that is too small for the job, so much is held that half of the batches fit.
    """
    held_bytes = need.total_bytes - need.rank_loader_bytes
    if size is not None and size < need.total_bytes:
        half_bytes = QUEUES_BYTES + BATCHES_PER_RANK // 2 * BATCH_BYTES
        held_bytes = min(held_bytes, max(0, size - half_bytes))
    shape = list(BATCH_SHAPE)
    return {"shape": shape, "batches": BATCHES_PER_RANK, "held_bytes": held_bytes, "deadline_s": TENSORS_S}


def check_size(answer: Mapping[str, Any], wanted_bytes: int) -> None:
    """Raises Bug when the exchange ran in a ``/dev/shm`` of another size than it was given."""
    room = answer["room"]
    if room is None or room["total_bytes"] != wanted_bytes:
        got = "none at all" if room is None else bytes_text(room["total_bytes"])
        raise Bug(f"/dev/shm was to have {size_text(wanted_bytes)} and had {got}")


def segments_seen(answer: Mapping[str, Any], plan: Mapping[str, Any]) -> Seen:
    """The first way that did not work, with the others' words beside it; else that all worked."""
    tries = [_segments(tried, plan) for tried in answer["tries"]]
    first = next((seen for seen in tries if not seen.works), tries[0])
    return Seen(first.end, "; ".join(seen.words for seen in tries), first.errno)


def both(segments: Seen, tensors: Seen) -> Seen:
    """One exchange of two parts: the words of both, the end of the first that failed."""
    first = tensors if segments.works else segments
    return Seen(first.end, f"{segments.words}; {tensors.words}", first.errno)


def _segments(tried: Mapping[str, Any], plan: Mapping[str, Any]) -> Seen:
    number, outcome = plan["segments"], tried["outcome"]
    way = {"fallocate": "", "ftruncate": "with ftruncate, as NCCL 2.12 to 2.18 does it, "}[tried["way"]]
    if outcome == "exchanged":
        if tried["held_bytes"] < number * plan["segment_bytes"]:
            raise Bug(f"{number} segments were exchanged and took only {bytes_text(tried['held_bytes'])}")
        size = bytes_text(plan["segment_bytes"])
        return Seen(End.WORKS, f"{way}{number} segments of {size} filled by one process and read back by the other")
    if outcome == "refused" and tried["errno"] == "ENOSPC":
        return Seen(End.NO_SPACE, f"{way}no space after {tried['made']} of {number} NCCL segments (ENOSPC)", "ENOSPC")
    if outcome == "refused":
        return Seen(End.REFUSED, f"{way}{tried['step']}: {tried['error']} ({tried['errno']})", tried["errno"])
    if outcome == "killed":
        end = End.BUS_ERROR if tried["signal"] == "SIGBUS" else End.KILLED
        return Seen(end, f"{way}a process was killed by {tried['signal']} at the step {tried['step']}")
    if outcome == "corrupt":
        return Seen(End.CORRUPT, f"{way}a segment was read back with other bytes than were written")
    return Seen(End.HANG, f"{way}no end within {plan['deadline_s']:.0f} s, at the step {tried['step']}")


def tensors_seen(answer: Mapping[str, Any], plan: Mapping[str, Any]) -> Seen:
    """What became of the batches."""
    number, outcome = plan["batches"], answer["outcome"]
    queue = f"a torch {answer['torch']} queue"
    if outcome == "exchanged":
        held, size = bytes_text(plan["held_bytes"]), bytes_text(answer["batch_bytes"])
        return Seen(End.WORKS, f"{number} batches of {size} through {queue} and back, with {held} held beside them")
    if outcome == "refused" and answer["errno"] == "ENOSPC":
        return Seen(End.NO_SPACE, "no space for what the job holds beside its batches (ENOSPC)", "ENOSPC")
    if outcome == "refused":
        return Seen(End.REFUSED, f"{answer['step']}: {answer['error']} ({answer['errno']})", answer["errno"])
    return _tensors_stopped(answer, plan, queue)


def _tensors_stopped(answer: Mapping[str, Any], plan: Mapping[str, Any], queue: str) -> Seen:
    """What happened between the two processes."""
    outcome = answer["outcome"]
    if outcome == "lost":
        lost = f"{queue} dropped {answer['lost']} of {plan['batches']} batches in silence"
        return Seen(End.LOST, f"{lost}: its sender went on, its receiver would wait for ever ({answer['error']})")
    if outcome == "killed":
        end = End.BUS_ERROR if answer["signal"] == "SIGBUS" else End.KILLED
        return Seen(end, f"the {answer['who']} of {queue} was killed by {answer['signal']}")
    if outcome == "broken":
        return Seen(End.REFUSED, f"the receiver of {queue} failed: {answer['error']}")
    if outcome == "corrupt":
        return Seen(End.CORRUPT, f"a batch came out of {queue} with other bytes than went in")
    return Seen(End.HANG, f"{queue} did not end within {plan['deadline_s']:.0f} s, {answer['step']} {answer['error']}")
