"""The cgroup that we are in: the quota and the memory limit that bind, whichever of its parents sets them."""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING, Final

from gpucheck.facts.fact import Unknown
from gpucheck.facts.mounts import MOUNTINFO, mounts
from gpucheck.facts.reading import Reading, group

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpucheck.facts.tree import Tree
    from gpucheck.payload.mountinfo import Mount

_OWN: Final = "/proc/self/cgroup"
# Version 1 writes "no limit" as the largest count of pages.
_NO_LIMIT_BYTES: Final = 1 << 60
_OOM_KILLS: Final = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


def _version(tree: Tree) -> Reading:
    """2 where the unified hierarchy holds the controllers; 1 also for hybrids, whose controllers are version 1's."""
    kinds = {mount.filesystem for mount in mounts(tree) if mount.filesystem.startswith("cgroup")}
    if not kinds:
        raise Unknown(MOUNTINFO, "no cgroup file system is mounted")
    return Reading(1 if "cgroup" in kinds else 2, MOUNTINFO)


def _hierarchy(tree: Tree, controller: str) -> tuple[int, Mount, str]:
    """The version, the mount and our own path of the hierarchy that holds ``controller``. Raises Unknown, OSError."""
    rows = [line.split(":", 2) for line in tree.text(_OWN).splitlines()]
    named = {word: path for _, controllers, path in rows for word in controllers.split(",")}
    for mount in mounts(tree):
        if mount.filesystem == "cgroup" and controller in mount.super_options and controller in named:
            return 1, mount, named[controller]
    for mount in mounts(tree):
        if mount.filesystem == "cgroup2" and "" in named:
            return 2, mount, named[""]
    raise Unknown(MOUNTINFO, f"no cgroup file system with the controller {controller} is mounted")


def _folders(tree: Tree, controller: str) -> tuple[int, Iterator[str]]:
    """Our own cgroup's folder and each of its parents', as far as they are visible here."""
    version, mount, own = _hierarchy(tree, controller)
    inside = posixpath.relpath(own, mount.top)
    # Without a cgroup namespace the path is the host's, while only our own part is mounted.
    parts = [] if inside == "." or inside.startswith("..") else inside.split("/")
    return version, (posixpath.join(mount.point, *parts[:depth]) for depth in range(len(parts), -1, -1))


def quota(tree: Tree) -> Reading:
    """How many CPUs' worth of time the tightest quota grants; None without a quota."""
    version, folders = _folders(tree, "cpu")
    read = _quota_v2 if version == 2 else _quota_v1  # noqa: PLR2004 - cgroup version 2
    found = [(value, folder) for folder in folders if (value := read(tree, folder)) is not None]
    value, source = min(found, default=(None, f"cgroup version {version}: no quota up to the root"))
    return Reading(value, source)


def _quota_v2(tree: Tree, folder: str) -> float | None:
    granted, _, period = (tree.text_if_any(f"{folder}/cpu.max") or "max").partition(" ")
    return None if granted == "max" else int(granted) / int(period)


def _quota_v1(tree: Tree, folder: str) -> float | None:
    granted = int(tree.text_if_any(f"{folder}/cpu.cfs_quota_us") or -1)
    return int(granted) / int(tree.text(f"{folder}/cpu.cfs_period_us")) if granted > 0 else None


def memory_limit(tree: Tree) -> Reading:
    """The tightest memory limit in bytes; None without one."""
    version, folders = _folders(tree, "memory")
    name = "memory.max" if version == 2 else "memory.limit_in_bytes"  # noqa: PLR2004 - cgroup version 2
    texts = ((folder, tree.text_if_any(f"{folder}/{name}") or "max") for folder in folders)
    found = [(int(text), f"{folder}/{name}") for folder, text in texts if text != "max" and int(text) < _NO_LIMIT_BYTES]
    value, source = min(found, default=(None, f"cgroup version {version}: no {name} up to the root"))
    return Reading(value, source)


def _oom_kills(tree: Tree) -> Reading:
    """How often the kernel killed something in our cgroup, or below it, for want of memory."""
    version, folders = _folders(tree, "memory")
    folder = next(iter(folders))
    path = f"{folder}/{'memory.events' if version == 2 else 'memory.oom_control'}"  # noqa: PLR2004 - cgroup version 2
    text = tree.text_if_any(path)
    if text is None:
        # Version 2's root cgroup counts nothing; the machine's own count does.
        path, text = "/proc/vmstat", tree.text("/proc/vmstat")
    found = _OOM_KILLS.search(text)
    if not found:
        raise Unknown(path, "no count of oom_kill (kernels before 4.13)")
    return Reading(int(found[1]), path)


READERS: Final = group(
    {
        "cgroup.version": _version,
        "cpu.quota": quota,
        "memory.limit_bytes": memory_limit,
        "memory.oom_kills": _oom_kills,
    }
)
