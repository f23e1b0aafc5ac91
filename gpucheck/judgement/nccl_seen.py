"""What ranks over NCCL came to, told apart: works, no space, bus error, hang, a killed rank, wrong numbers, ... Pure.

The answers are those of ``payload/ranks_nccl.py``. What only follows from another failure (a rank that waits for one
that is gone, "remote process exited") is never the cause.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from gpucheck.judgement import nccl_log
from gpucheck.judgement.nccl_log import Log, Place, Trouble
from gpucheck.judgement.shm_need import bytes_text, size_text
from gpucheck.verdict import bad

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gpucheck.judgement.shm_need import Need
    from gpucheck.verdict import Finding

FRAMES: Final = 4
#: The step before NCCL is asked for anything: what fails there is no fault of NCCL's.
BEFORE_NCCL: Final = "CUDA"
WORDS: Final = 300


class End(str, Enum):
    """How a run of ranks ended."""

    WORKS = "works"
    WRONG = "wrong numbers"
    BUS_ERROR = "bus error"
    KILLED = "a rank was killed"
    CRASH = "a rank crashed"
    NO_CUDA = "CUDA does not start"
    NO_SPACE = "no space"
    NOT_EXTENDED = "segment not extended"
    NOT_REGISTERED = "segment not registered"
    HOST_BUFFER = "cuMem host memory"
    SAME_GPU = "same GPU"
    VERSIONS_DIFFER = "versions differ"
    NO_INTERFACE = "no interface"
    GPU_MEMORY = "no GPU memory"
    CUDA = "CUDA error"
    HANG = "hang"
    OTHER = "failed"

    __str__ = str.__str__


#: The pitfall of each end, for a /dev/shm that had room enough. None: the machine did not let us see.
PITFALLS: Final[Mapping[End, str | None]] = {
    End.WRONG: "wrong-numbers",
    End.BUS_ERROR: "nccl-shm-too-small",
    End.KILLED: None,
    End.CRASH: "native-crash",
    End.NO_CUDA: None,
    End.NO_SPACE: "nccl-shm-too-small",
    End.NOT_EXTENDED: "nccl-shm-too-small",
    End.NOT_REGISTERED: "shm-register-failed",
    End.HOST_BUFFER: "nccl-cumem-host",
    End.SAME_GPU: "nccl-duplicate-gpu",
    End.VERSIONS_DIFFER: "nccl-version-mismatch",
    End.NO_INTERFACE: "interface-missing",
    End.GPU_MEMORY: None,
    End.CUDA: "nccl-cuda-error",
    End.HANG: "nccl-hang",
    End.OTHER: "nccl-system-error",
}
#: What a /dev/shm that is too small can look like: the first two need no size to be believed.
OUT_OF_SHM: Final = (End.NO_SPACE, End.BUS_ERROR, End.NOT_EXTENDED, End.NOT_REGISTERED)
_OF_LOG: Final = {
    Trouble.NO_SPACE: End.NO_SPACE,
    Trouble.NOT_EXTENDED: End.NOT_EXTENDED,
    Trouble.NOT_REGISTERED: End.NOT_REGISTERED,
    Trouble.HOST_BUFFER: End.HOST_BUFFER,
    Trouble.SAME_GPU: End.SAME_GPU,
    Trouble.VERSIONS_DIFFER: End.VERSIONS_DIFFER,
    Trouble.NO_INTERFACE: End.NO_INTERFACE,
    Trouble.SEGMENT: End.OTHER,
    Trouble.CUDA: End.CUDA,
}
_GONE: Final = ("waited", "hang", "stuck")
_FAILED: Final = ("failure", "exit", "signal")


@dataclass(frozen=True, slots=True)
class Seen:
    """One run: how it ended, in words, what NCCL's log says, what it took of /dev/shm, and lines of evidence."""

    end: End
    words: str
    log: Log
    peak_bytes: int = 0
    details: tuple[str, ...] = ()
    spent_s: float = 0.0
    torch: str | None = None

    @property
    def works(self) -> bool:
        """Whether every number arrived, and was right."""
        return self.end is End.WORKS

    @property
    def pitfall(self) -> str | None:
        """What it is, given that there was room enough."""
        return PITFALLS.get(self.end)

    @property
    def tests_shm(self) -> bool:
        """Whether this run says something about /dev/shm: its bytes, or NCCL's pool for the network, lay there."""
        pools = any(segment.place is Place.DEV_SHM for segment in self.log.segments)
        return self.end in OUT_OF_SHM or self.log.uses_dev_shm or bool(self.peak_bytes and pools)

    def __str__(self) -> str:
        return self.words


def version_of(answer: Mapping[str, Any]) -> nccl_log.Version | None:
    """NCCL's version, by the ranks themselves or by their log."""
    for rank in answer["ranks"]:
        told = rank.get("value", {}).get("version")
        if told:
            return nccl_log.Version(*told)
    return log_of(answer["ranks"]).version


def log_of(ranks: Iterable[Mapping[str, Any]]) -> Log:
    """What the logs of all ranks say together. What a rank printed and raised is read with them."""
    texts = [f"{rank['log']}\n{rank['output']}\n{rank.get('text', '')}" for rank in ranks]
    return nccl_log.parse("\n".join(texts))


def seen(answer: Mapping[str, Any], limit_s: float) -> Seen:
    """What a run of ranks came to."""
    ranks = answer["ranks"]
    log = log_of(ranks)
    end, words = _signalled(ranks) or _failed(ranks, log) or _hung(ranks, limit_s) or _counted(ranks, log)
    shm = answer["shm"] or {}
    torch = next((rank["value"].get("torch") for rank in ranks if "value" in rank), None)
    details = () if end is End.WORKS else tuple(_details(ranks, log))
    return Seen(end, words, log, shm.get("peak_bytes", 0), details, answer["spent_s"], torch)


