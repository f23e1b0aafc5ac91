"""NCCL's own log as data: by which ways ranks talk, where the buffers lie, and what went wrong. Pure, a leaf.

Words are those of NVIDIA/nccl at the tags v2.7.3 to v2.30.7 (`src/transport/{shm,p2p,net}.cc`, `src/misc/shmutils.cc`,
`src/include/shm.h`, `src/init.cc`), with ``NCCL_DEBUG=INFO`` and the subsystems of :data:`SUBSYSTEMS`. One text may
hold the logs of several ranks. What torch repeats of NCCL's last error is read the same way.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

#: ``NCCL_DEBUG_SUBSYS``: each word that is read here is told under one of them.
SUBSYSTEMS: Final = "INIT,SHM,P2P,NET,ENV,ALLOC"
LAST_LINES: Final = 6


class Way(str, Enum):
    """How a rank's bytes reach another: NCCL's transports."""

    SHM = "SHM"
    P2P = "P2P"
    NET = "NET"

    __str__ = str.__str__


class Place(str, Enum):
    """Where a host buffer between two ranks lies."""

    DEV_SHM = "/dev/shm"
    CUMEM = "cuMem host memory"

    __str__ = str.__str__


class Trouble(str, Enum):
    """What a line of the log complains of; the first of several is the cause, in the order given here."""

    NO_SPACE = "no space left for a segment"
    NOT_EXTENDED = "a segment could not be extended"
    NOT_REGISTERED = "CUDA refused a segment"
    HOST_BUFFER = "cuMem host memory failed"
    SAME_GPU = "two ranks on one GPU"
    VERSIONS_DIFFER = "ranks with different NCCL"
    NO_INTERFACE = "no network interface"
    SEGMENT = "a segment could not be made or opened"
    CUDA = "a CUDA call failed"
    SYSTEM = "a system call failed"
    TIMEOUT = "a collective timed out"
    PEER_LOST = "another rank went away"

    __str__ = str.__str__


@dataclass(frozen=True, slots=True, order=True)
class Version:
    """NCCL's version."""

    major: int
    minor: int
    patch: int = 0

    @property
    def shares_gpu(self) -> bool:
        """Whether two ranks may be put on one GPU (``NCCL_MULTI_RANK_GPU_ENABLE``)."""
        return self >= Version(2, 30)

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"


@dataclass(frozen=True, slots=True)
class Link:
    """One channel from one rank to another. ``how`` is the rest of NCCL's words: ``direct``, ``Socket/0``."""

    channel: int
    source: int
    target: int
    way: Way
    how: str


@dataclass(frozen=True, slots=True)
class Segment:
    """A host buffer that a rank made for another."""

    place: Place
    size_bytes: int
    path: str = ""


@dataclass(frozen=True, slots=True)
class Complaint:
    """What a line complains of, and the line without its prefix."""

    trouble: Trouble
    line: str


@dataclass(frozen=True, slots=True)
class Log:
    """What a log says; ``last`` are its last lines."""

    version: Version | None = None
    links: tuple[Link, ...] = ()
    segments: tuple[Segment, ...] = ()
    complaints: tuple[Complaint, ...] = ()
    last: tuple[str, ...] = ()

    @property
    def ways(self) -> tuple[Way, ...]:
        """The transports in use, each once."""
        return tuple(way for way in Way if any(link.way is way for link in self.links))

    @property
    def channels(self) -> int:
        """On how many channels the ranks talk."""
        return len({link.channel for link in self.links})

    @property
    def uses_dev_shm(self) -> bool:
        """Whether the bytes between ranks go through /dev/shm: SHM is the way, and its buffers are not cuMem's."""
        if any(segment.place is Place.CUMEM for segment in self.segments):
            return False
        return Way.SHM in self.ways

    @property
    def cause(self) -> Complaint | None:
        """The complaint to believe: what only follows from another failure comes last."""
        ordered = sorted(self.complaints, key=lambda complaint: list(Trouble).index(complaint.trouble))
        return ordered[0] if ordered else None

    @property
    def words(self) -> str:
        """By which ways, in one phrase: ``SHM/direct on 4 channels (/dev/shm)``."""
        kinds = dict.fromkeys(f"{link.way}/{link.how}".rstrip("/") for link in self.links)
        if not kinds:
            return "no channel in NCCL's log"
        places = "" if Way.SHM not in self.ways else f" ({Place.DEV_SHM if self.uses_dev_shm else Place.CUMEM})"
        return f"{', '.join(kinds)} on {self.channels} channels{places}"


