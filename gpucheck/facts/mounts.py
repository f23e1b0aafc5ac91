"""Mounts as ``/proc/self/mountinfo`` lists them (proc(5)), and the facts about them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gpucheck.facts.reading import Reading, group

if TYPE_CHECKING:
    from gpucheck.facts.tree import Tree

MOUNTINFO: Final = "/proc/self/mountinfo"
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


@dataclass(frozen=True, slots=True)
class Mount:
    """One mount.

    ``point`` is where; ``top`` the folder of its file system that shows there (not ``/``: a bind); ``device`` what is
    mounted, in the file system's own words (``/dev/sda1``, ``overlay``, ``server:/export``).
    """

    point: str
    top: str
    filesystem: str
    device: str
    options: tuple[str, ...]
    super_options: tuple[str, ...]

    @property
    def remote(self) -> bool:
        """Whether a dead server could block whoever asks this file system something."""
        return self.filesystem.startswith(_REMOTE)


def mounts(tree: Tree) -> list[Mount]:
    """All mounts, oldest first: of two at one point the later one is seen. Raises OSError, ValueError."""
    return tree.once(_mounts)


def _mounts(tree: Tree) -> list[Mount]:
    return [_mount(line) for line in tree.text(MOUNTINFO).splitlines()]


def _mount(line: str) -> Mount:
    first, separator, second = line.partition(" - ")
    fields, last = first.split(" "), second.split(" ")
    if not separator or len(fields) < 6 or len(last) < 3:  # noqa: PLR2004 - the format of proc(5)
        message = f"a line of {MOUNTINFO} has no six fields before ' - '"
        raise ValueError(message)
    options, super_options = tuple(fields[5].split(",")), tuple(last[2].split(","))
    return Mount(_unescape(fields[4]), _unescape(fields[3]), last[0], _unescape(last[1]), options, super_options)


def _unescape(text: str) -> str:
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, character)
    return text


def mount_of(tree: Tree, path: str) -> Mount | None:
    """The mount that holds ``path``: the deepest, and of two at one point the later one."""
    holding = [mount for mount in mounts(tree) if path == mount.point or path.startswith(mount.point.rstrip("/") + "/")]
    return max(reversed(holding), key=lambda mount: len(mount.point), default=None)


def may_block(tree: Tree, path: str) -> bool:
    """Whether asking for ``path`` could wait for a server that is gone; the root's own has answered already."""
    mount = mount_of(tree, path)
    return mount is not None and mount.remote and mount.point != "/"


def _readonly_root(tree: Tree) -> Reading:
    root = mount_of(tree, "/")
    if root is None:
        message = "no mount at /"
        raise ValueError(message)
    return Reading("ro" in root.options or "ro" in root.super_options, MOUNTINFO)


def _bind_count(tree: Tree) -> Reading:
    binds = [m for m in mounts(tree) if m.top != "/" and m.filesystem not in _ROOTED_ELSEWHERE]
    return Reading(len(binds), f"{MOUNTINFO}: mounts of a folder inside a file system")


READERS: Final = group({"mounts.readonly_root": _readonly_root, "mounts.bind_count": _bind_count})
