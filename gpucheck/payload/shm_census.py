"""What ``/dev/shm`` is, what lies in it, and which of that no living process holds any more.

Arguments: ``folder`` (default ``/dev/shm``), ``proc`` (default ``/proc``), ``look_only`` (do not try to create a file).
Answer: ``filesystem`` (None: there is no such folder), ``read_only``, ``refused`` (what creating a file said), sizes
and free inodes, ``files`` with the state of each, sums by state, ``unnamed_bytes`` (files without a name live only as
long as somebody holds them), ``holders``, ``outsiders``: whether processes that are not visible from here may hold
files, and ``sees_all``: that there are none, and that each visible one could be asked. States: ``held`` by a living
process, ``orphan``, ``unknown`` where the processes of its owner cannot be read. Standard library only.
"""

from __future__ import annotations

import errno
import os
import re
from typing import Any

import mountinfo

# The makers' own names; a pid in one is its maker's. What is called otherwise is some user's own file.
KINDS = (
    ("nccl", r"nccl-"),
    ("torch", r"torch_(\d+)_"),
    ("python", r"psm_|wnsm_|sem\.|pymp-"),
    ("joblib", r"joblib_|loky-"),
    ("openmp", r"__KMP_REGISTERED_LIB_(\d+)"),
    ("cuda", r"cuda\.shm\."),
    ("gpucheck", r"gpucheck-\w+-(\d+)-"),
)
# Fixed by the kernel (PROC_PID_INIT_INO): the namespace that sees every process of the machine.
FIRST_PID_NAMESPACE = "pid:[4026531836]"
# As whom a user namespace shows everybody whom it does not map, ourselves perhaps among them.
NOBODY = 65534
FILES_SHOWN = 40
HOLDERS_SHOWN = 5
BLOCK_BYTES = 512


def refusal(folder: str) -> str | None:
    """The symbol of the error that creating a file there gives, or None."""
    name = os.path.join(folder, "gpucheck-%s-%d-look" % (os.environ.get("GPUCHECK_RUN", "by-hand"), os.getpid()))
    try:
        os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        os.unlink(name)
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error.errno))
    return None


def files_below(folder: str) -> tuple[list[tuple[str, os.stat_result]], int]:
    """Every file below the folder with its status, and how many folders could not be read."""
    found, unread = [], 0
    queue = [folder]
    while queue:
        try:
            entries = list(os.scandir(queue.pop()))
        except OSError:
            unread += 1
            continue
        for entry in entries:
            try:
                if entry.is_dir(follow_symlinks=False):
                    queue.append(entry.path)
                else:
                    found.append((os.path.relpath(entry.path, folder), entry.stat(follow_symlinks=False)))
            except FileNotFoundError:
                continue
    return found, unread


def kind_of(name: str) -> tuple[str, str | None]:
    """What made a file of that name, and the pid of its maker where the name carries it."""
    for kind, pattern in KINDS:
        match = re.match(pattern, name)
        if match:
            return kind, match.group(1) if match.groups() else None
    return "other", None


def processes(proc: str) -> list[str]:
    """The folders of all visible processes but this one."""
    return ["%s/%s" % (proc, entry) for entry in os.listdir(proc) if entry.isdigit() and int(entry) != os.getpid()]


def opened(process: str, device: int) -> set[int]:
    """Inodes of that device that a process holds open."""
    inodes = set()
    folder = process + "/fd"
    for number in os.listdir(folder):
        try:
            # Only what is on shared memory is asked for its status: that of a dead network mount would not return.
            if os.readlink(os.path.join(folder, number)).startswith("/dev/shm/"):
                stat = os.stat(os.path.join(folder, number))
                if stat.st_dev == device:
                    inodes.add(stat.st_ino)
        except OSError:
            continue
    return inodes


def mapped(process: str, device: int) -> set[int]:
    """Inodes of that device that a process has mapped."""
    wanted = b" %02x:%02x " % (os.major(device), os.minor(device))
    with open(process + "/maps", "rb") as stream:
        text = stream.read()
    if wanted not in text:
        return set()
    return {int(line.split()[4]) for line in text.splitlines() if wanted in line}