_PREFIX = re.compile(r"^.*?(?=\bNCCL (?:INFO|WARN|ERROR)\b)")
_VERSION = re.compile(r"NCCL version (\d+)\.(\d+)\.(\d+)")
# "Ring" up to 2.6; "[send]" and "[receive]" tell of one link at both of its ends.
_LINK = re.compile(r"(?:Channel|Ring) (\d+)(?:/\d+)? : (\d+)\[\w+\] -> (\d+)\[\w+\](?: \[\w+\])? via (\S.*)$")
_SEGMENT = re.compile(r"(MMAP|CUMEM) allocated shareable (?:host )?buffer (\S+) size (\d+)")
_OLDER_SEGMENT = re.compile(r"Allocated (\d+) bytes of shared memory in (/dev/shm/\S+)")
_DIRECT_SHM = "direct shared memory"  # the words of SHM/direct up to 2.11

_SHM_FILES = r"(?:shmutils\.cc|include/shm\.h|os/linux\.cc)"
_COMPLAINTS: Final = (
    (r"posix_fallocate failed ?: No space left|shared memory segment .*No space left|failed to extend .*No space left",
     Trouble.NO_SPACE),
    (r"failed to extend /dev/shm/", Trouble.NOT_EXTENDED),
    (_SHM_FILES + r":\d+ NCCL WARN Cuda failure", Trouble.NOT_REGISTERED),
    # 2.24 to 2.26.2 do not try first: "invalid argument", "operation not permitted", "operation not supported".
    (r"transport/shm\.cc:\d+ NCCL WARN Cuda failure|include/alloc\.h:\d+ NCCL WARN Cuda failure (?:1|800|801) ",
     Trouble.HOST_BUFFER),
    (r"Duplicate GPU detected|Multiple Ranks are using the same GPU", Trouble.SAME_GPU),
    (r"Mismatched NCCL version detected", Trouble.VERSIONS_DIFFER),
    (r"no socket interface found|Bootstrap : no .*interface", Trouble.NO_INTERFACE),
    (r"Error while (?:creating|attaching to) shared memory segment", Trouble.SEGMENT),
    (r"NCCL WARN Cuda failure|ncclUnhandledCudaError", Trouble.CUDA),
    (r"Watchdog caught collective operation timeout", Trouble.TIMEOUT),
    (r"remote process exited|ncclRemoteError|Connection closed by remote peer|Socket recv failed|reset by peer",
     Trouble.PEER_LOST),
    (r"ncclSystemError: System call", Trouble.SYSTEM),
)  # fmt: skip
_TABLE = tuple((re.compile(pattern), trouble) for pattern, trouble in _COMPLAINTS)


def parse(text: str) -> Log:
    """What the log (or the logs, one after the other) of one communicator says."""
    lines = [line for line in text.splitlines() if line.strip()]
    versions = [Version(*map(int, found.groups())) for line in lines if (found := _VERSION.search(line))]
    return Log(
        version=versions[0] if versions else None,
        links=tuple(dict.fromkeys(link for line in lines if (link := _link(line)))),
        segments=tuple(segment for line in lines if (segment := _segment(line))),
        complaints=tuple(_complaints(lines)),
        last=tuple(bare(line) for line in lines[-LAST_LINES:]),
    )


def bare(line: str) -> str:
    """A line without host name, pid and thread in front."""
    return _PREFIX.sub("", line).strip()


def _link(line: str) -> Link | None:
    found = _LINK.search(line)
    if found is None:
        return None
    channel, source, target, told = int(found[1]), int(found[2]), int(found[3]), found[4].strip()
    if told == _DIRECT_SHM:
        return Link(channel, source, target, Way.SHM, "direct")
    name, _, how = told.partition("/")
    ways = {way.value: way for way in Way}
    return Link(channel, source, target, ways[name], how) if name in ways else None


def _segment(line: str) -> Segment | None:
    if found := _SEGMENT.search(line):
        kind, where, size = found.groups()
        if kind == "CUMEM":
            return Segment(Place.CUMEM, int(size))
        return Segment(Place.DEV_SHM, int(size), where)
    if found := _OLDER_SEGMENT.search(line):
        return Segment(Place.DEV_SHM, int(found[1]), found[2])
    return None


def _complaints(lines: list[str]) -> Iterator[Complaint]:
    for line in lines:
        trouble = next((trouble for pattern, trouble in _TABLE if pattern.search(line)), None)
        if trouble is not None:
            yield Complaint(trouble, bare(line))
