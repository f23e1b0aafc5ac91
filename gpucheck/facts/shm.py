"""``/dev/shm``: its size, and the segments in it that nobody holds any more."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

from gpucheck.facts import aside
from gpucheck.facts.fact import Json, Unknown
from gpucheck.facts.mounts import MOUNTINFO, mount_of
from gpucheck.facts.reading import Reading, group

if TYPE_CHECKING:
    from gpucheck.facts.tree import Tree

SHM: Final = "/dev/shm"
# Segments of NCCL, torch, Python's shared_memory and semaphores, OpenMP, joblib, CUDA. A user's own files are nobody's
# leftovers.
_SEGMENT: Final = re.compile(
    r"(?:nccl-|torch_|psm_|wnsm_|sem\.|__KMP_REGISTERED_LIB_|joblib_|loky-|cuda\.shm\.|pymp-).+"
)
_FIRST_PID_NAMESPACE: Final = "pid:[4026531836]"
_SEARCH_DEADLINE_S: Final = 5.0
_BLOCK_BYTES: Final = 512


def _space(tree: Tree) -> os.statvfs_result:
    if not tree.exists(SHM):
        raise Unknown(SHM, "not there")
    return os.statvfs(tree.path(SHM))


def _total(tree: Tree) -> Reading:
    space = tree.once(_space)
    return Reading(space.f_blocks * space.f_frsize, f"statvfs {SHM}")


def _free(tree: Tree) -> Reading:
    space = tree.once(_space)
    return Reading(space.f_bavail * space.f_frsize, f"statvfs {SHM}")


def _filesystem(tree: Tree) -> Reading:
    """The file system that holds /dev/shm; None when there is no /dev/shm."""
    mount = mount_of(tree, SHM)
    if mount is None or not tree.exists(SHM):
        return Reading(None, f"no {SHM}")
    return Reading(mount.filesystem, f"{MOUNTINFO}: {mount.point}")


def leftovers(tree: Tree) -> list[dict[str, Json]]:
    """Segments of known makers: {name, bytes (allocated), orphan}; ``orphan`` is None where it cannot be told."""
    return tree.once(_leftovers)


def _leftovers(tree: Tree) -> list[dict[str, Json]]:
    names = [name for name in tree.names(SHM) if _SEGMENT.fullmatch(name)]
    if not names:
        return []
    holders = _holders(tree)
    found = ((name, tree.path(f"{SHM}/{name}")) for name in names)
    # Sockets and folders have no business of ours; a file may go while we look.
    sizes = [(name, path.stat()) for name, path in found if path.is_file()]
    return [
        {"name": name, "bytes": status.st_blocks * _BLOCK_BYTES, "orphan": _is_orphan(holders, name, status.st_uid)}
        for name, status in sizes
    ]


def _holders(tree: Tree) -> dict[str, Json] | None:
    """What every process holds; None when we cannot see every process, or one of them hangs whoever looks at it."""
    if tree.link_name("/proc/self/ns/pid") != _FIRST_PID_NAMESPACE:
        return None  # with a shared /dev/shm a holder may live outside our pid namespace
    try:
        found: dict[str, Json] = aside.ask_own(
            tree, "shm_holders", {"proc": str(tree.path("/proc")), "folder": SHM}, _SEARCH_DEADLINE_S
        )
    except Unknown:
        return None
    return found


def _is_orphan(holders: dict[str, Json] | None, name: str, uid: int) -> bool | None:
    """Whether nobody holds the segment that ``uid`` owns; None when somebody whom we cannot see may."""
    if holders is None:
        return None
    if name in holders["held"]:
        return False
    return None if uid in holders["unseen_uids"] else True


def _leftover_list(tree: Tree) -> Reading:
    return Reading(leftovers(tree), f"{SHM}, /proc/*/maps and fd")


def _leftover_bytes(tree: Tree) -> Reading:
    """What the orphans hold; segments in use, or perhaps in use, do not count."""
    return Reading(sum(row["bytes"] for row in leftovers(tree) if row["orphan"]), f"{SHM}, those without a holder")


READERS: Final = group(
    {
        "shm.total_bytes": _total,
        "shm.free_bytes": _free,
        "shm.filesystem": _filesystem,
        "shm.leftovers": _leftover_list,
        "shm.leftover_bytes": _leftover_bytes,
    }
)
