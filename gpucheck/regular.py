"""Files that somebody else may have laid where we look: read without waiting for anybody, and no more than is meant."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def read(path: Path, most_bytes: int, *, start: int = 0, ours: bool = False) -> bytes:
    """At most ``most_bytes`` of a regular file, from ``start`` on.

    Raises OSError for whatever else is there: a link, a pipe that nobody writes to, a device, a folder; with ``ours``
    also for a file of another user.
    """
    # Without O_NONBLOCK opening a pipe waits for its other end.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as stream:
        told = os.fstat(descriptor)
        if not stat.S_ISREG(told.st_mode):
            raise OSError(0, "not a regular file", str(path))
        if ours and told.st_uid != os.geteuid():
            raise PermissionError(0, "a file of another user", str(path))
        stream.seek(start)
        return stream.read(most_bytes)
