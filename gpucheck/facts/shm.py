"""``/dev/shm``: its size, and the segments in it that nobody holds any more."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from gpucheck.facts import aside
from gpucheck.facts.fact import Fact, Json, Unknown
from gpucheck.facts.mounts import MOUNTINFO, mount_of
from gpucheck.facts.reading import Reading, group

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpucheck.facts.tree import Tree

SHM: Final = "/dev/shm"
_SEARCH_DEADLINE_S: Final = 5.0


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


def _census(tree: Tree) -> dict[str, Json]:
    """What ``payload/shm_census.py`` says. Raises Unknown when somebody hangs whoever looks at what he holds."""
    if not tree.names(SHM):
        return {"files": [], "leftover_bytes": 0, "outsiders": False}
    args = {"folder": str(tree.path(SHM)), "proc": str(tree.path("/proc")), "look_only": True}
    found: dict[str, Json] = aside.ask_own(tree, "shm_census", args, _SEARCH_DEADLINE_S)
    return found


def _orphan(file: dict[str, Json], *, outsiders: bool) -> bool | None:
    """Whether nobody holds it; None when somebody whom we cannot see may."""
    if file["state"] == "held":
        return False
    return True if file["state"] == "orphan" and not outsiders else None


def _leftovers(tree: Tree) -> Iterator[Fact]:
    """Segments of known makers, the largest: {name, bytes (allocated), orphan}; and what all orphans hold together.

    A user's own files are no leftovers; segments in use, or perhaps in use, do not count. Where nothing but such is
    there, how much is left over is unknown, which is not zero.
    """
    census = _census(tree)
    outsiders = census["outsiders"]
    rows = [
        {"name": file["name"], "bytes": file["bytes"], "orphan": _orphan(file, outsiders=outsiders)}
        for file in census["files"]
        if file["kind"] != "other"
    ]
    yield Fact("shm.leftovers", rows, f"{SHM}, /proc/*/maps and fd")
    sure_bytes = 0 if outsiders else census["leftover_bytes"]
    undecided = not sure_bytes and any(row["orphan"] is None for row in rows)
    why = "somebody whose processes are not seen from here may hold what is there" if undecided else None
    yield Fact("shm.leftover_bytes", None if undecided else sure_bytes, f"{SHM}, those without a holder", why)


READERS: Final = group(
    {
        "shm.total_bytes": _total,
        "shm.free_bytes": _free,
        "shm.filesystem": _filesystem,
    },
    {("shm.leftovers", "shm.leftover_bytes"): _leftovers},
)
