"""Datasets that break a DataLoader, each in one way, for real. Found by path by the payload under test."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import tempfile
import threading
import time
from typing import TYPE_CHECKING

import torch
from torch.utils.data import get_worker_info

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Numbers:
    """Eight small samples; nothing wrong with them."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((4,), index)


class AtFive(Numbers):
    """Something happens in the worker that reads sample 5."""

    def __init__(self, happen: Callable[[], None]) -> None:
        self.happen = happen

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 5 and get_worker_info() is not None:
            self.happen()
        return super().__getitem__(index)


def _sigkill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _segfault() -> None:
    ctypes.string_at(0)


def _exit() -> None:
    os._exit(3)


def _hang() -> None:
    time.sleep(600)


def _raise() -> None:
    raise KeyError("no such sample")


class Carrying(Numbers):
    """Carries something that may not pickle."""

    def __init__(self, load: object) -> None:
        self.nothing = None
        self.load = load


class Holder:
    """Holds something one level down."""

    def __init__(self, held: object) -> None:
        self.held = held


class InWorkers(Numbers):
    """Answers otherwise in a worker than in the parent."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return super().__getitem__(index) + (get_worker_info() is not None)


class Random(Numbers):
    """Answers otherwise each time."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.rand(4)


class Empty(Numbers):
    """Has no samples."""

    def __len__(self) -> int:
        return 0


class Large(Numbers):
    """Samples of 4 MB."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((1 << 20,), float(index))


class Nested(Numbers):
    """Samples that do not stack: dictionaries of lists of different lengths."""

    def __getitem__(self, index: int) -> dict[str, object]:
        return {"boxes": [torch.ones(2)] * index, "name": str(index), "size": (index, index)}


if multiprocessing.current_process().name == "MainProcess":

    class Nowhere(Numbers):
        """A class that a fresh interpreter does not have."""

    def nowhere() -> Numbers:
        """A dataset of that class."""
        return Nowhere()


def killed() -> Numbers:
    """SIGKILL, as the OOM killer does."""
    return AtFive(_sigkill)


def segfaults() -> Numbers:
    """SIGSEGV, as native code does."""
    return AtFive(_segfault)


def exits() -> Numbers:
    """A plain exit."""
    return AtFive(_exit)


def hangs() -> Numbers:
    """No answer."""
    return AtFive(_hang)


def raises() -> Numbers:
    """An exception."""
    return AtFive(_raise)


class Torn(Numbers):
    """One sample that cannot be read, wherever that is tried."""

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 5:
            _raise()
        return super().__getitem__(index)


def with_lambda() -> Numbers:
    """A transform that is a lambda."""
    return Carrying(lambda x: x)


def with_file() -> Numbers:
    """An open file, one level down."""
    return Carrying(Holder(open(os.devnull)))


def with_lock() -> Numbers:
    """A lock."""
    return Carrying(threading.Lock())


def local_class() -> Numbers:
    """A class that no module has."""

    class Local(Numbers):
        pass

    return Local()


class Shared(Numbers):
    """One file for all: where a forked worker reads depends on where its siblings have read."""

    def __init__(self) -> None:
        self.file = tempfile.NamedTemporaryFile()  # noqa: SIM115 - it must stay open
        self.file.write(b"".join(bytes([n]) * 4 for n in range(8)))
        self.file.flush()

    def __getitem__(self, index: int) -> torch.Tensor:
        descriptor = self.file.fileno()
        os.lseek(descriptor, 4 * index, os.SEEK_SET)
        time.sleep(0.02)
        return torch.tensor(list(os.read(descriptor, 4)))


class Huge(Numbers):
    """Wants more memory than there is."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.zeros(1 << 42, dtype=torch.uint8)


class Many(Numbers):
    """A million samples; nothing wrong with them."""

    def __len__(self) -> int:
        return 1_000_000


class Stream(torch.utils.data.IterableDataset[int]):
    """Samples that have no index."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(8))


def leaves() -> Numbers:
    """Ends the interpreter where a dataset is wanted."""
    raise SystemExit("no data here")


def crashes() -> Numbers:
    """Crashes where a dataset is wanted."""
    _segfault()
    return Numbers()


def waits() -> Numbers:
    """Never gives a dataset."""
    _hang()
    return Numbers()
