"""Ranks without a GPU that take from /dev/shm what NCCL takes, and fail as they are told to by PLAYED.

PLAYED is "<what>": good, ftruncate (NCCL 2.12 to 2.18: the file is extended without asking for space), hang (rank 1
does not come to the third collective), killed (rank 1 is killed in the second), wrong (one number is off). SEGMENTS is
how many segments a rank makes, PLAYED_LOG a recorded log that rank 0 writes where NCCL would, PLAYED_VERSION NCCL's.
"""

import ctypes
import mmap
import os
import signal
import time
from collections.abc import Callable
from typing import Any

SEGMENT_BYTES = 9637892
WAIT_S = 0.005


def take_part(rank: int, world: int, job: dict[str, Any], tell: Callable[..., None]) -> dict[str, Any]:
    played = os.environ.get("PLAYED", "good")
    tell("initialise")
    write_log(rank)
    counters = shared_counters(job["store"])
    segments = [make_segment(rank, number, played) for number in range(int(os.environ.get("SEGMENTS", "4")))]
    wrong = checked = 0
    try:
        for number, elements in enumerate(job["elements"], 1):
            tell("collective", number)
            if played == "killed" and rank == 1 and number == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            if played == "hang" and rank == 1 and number == 3:
                never_comes()
            counters[rank] = number
            wait_for_peers(counters, world, number)
            checked += elements
            wrong += int(played == "wrong" and rank == 1 and number == 3)
    finally:
        for path, _ in segments:
            os.unlink(path)
    version = [int(part) for part in os.environ.get("PLAYED_VERSION", "2.30.7").split(".")]
    ours = {name: value for name, value in os.environ.items() if name.startswith("NCCL_")}
    return {"wrong": wrong, "checked": checked, "version": version, "env": ours, "place": [rank, world, job["device"]]}


def write_log(rank: int) -> None:
    path = os.environ.get("PLAYED_LOG")
    if path and rank == 0:
        with open(path) as recorded, open(os.environ["NCCL_DEBUG_FILE"], "w") as log:
            log.write(recorded.read())


def make_segment(rank: int, number: int, played: str) -> tuple[str, mmap.mmap]:
    path = f"/dev/shm/nccl-played-{os.getpid()}-{rank}-{number}"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    if played == "ftruncate":
        os.ftruncate(descriptor, SEGMENT_BYTES)
        segment = mmap.mmap(descriptor, SEGMENT_BYTES)
        # Nobody looks: what stops it is the page that there is no memory for.
        ctypes.memset(ctypes.addressof(ctypes.c_char.from_buffer(segment)), rank + 1, SEGMENT_BYTES)
        return path, segment
    try:
        os.posix_fallocate(descriptor, 0, SEGMENT_BYTES)
    except OSError:
        os.unlink(path)
        raise
    return path, mmap.mmap(descriptor, SEGMENT_BYTES)


def shared_counters(path: str) -> mmap.mmap:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    os.ftruncate(descriptor, mmap.PAGESIZE)
    return mmap.mmap(descriptor, mmap.PAGESIZE)


def wait_for_peers(counters: mmap.mmap, world: int, number: int) -> None:
    while any(counters[rank] < number for rank in range(world)):
        time.sleep(WAIT_S)


def never_comes() -> None:
    while True:
        time.sleep(60)
