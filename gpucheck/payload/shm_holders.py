"""Which files of a folder some process has mapped or open.

Reading the mappings of a process that hangs in the kernel hangs with it: that is why this runs in a child.
``main({"proc": "/proc", "folder": "/dev/shm"})`` returns {held: [names], unseen_uids: [owners of processes that may not
be looked into]}.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


def mapped(proc: str, pid: str) -> Iterator[str]:
    """The path of every mapping."""
    with open(f"{proc}/{pid}/maps", errors="replace") as stream:
        for line in stream:
            yield line[line.find("/") :].rstrip("\n")


def opened(proc: str, pid: str) -> Iterator[str]:
    """What every open file descriptor leads to."""
    folder = f"{proc}/{pid}/fd"
    for number in os.listdir(folder):
        yield os.readlink(f"{folder}/{number}")


def main(args: dict[str, Any]) -> dict[str, list[Any]]:
    """See the module."""
    proc, inside = args["proc"], args["folder"] + "/"
    held: set[str] = set()
    unseen_uids: set[int] = set()
    for pid in filter(str.isdecimal, os.listdir(proc)):
        try:
            paths = [*mapped(proc, pid), *opened(proc, pid)]
        except PermissionError:
            unseen_uids.add(os.stat(f"{proc}/{pid}").st_uid)
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended while we looked
        else:
            held.update(path[len(inside) :].split(" (deleted)")[0] for path in paths if path.startswith(inside))
    return {"held": sorted(held), "unseen_uids": sorted(unseen_uids)}
