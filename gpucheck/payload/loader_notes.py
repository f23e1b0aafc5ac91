"""What payloads that read a DataLoader note about it: checksums, faults, workers' last words, forks and open files.

Standard library and torch. Runs on Python 3.8 and later.
"""

from __future__ import annotations

import ctypes
import hashlib
import multiprocessing
import os
import pickle
import re
import sys
import traceback
from contextlib import contextmanager
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any, Iterator

import torch

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

WORDS_BYTES = 4000
CAUSES = 6
_NOTED = re.compile(r"^gpucheck: worker (\d+) raised at sample (\d+)$", re.MULTILINE)
_WORKER = re.compile(r"in DataLoader worker process (\d+)")


def digest(value: Any) -> str:
    """A checksum of a sample: tensors by their bytes, containers by their parts, anything else by its pickle."""
    sums = hashlib.blake2b(digest_size=16)
    for part in _parts(value):
        sums.update(part)
    return sums.hexdigest()


def _parts(value: Any) -> Iterator[bytes]:
    if isinstance(value, torch.Tensor):
        whole = value.detach().cpu().contiguous()
        yield ("%s%s" % (whole.dtype, tuple(whole.shape))).encode()
        yield ctypes.string_at(whole.data_ptr(), whole.numel() * whole.element_size())
    elif isinstance(value, dict):
        yield from _parts(list(value.items()))
    elif isinstance(value, (list, tuple)):
        yield b"%d" % len(value)
        for item in value:
            yield from _parts(item)
    else:
        yield pickle.dumps(value, protocol=4)


@contextmanager
def workers_stderr(stream: Any) -> Iterator[None]:
    """Processes started inside inherit ``stream`` as their standard error; the parent gets its own back."""
    sys.stderr.flush()
    saved = os.dup(2)
    os.dup2(stream.fileno(), 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(saved, 2)
        os.close(saved)


def last_words(stream: Any) -> str:
    """The end of what was written to ``stream``."""
    size = os.fstat(stream.fileno()).st_size
    written = os.pread(stream.fileno(), WORDS_BYTES, max(0, size - WORDS_BYTES))
    return written.replace(b"\0", b"").decode(errors="replace")


def told_by(error: BaseException | None) -> str:
    """An exception and what led to it, a line each."""
    lines: list[str] = []
    while error is not None and len(lines) < CAUSES:
        lines.append("%s: %s" % (type(error).__name__, error))
        error = error.__cause__ or error.__context__
    # Who speaks stands at the beginning, the last line of a worker's traceback at the end.
    told = "\n".join(lines)
    return told if len(told) <= WORDS_BYTES else told[: WORDS_BYTES // 4] + "\n" + told[-WORDS_BYTES * 3 // 4 :]


def exit_codes(processes: list[Any], told: str) -> list[int]:
    """How workers ended (negative: by that signal). Where torch names pids only those count: it ends the others."""
    named = {int(pid) for pids in re.findall(r"\(pid(?:\(s\))? ([\d, ]+)\)", told) for pid in pids.split(",")}
    codes = {process.pid: process.exitcode for process in processes if process.exitcode}
    return [code for pid, code in codes.items() if pid in named or not named & set(codes)]


def note_sample(worker: int, index: int) -> None:
    """Write on standard error at which sample a worker's dataset raised: what torch carries of it names none."""
    os.write(2, b"\ngpucheck: worker %d raised at sample %d\n" % (worker, index))


def fault(stage: str, error: BaseException, processes: list[Any], stderr: str) -> dict[str, Any]:
    """What went wrong, as data; ``sample`` is the index at which it did, None where none is told."""
    told = told_by(error)
    noted = dict(_NOTED.findall(stderr))
    by = _WORKER.search(told)
    sample = noted.get(by.group(1)) if by else None
    return {
        "stage": stage,
        "told": told,
        "sample": None if sample is None else int(sample),
        "exit_codes": exit_codes(processes, told),
        "worker_stderr": _NOTED.sub("", stderr),
    }


def pickling_fault(dataset: Any) -> dict[str, Any] | None:
    """The fault of a dataset that cannot be sent to a worker, with the attribute that is to blame; None: it can."""
    try:
        ForkingPickler.dumps(dataset)
    except Exception as error:  # __reduce__ and __getstate__ may raise anything
        return {**fault("pickling", error, [], ""), "where": culprit(dataset)}
    return None


def culprit(value: Any, name: str = "dataset", depth: int = 4) -> str:
    """The path of the innermost attribute that does not pickle, such as ``dataset.transform``."""
    for attribute, part in getattr(value, "__dict__", {}).items() if depth else ():
        try:
            ForkingPickler.dumps(part)
        except Exception:  # as above
            return culprit(part, "%s.%s" % (name, attribute), depth - 1)
    return name


class Forks:
    """Where a module forked this process while it was being imported: a spawned worker would do so again."""

    module = ""
    where = ""

    @classmethod
    @contextmanager
    def watched(cls, module: str) -> Iterator[None]:
        """Notes the first fork inside, in the module of that name."""
        if not cls.module:
            sys.addaudithook(cls.heard)
        cls.module = module
        try:
            yield
        finally:
            cls.module = "-"

    @classmethod
    def heard(cls, event: str, _: Any) -> None:
        """An event of the interpreter's. Hooks cannot be taken back, so this one is told when to listen."""
        if event != "os.fork" or cls.module == "-" or cls.where:
            return
        for frame, line in traceback.walk_stack(None):
            if frame.f_globals.get("__name__") == cls.module:
                cls.where = "%s:%d" % (os.path.basename(frame.f_code.co_filename), line)


def open_files() -> set[str]:
    """Paths of the files on disk that this process has open."""
    found = set()
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            found.add(os.readlink("/proc/self/fd/" + descriptor))
        except OSError:
            continue
    return {path for path in found if os.path.isfile(path)}


def end_workers(batches: Any) -> None:
    """End an iterator's workers now.

    Left to the garbage collector, its queues may be closed first; then each worker is waited for in vain for 5 s.
    """
    shut_down = getattr(batches, "_shutdown_workers", None)
    if shut_down is not None:
        shut_down()


def witnessed(loader: DataLoader[Any], stream: Any, processes: list[Any]) -> Iterator[Any]:
    """What a loader gives; its workers write to ``stream``, are added to ``processes``, and are ended in any case."""
    with workers_stderr(stream):
        given = iter(loader)
    processes += multiprocessing.active_children()
    try:
        yield from given
    finally:
        end_workers(given)
