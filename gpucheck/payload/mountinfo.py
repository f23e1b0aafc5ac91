"""Mounts as ``/proc/self/mountinfo`` lists them (proc(5)).

For both sides, as ``bounded``. Standard library only; runs on Python 3.8 and later.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

PATH = "/proc/self/mountinfo"
ESCAPED = re.compile(r"\\([0-7]{3})")


class Mount(NamedTuple):
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
    def read_only(self) -> bool:
        """Whether it is mounted read-only, or its file system is."""
        return "ro" in self.options or "ro" in self.super_options


def here() -> list[Mount]:
    """The mounts of this process, oldest first. Raises OSError."""
    with open(PATH, "rb") as stream:
        return parse(os.fsdecode(stream.read()))


def parse(text: str) -> list[Mount]:
    """All mounts of such a text, in its order: of two at one point the later one is seen. Raises ValueError."""
    return [mount(line) for line in text.split("\n") if line]


def mount(line: str) -> Mount:
    """The mount of one line."""
    first, separator, second = line.partition(" - ")
    fields, last = first.split(" "), second.split(" ")
    if not separator or len(fields) < 6 or len(last) < 3:  # noqa: PLR2004 - the format of proc(5)
        raise ValueError("a line of %s has no six fields before ' - '" % PATH)
    options, super_options = tuple(fields[5].split(",")), tuple(last[2].split(","))
    return Mount(unescape(fields[4]), unescape(fields[3]), last[0], unescape(last[1]), options, super_options)


def unescape(text: str) -> str:
    """The kernel writes spaces, tabs, newlines, backslashes and ``#`` by their octal codes, and nothing else."""
    return ESCAPED.sub(lambda found: chr(int(found.group(1), 8)), text)


def below(path: str, folder: str) -> bool:
    """Whether a path is that folder or lies in it."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def holding(mounts: list[Mount], path: str) -> Mount | None:
    """The mount that holds ``path``: the deepest, and of two at one point the later one."""
    found = [mount for mount in mounts if below(path, mount.point)]
    return max(reversed(found), key=lambda mount: len(mount.point), default=None)