def name_of(process: str) -> str:
    """The name of a process, or "?", and its pid."""
    try:
        with open(process + "/comm", encoding="utf-8", errors="replace") as stream:
            name = stream.read().strip()
    except OSError:
        name = "?"
    return "%s (pid %s)" % (name, os.path.basename(process))


def held_inodes(proc: str, device: int) -> tuple[dict[int, str], int]:
    """By inode a process that holds it, and how many processes could not be asked."""
    held: dict[int, str] = {}
    unread = 0
    for process in processes(proc):
        try:
            for inode in opened(process, device) | mapped(process, device):
                held.setdefault(inode, process)
        except PermissionError:
            unread += 1
        except OSError:
            continue  # it ended while we looked
    return held, unread


def made_before(process: str, when_s: float) -> bool:
    """Whether that process lives and is older than that moment: else its pid was given to another one."""
    try:
        return os.stat(process).st_ctime <= when_s + 1.0
    except OSError:
        return False


def state_of(maker: str | None, stat: os.stat_result, held: dict[int, str], unread: int) -> str:
    """``held``, ``orphan`` or ``unknown``."""
    if stat.st_ino in held or (maker is not None and made_before(maker, stat.st_ctime)):
        return "held"
    ours = os.geteuid() in (0, stat.st_uid) and os.geteuid() != NOBODY
    return "orphan" if ours or not unread else "unknown"


def outsiders(proc: str) -> bool:
    """Whether there may be processes that are not visible here: with a shared folder one of them may hold a file."""
    try:
        return os.readlink(proc + "/self/ns/pid") != FIRST_PID_NAMESPACE
    except OSError:
        return True


def census(folder: str, proc: str) -> dict[str, Any]:
    """Files by state, with sums."""
    device = os.stat(folder).st_dev
    found, unread_folders = files_below(folder)
    # Thousands of processes are not asked about an empty folder.
    held, unread = held_inodes(proc, device) if found else ({}, 0)
    files: list[dict[str, Any]] = []
    for name, stat in found:
        kind, pid = kind_of(name)
        state = state_of(pid and "%s/%s" % (proc, pid), stat, held, unread)
        files.append({"name": name, "bytes": stat.st_blocks * BLOCK_BYTES, "kind": kind, "state": state})
    # The list is cut: first what has a known maker, the largest first.
    files.sort(key=lambda file: (file["kind"] == "other", -file["bytes"]))
    sums = {state: sum(f["bytes"] for f in files if f["state"] == state) for state in ("held", "orphan", "unknown")}
    leftovers = [file for file in files if file["state"] == "orphan" and file["kind"] != "other"]
    outside = outsiders(proc)
    return {
        "files": files[:FILES_SHOWN],
        "file_count": len(files),
        "bytes_by_state": sums,
        "leftovers": leftovers[:FILES_SHOWN],
        "leftover_count": len(leftovers),
        "leftover_bytes": sum(file["bytes"] for file in leftovers),
        "named_bytes": None if unread_folders else sum(sums.values()),
        "holders": [name_of(process) for process in sorted(set(held.values()))[:HOLDERS_SHOWN]],
        "outsiders": outside,
        "sees_all": not unread and not outside,
    }


def main(args: dict[str, Any]) -> dict[str, Any]:
    """See the module's text."""
    folder = os.path.realpath(args.get("folder", "/dev/shm"))
    if not os.path.isdir(folder):
        return {"filesystem": None}
    mount = mountinfo.holding(mountinfo.here(), folder)
    stat = os.statvfs(folder)
    used_bytes = (stat.f_blocks - stat.f_bfree) * stat.f_frsize
    seen = census(folder, args.get("proc", "/proc"))
    named_bytes = seen.pop("named_bytes")
    return {
        "filesystem": mount.filesystem if mount else "none",
        "read_only": bool(mount and mount.read_only),
        "refused": None if args.get("look_only") else refusal(folder),
        "total_bytes": stat.f_blocks * stat.f_frsize,
        "free_bytes": stat.f_bavail * stat.f_frsize,
        "free_inodes": stat.f_favail,
        "unnamed_bytes": None if named_bytes is None else max(0, used_bytes - named_bytes),
        **seen,
    }
