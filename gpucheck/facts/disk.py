"""Room on the root and on the temporary folder, in bytes and in inodes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from gpucheck.facts.fact import Unknown
from gpucheck.facts.mounts import may_block
from gpucheck.facts.reading import Reading, group

if TYPE_CHECKING:
    from gpucheck.facts.tree import Tree


def _space(tree: Tree, path: str) -> os.statvfs_result:
    if may_block(tree, path):
        raise Unknown(path, "on a network file system, which was not asked: a dead server would block")
    return os.statvfs(tree.path(path))


def _temporary(tree: Tree) -> str:
    return tree.environ.get("TMPDIR") or "/tmp"


def _free_bytes(space: os.statvfs_result) -> int:
    return space.f_bavail * space.f_frsize


def _free_inodes(space: os.statvfs_result) -> int | None:
    # Btrfs and others make inodes as they need them and say zero of zero.
    return space.f_favail if space.f_files else None


def _root_free(tree: Tree) -> Reading:
    return Reading(_free_bytes(_space(tree, "/")), "statvfs /")


def _root_inodes(tree: Tree) -> Reading:
    return Reading(_free_inodes(_space(tree, "/")), "statvfs /")


def _tmp_free(tree: Tree) -> Reading:
    path = _temporary(tree)
    return Reading(_free_bytes(_space(tree, path)), f"statvfs {path}")


def _tmp_inodes(tree: Tree) -> Reading:
    path = _temporary(tree)
    return Reading(_free_inodes(_space(tree, path)), f"statvfs {path}")


READERS: Final = group(
    {
        "disk.root_free_bytes": _root_free,
        "disk.root_free_inodes": _root_inodes,
        "disk.tmp_free_bytes": _tmp_free,
        "disk.tmp_free_inodes": _tmp_inodes,
    }
)
