"""``/dev/shm``: its size, and the segments in it that nobody holds any more."""

from __future__ import annotations

import os
import re
import time
from typing import TYPE_CHECKING, Final

from gpucheck.facts.fact import Json, Unknown
from gpucheck.facts.mounts import MOUNTINFO, mount_of
from gpucheck.facts.reading import Reading, group

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpucheck.facts.tree import Tree

SHM: Final = "/dev/shm"
# Segments of NCCL, torch, Python's shared_memory and semaphores, OpenMP, joblib, CUDA. A user's own files are nobody's
# leftovers.
_SEGMENT: Final = re.compile(
    r"(?:nccl-|torch_|psm_|wnsm_|sem\.|__KMP_REGISTERED_LIB_|joblib_|loky-|cuda\.shm\.|pymp-).+"
)
# torch_<pid>_<random>_<count> and __KMP_REGISTERED_LIB_<pid>_<uid> say who made them.
_MAKER: Final = re.compile(r"(?:torch|__KMP_REGISTERED_LIB)_(\d+)_")
_FIRST_PID_NAMESPACE: Final = "pid:[4026531836]"
_SEARCH_LIMIT_S: Final = 0.1
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
    holders = _Holders(tree)
    found = ((name, tree.path(f"{SHM}/{name}")) for name in names)
    # Sockets and folders have no business of ours; a file may go while we look.
    sizes = [(name, path.stat()) for name, path in found if path.is_file()]
    return [
        {"name": name, "bytes": status.st_blocks * _BLOCK_BYTES, "orphan": holders.orphan(name, status.st_uid)}
        for name, status in sizes
    ]


class _Holders:
    """Which segments some process has mapped or open, as far as this process may see."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.held: set[str] = set()
        self.hidden_uids: set[int] = set()
        self.complete = self._sees_all_processes()
        self._search(time.monotonic() + _SEARCH_LIMIT_S)

    def orphan(self, name: str, uid: int) -> bool | None:
        """Whether nobody holds the segment that ``uid`` owns; None when somebody whom we cannot see may."""
        if name in self.held:
            return False
        maker = _MAKER.match(name)
        if maker and self.complete and not self.tree.exists(f"/proc/{maker[1]}"):
            return True
        return None if not self.complete or uid in self.hidden_uids else True

    def _sees_all_processes(self) -> bool:
        # In a pid namespace of our own the segment's holder may live outside of it.
        return self.tree.link_name("/proc/self/ns/pid") == _FIRST_PID_NAMESPACE

    def _search(self, end: float) -> None:
        for pid in self.tree.names("/proc"):
            if not pid.isdecimal():
                continue
            if time.monotonic() > end:
                self.complete = False
                return
            self._look_at(pid)

    def _look_at(self, pid: str) -> None:
        try:
            maps = self.tree.text(f"/proc/{pid}/maps")
            self.held.update(_segment_names(line.partition("/")[2] for line in maps.splitlines() if SHM in line))
            descriptors = self.tree.path(f"/proc/{pid}/fd")
            self.held.update(_segment_names(os.readlink(entry)[1:] for entry in descriptors.iterdir()))
        except PermissionError:
            self.hidden_uids.add(self.tree.path(f"/proc/{pid}").stat().st_uid)
        except (FileNotFoundError, ProcessLookupError):
            return  # it ended while we looked


def _segment_names(paths: Iterable[str]) -> set[str]:
    inside = SHM[1:] + "/"
    return {path.removeprefix(inside).removesuffix(" (deleted)") for path in paths if path.startswith(inside)}


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
