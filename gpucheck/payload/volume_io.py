"""Write to mounted folders so that it lasts, read it back elsewhere, and try what must be refused.

Arguments: ``tasks``, each with a ``do`` and a ``folder``; the answer has one entry a task, and an error of one is data,
not the end of the others: ``refused`` (the error's symbol), ``error`` (its words) and the ``step`` that failed.

    write   ``name``, ``size_bytes``, ``seed``: write, fsync, rename into place, fsync the folder; gives ``sha256``
    read    ``name``: gives ``found``, ``sha256`` and the owner; or ``found`` False and what is ``listed`` instead
    remove  ``name``
    refuse  try to create a file at the top and in every mount below it: ``mounts``, each with what the mount table says
            (``read_only``) and what happened (``wrote``, else ``refused``); what could be created is removed again

Every answer carries ``place``: file system, owner, free bytes and free inodes. Standard library only.
"""

from __future__ import annotations

import errno
import hashlib
import os
from typing import Any

import mountinfo

CHUNK_BYTES = 1 << 20
LISTED = 20


class Refused(Exception):
    """A step that the system refused."""

    def __init__(self, step: str, error: OSError) -> None:
        number = error.errno or 0
        super().__init__(step)
        self.answer = {
            "step": step,
            "refused": errno.errorcode.get(number, str(number)),
            "error": os.strerror(number),
        }


class Step:
    """Names what is being done, so that its error can say so."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None:
        """Nothing to do."""

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        """Turn the system's error into a refusal of this step."""
        if isinstance(error, OSError):
            raise Refused(self.name, error) from error


def place(folder: str) -> dict[str, Any]:
    """Where a folder lies, whose it is, and what room is left there for this user."""
    path = os.path.realpath(folder)
    mount = mountinfo.holding(mountinfo.here(), path)
    room, stat = os.statvfs(path), os.stat(path)
    return {
        "filesystem": mount.filesystem,
        "mounted_here": mount.point == path,
        "read_only": mount.read_only,
        "uid": stat.st_uid,
        "gid": stat.st_gid,
        "mode": "%04o" % (stat.st_mode & 0o7777),
        "as_uid": os.geteuid(),
        "free_bytes": room.f_bavail * room.f_frsize,
        "total_bytes": room.f_blocks * room.f_frsize,
        "free_inodes": room.f_favail,
    }


def content(seed: str, size_bytes: int) -> bytes:
    """That many bytes, which depend on the seed at every place."""
    return hashlib.shake_256(seed.encode()).digest(size_bytes)


def sync_folder(folder: str) -> None:
    """Make a new name in a folder last."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_all(descriptor: int, data: bytes) -> None:
    """Write everything: a nearly full disk takes a part and says so only at the next call."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view[:CHUNK_BYTES]) :]


def write(task: dict[str, Any]) -> dict[str, Any]:
    """As a checkpoint should be written; a part that could not be finished is removed."""
    path = os.path.join(task["folder"], task["name"])
    part = path + ".part"
    data = content(task["seed"], task["size_bytes"])
    with Step("create"):
        descriptor = os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    try:
        with Step("write"):
            write_all(descriptor, data)
        with Step("fsync"):
            os.fsync(descriptor)
        with Step("rename"):
            os.rename(part, path)
    except Refused:
        os.unlink(part)
        raise
    finally:
        os.close(descriptor)
    with Step("fsync of the folder"):
        sync_folder(task["folder"])
    return {"sha256": hashlib.sha256(data).hexdigest()}


def read(task: dict[str, Any]) -> dict[str, Any]:
    """What is there now, by checksum and owner."""
    path = os.path.join(task["folder"], task["name"])
    if not os.path.lexists(path):
        with Step("list"):
            return {"found": False, "listed": sorted(os.listdir(task["folder"]))[:LISTED]}
    digest = hashlib.sha256()
    with Step("read"), open(path, "rb") as stream:
        for chunk in iter(lambda: stream.read(CHUNK_BYTES), b""):
            digest.update(chunk)
        stat = os.fstat(stream.fileno())
    return {"found": True, "sha256": digest.hexdigest(), "uid": stat.st_uid, "gid": stat.st_gid}


def remove(task: dict[str, Any]) -> dict[str, Any]:
    """Remove a file that ``write`` made, from the place where it may be removed."""
    with Step("remove"):
        os.unlink(os.path.join(task["folder"], task["name"]))
    return {}


def try_to_write(folder: str, name: str) -> dict[str, Any]:
    """Create a file and take it away again: whether that was possible."""
    path = os.path.join(folder, name)
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except OSError as error:
        return {"wrote": False, "refused": errno.errorcode.get(error.errno or 0, str(error.errno))}
    os.unlink(path)
    return {"wrote": True, "refused": None}


def refuse(task: dict[str, Any]) -> dict[str, Any]:
    """Try every mount at and below the folder; where several lie on one point, the last is what a path reaches."""
    folder = os.path.realpath(task["folder"])
    mounts = {mount.point: mount for mount in mountinfo.here() if mountinfo.below(mount.point, folder)}
    tried = []
    for point in sorted({folder, *mounts}):
        if os.path.isdir(point):
            mount, below = mounts.get(point), os.path.relpath(point, folder)
            shown = {"filesystem": mount and mount.filesystem, "read_only": bool(mount and mount.read_only)}
            tried.append({"point": point, **shown, "below": below, **try_to_write(point, task["name"])})
    return {"mounts": tried}


def perform(task: dict[str, Any]) -> dict[str, Any]:
    """One task, with where it was done."""
    work = {"write": write, "read": read, "remove": remove, "refuse": refuse}[task["do"]]
    try:
        with Step("look"):
            where = place(task["folder"])
    except Refused as refused:
        return {"place": None, **refused.answer}
    try:
        return {"place": where, **work(task)}
    except Refused as refused:
        return {"place": where, **refused.answer}


def main(args: dict[str, Any]) -> list[dict[str, Any]]:
    """See the module's text."""
    return [perform(task) for task in args["tasks"]]
