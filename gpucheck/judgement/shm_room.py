"""Can this ``/dev/shm`` hold that job? A census of it (``payload/shm_census.py``) in, a judgement out. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gpucheck.judgement.shm_need import bytes_text
from gpucheck.verdict import bad, degraded

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpucheck.judgement.shm_need import Need
    from gpucheck.verdict import Finding

# Where a file takes memory and nothing else. gVisor and Kata call theirs tmpfs too.
IN_MEMORY = ("tmpfs", "ramfs")
NAMES_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Room:
    """A ``/dev/shm`` as the census saw it. ``total_bytes`` 0: no limit. ``living_bytes``: held by running processes."""

    filesystem: str | None
    refused: str | None = None
    total_bytes: int = 0
    free_bytes: int = 0
    living_bytes: int = 0
    leftover_bytes: int = 0
    leftover_count: int = 0
    leftovers: tuple[str, ...] = ()
    holders: tuple[str, ...] = ()
    sees_all: bool = False

    @property
    def used(self) -> bool:
        """Whether a running process has something in it."""
        return self.living_bytes > 0

    def holds(self, need_bytes: int) -> bool:
        """Whether there is room for that much now."""
        return self.total_bytes == 0 or self.free_bytes >= need_bytes

    def __str__(self) -> str:
        """One line of evidence."""
        if self.filesystem is None:
            return "there is no /dev/shm"
        size = "without a limit" if not self.total_bytes else f"of {bytes_text(self.total_bytes)}"
        parts = [f"/dev/shm: {self.filesystem} {size}, {bytes_text(self.free_bytes)} free"]
        if self.used:
            by = f" ({', '.join(self.holders)})" if self.holders else ""
            parts.append(f"{bytes_text(self.living_bytes)} held by running processes{by}")
        if self.leftover_count:
            parts.append(f"left over: {self.leftover_count} files, {bytes_text(self.leftover_bytes)}")
        return "; ".join(parts)


def room_of(census: Mapping[str, Any]) -> Room:
    """The census, parsed. Raises KeyError and TypeError for anything else."""
    if census["filesystem"] is None:
        return Room(None)
    unnamed_bytes = census["unnamed_bytes"] or 0
    return Room(
        filesystem=census["filesystem"],
        refused="EROFS" if census["read_only"] else census["refused"],
        total_bytes=int(census["total_bytes"]),
        free_bytes=int(census["free_bytes"]),
        living_bytes=unnamed_bytes + census["bytes_by_state"]["held"],
        leftover_bytes=census["leftover_bytes"],
        leftover_count=census["leftover_count"],
        leftovers=tuple(file["name"] for file in census["leftovers"]),
        holders=tuple(census["holders"]),
        sees_all=census["sees_all"],
    )


def judge(room: Room, need: Need, *, contained: bool) -> Finding | None:
    """Why ``room`` cannot hold ``need``, or what will hurt; None: nothing is wrong. ``contained``: in a container."""
    found = (
        _unusable(room) or _too_small(room, need, contained=contained) or _taken(room, need) or _littered(room, need)
    )
    return found and replace(found, params=need.params())


def _unusable(room: Room) -> Finding | None:
    if room.filesystem is None:
        return bad("shm-unusable", "there is no folder /dev/shm")
    if room.refused == "ENOSPC":
        return bad("shm-full", str(room), "not even an empty file can be created (ENOSPC)")
    if room.refused:
        return bad("shm-unusable", str(room), f"creating a file there: {room.refused}")
    if room.filesystem not in IN_MEMORY:
        # The kernel does not pin pages of files on disks for a device, so NCCL's segments cannot be registered there.
        return bad("shm-unusable", str(room), f"{room.filesystem} is not in memory", confidence="medium")
    return None


def _too_small(room: Room, need: Need, *, contained: bool) -> Finding | None:
    if room.total_bytes == 0 or room.total_bytes >= need.total_bytes:
        return None
    evidence = (str(room), f"a job of {need.ranks} ranks takes {need}", *need.flags())
    return degraded("shm-too-small", *evidence) if contained else bad("shm-too-small", *evidence)


def _taken(room: Room, need: Need) -> Finding | None:
    missing_bytes = need.total_bytes - room.free_bytes
    if room.holds(need.total_bytes):
        return None
    evidence = (str(room), f"a job of {need.ranks} ranks takes {need}: {bytes_text(missing_bytes)} more than is free")
    if room.leftover_bytes >= missing_bytes:
        return bad("shm-leftovers", *evidence, _names(room), confidence=_confidence(room))
    if room.living_bytes >= missing_bytes:
        # It frees itself when they end: this machine is busy, not broken.
        return degraded("shm-full", *evidence)
    return bad("shm-full", *evidence)


def _littered(room: Room, need: Need) -> Finding | None:
    """Space enough, but the dead hold as much as a job takes, and it is memory."""
    if room.leftover_bytes < need.total_bytes:
        return None
    return degraded("shm-leftovers", str(room), _names(room), confidence=_confidence(room))


def _confidence(room: Room) -> str:
    return "high" if room.sees_all else "medium"


def _names(room: Room) -> str:
    more = room.leftover_count - len(room.leftovers[:NAMES_SHOWN])
    names = ", ".join(room.leftovers[:NAMES_SHOWN])
    return f"no living process made, opened or mapped: {names}" + (f" and {more} more" if more > 0 else "")