def alone(answer: Mapping[str, Any], number: int, limit_s: float) -> Seen:
    """What one rank of a run of worlds of their own came to."""
    return seen({**answer, "ranks": [answer["ranks"][number]], "shm": None}, limit_s)


def where(rank: Mapping[str, Any]) -> str:
    """Where a rank stood: ``rank 1 in collective 3``."""
    step = f"in collective {rank['collective']}" if rank["collective"] else f"at {rank['step'] or 'the start'}"
    return f"rank {rank['rank']} {step}"


def _when(rank: Mapping[str, Any]) -> float:
    """When it ended. One that told its failure may live on, and did not die of SIGKILL: that is last."""
    return float("inf") if rank["gone_s"] is None else float(rank["gone_s"])


def _signalled(ranks: Sequence[Mapping[str, Any]]) -> tuple[End, str] | None:
    """A rank that a signal ended; the first, where there are several."""
    dead = sorted((rank for rank in ranks if rank["ended"] == "signal"), key=_when)
    if not dead:
        return None
    name = dead[0]["signal"]
    end = {"SIGBUS": End.BUS_ERROR, "SIGKILL": End.KILLED, "SIGTERM": End.KILLED}.get(name, End.CRASH)
    if end is End.CRASH and log_of(ranks).cause is not None:
        return None  # torch aborts the process for what NCCL complained of
    waiting = [where(rank) for rank in ranks if rank["ended"] in _GONE]
    suffix = f"; {', '.join(waiting)} waited for it" if waiting else ""
    return end, f"{where(dead[0])} was killed by {name}{suffix}"


def _failed(ranks: Sequence[Mapping[str, Any]], log: Log) -> tuple[End, str] | None:
    """What a log complains of, or what a rank raised; only where some rank did not come through."""
    failed = sorted((rank for rank in ranks if rank["ended"] in _FAILED), key=_when)
    cause = log.cause
    if cause is not None and cause.trouble in _OF_LOG and any(rank["ended"] != "value" for rank in ranks):
        return _OF_LOG[cause.trouble], f"{where((failed or ranks)[0])}: {cause.line[:WORDS]}"
    if not failed:
        return None
    first = failed[0]
    if first["ended"] == "exit":
        return End.CRASH, f"{where(first)} ended with exit {first['code']} and no word"
    if first["ended"] == "signal":
        return End.CRASH, f"{where(first)} was killed by {first['signal']}"
    end = End.NO_CUDA if first["step"] == BEFORE_NCCL else _of_exception(first["type"], first["text"])
    return end, f"{where(first)}: {first['type']}: {first['text'].strip()[:WORDS]}"


def _of_exception(kind: str, text: str) -> End:
    """An exception that NCCL's log says nothing about."""
    if "[Errno 28]" in text or "No space left on device" in text:
        return End.NO_SPACE
    if kind == "OutOfMemoryError" or "out of memory" in text:
        return End.GPU_MEMORY
    return End.CUDA if "CUDA error" in text else End.OTHER


def _hung(ranks: Sequence[Mapping[str, Any]], limit_s: float) -> tuple[End, str] | None:
    gone = [rank for rank in ranks if rank["ended"] in _GONE]
    if not gone:
        return None
    stuck = [f"rank {rank['rank']}" for rank in gone if rank["ended"] == "stuck"]
    suffix = f"; {', '.join(stuck)} did not die when killed (uninterruptible sleep)" if stuck else ""
    return End.HANG, f"no end within {limit_s:.0f} s: {', '.join(map(where, gone))}{suffix}"


def _counted(ranks: Sequence[Mapping[str, Any]], log: Log) -> tuple[End, str]:
    """All ranks came through: right or wrong numbers."""
    wrong = [rank for rank in ranks if rank["value"]["wrong"]]
    checked = ranks[0]["value"]["checked"]
    if wrong:
        which = ", ".join(f"{rank['value']['wrong']} of {checked} in rank {rank['rank']}" for rank in wrong)
        return End.WRONG, f"wrong numbers: {which}, via {log.words}"
    return End.WORKS, f"{checked} numbers right in each of {len(ranks)} rank(s), via {log.words}"


def _details(ranks: Sequence[Mapping[str, Any]], log: Log) -> Iterable[str]:
    """Stacks of those that were ended, and NCCL's last lines."""
    for rank in ranks:
        if rank["stack"]:
            yield f"rank {rank['rank']}: {' < '.join(rank['stack'][:FRAMES])}"
    for complaint in dict.fromkeys(log.complaints):
        yield f"NCCL: {complaint.line[:WORDS]}"
    if not log.complaints:
        yield from (f"NCCL's last lines: {line[:WORDS]}" for line in log.last)


def no_size_works(tried: Mapping[int, Seen], nccl: Need | None, job: Need) -> Finding:
    """Too small where all sizes were, by what the ranks (``nccl``) take; else what stopped them in the largest."""
    largest = max(tried)
    last = tried[largest]
    needed_bytes = nccl.nccl_bytes if nccl is not None else 0
    too_small = last.end in OUT_OF_SHM and largest < needed_bytes
    pitfall = "nccl-shm-too-small" if too_small else last.pitfall or "nccl-system-error"
    evidence = [f"{size_text(size)}: {one}" for size, one in sorted(tried.items())]
    need = f"what these ranks take by NCCL's own sizes: {bytes_text(needed_bytes)}"
    return bad(pitfall, *evidence, need, *last.details, **job.params())


def took(seen_: Seen) -> str:
    """What a run took of /dev/shm, as a phrase; empty where it is not known."""
    return f", {bytes_text(seen_.peak_bytes)} of /dev/shm taken" if seen_.peak_bytes else ""
