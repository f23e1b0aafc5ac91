"""Datasets that each go wrong in one way, for real: what a rehearsal puts in place of a healthy one."""

from __future__ import annotations

import mmap
import os
import signal
import time
from typing import Any, Callable

import torch
from torch.utils.data import get_worker_info

LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
#: Memory is taken up to this factor of the limit, and only below a limit of this size.
FACTOR = 2
LARGEST_LIMIT_BYTES = 2 << 30
STEP_BYTES = 16 << 20
HANG_S = 3600
AT = 5


class Samples:
    """Twenty-four small samples; nothing wrong with them."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((4,), float(index))


class Carrying(Samples):
    """Carries a transform."""

    def __init__(self, transform: Callable[[Any], Any]) -> None:
        self.transform = transform


class AtFive(Samples):
    """Something happens in the worker that reads sample 5."""

    def __init__(self, happen: Callable[[], Any]) -> None:
        self.happen = happen

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == AT and get_worker_info() is not None:
            self.happen()
        return super().__getitem__(index)


class Altered(Samples):
    """Answers otherwise in a worker than in the parent."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return super().__getitem__(index) + (get_worker_info() is not None)


def limit_bytes() -> int:
    """The memory limit of this cgroup. Raises RuntimeError where there is none to be hit without harm to others."""
    for path in LIMITS:
        if os.path.exists(path):
            with open(path) as stream:
                text = stream.read().strip()
            if text.isdecimal() and int(text) <= LARGEST_LIMIT_BYTES:
                return int(text)
    raise RuntimeError("no memory limit that could be hit without harm to other processes")


def take_all_memory() -> None:
    """Touch memory until the kernel ends this process."""
    most, held = FACTOR * limit_bytes(), []
    while len(held) * STEP_BYTES < most:
        area = mmap.mmap(-1, STEP_BYTES)
        for page in range(0, STEP_BYTES, mmap.PAGESIZE):
            area[page] = 1
        held.append(area)


def hang() -> None:
    """Never come back."""
    time.sleep(HANG_S)


def crash() -> None:
    """Die as native code dies."""
    os.kill(os.getpid(), signal.SIGSEGV)


def unpicklable() -> Samples:
    """Carries a lambda."""
    return Carrying(lambda x: x)


def hangs() -> Samples:
    """A worker that waits for ever, as on a dead mount."""
    return AtFive(hang)


def crashes() -> Samples:
    """A worker that dies in native code."""
    return AtFive(crash)


def insatiable() -> Samples:
    """A worker that takes all memory of its container."""
    return AtFive(take_all_memory)


def altered() -> Samples:
    """Samples that arrive with other values than the parent reads."""
    return Altered()
