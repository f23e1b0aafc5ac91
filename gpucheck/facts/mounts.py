"""The mounts of a tree, which of them may make whoever asks wait, and the facts about them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpucheck.facts.reading import Reading, group
from gpucheck.payload import mountinfo

if TYPE_CHECKING:
    from gpucheck.facts.tree import Tree
    from gpucheck.payload.mountinfo import Mount

MOUNTINFO: Final = mountinfo.PATH
# File systems whose server may be gone, so that even asking for their size could block for ever.
_REMOTE: Final = (
    "nfs",
    "cifs",
    "smb",
    "ceph",
    "lustre",
    "gpfs",
    "beegfs",
    "9p",
    "afs",
    "autofs",
    "fuse",
    "glusterfs",
    "virtiofs",
)
# Their roots are not "/" for reasons of their own: a cgroup, a namespace, a subvolume.
_ROOTED_ELSEWHERE: Final = ("cgroup", "cgroup2", "nsfs", "btrfs", "proc", "sysfs")


def mounts(tree: Tree) -> list[Mount]:
    """All mounts, oldest first: of two at one point the later one is seen. Raises OSError, ValueError."""
    return tree.once(_mounts)


def _mounts(tree: Tree) -> list[Mount]:
    return mountinfo.parse(tree.text(MOUNTINFO))


def mount_of(tree: Tree, path: str) -> Mount | None:
    """The mount that holds ``path``."""
    return mountinfo.holding(mounts(tree), path)


def may_block(tree: Tree, path: str) -> bool:
    """Whether asking for ``path`` could wait for a server that is gone; the root's own has answered already."""
    mount = mount_of(tree, path)
    return mount is not None and mount.filesystem.startswith(_REMOTE) and mount.point != "/"


def _readonly_root(tree: Tree) -> Reading:
    root = mount_of(tree, "/")
    if root is None:
        message = "no mount at /"
        raise ValueError(message)
    return Reading(root.read_only, MOUNTINFO)


def _bind_count(tree: Tree) -> Reading:
    binds = [m for m in mounts(tree) if m.top != "/" and m.filesystem not in _ROOTED_ELSEWHERE]
    return Reading(len(binds), f"{MOUNTINFO}: mounts of a folder inside a file system")


READERS: Final = group({"mounts.readonly_root": _readonly_root, "mounts.bind_count": _bind_count})
