"""Epochs through a torch ``DataLoader`` by given start methods, every sample compared with what the parent reads.

Arguments (all but the first optional): ``start_methods`` [fork, spawn, forkserver], ``dataset`` ("MODULE:FACTORY"),
``path`` (folders to find it in), ``cwd`` (where it runs), ``samples`` (read at most so many, evenly spread; 0: all),
``stack`` (collate samples into one tensor), ``workers``, ``batch``, ``epochs``, ``persistent``, ``timeout_s`` (of one
batch), ``hold`` (keep every batch alive, as a job does that collects its predictions). Answer: ``{"torch",
"cuda_build", "affinity", "sharing", "legs": {method: leg}}``; a leg carries ``descriptors`` and either ``samples`` (how
many the dataset has), ``opened`` (files that it opened before workers started), ``forked_at`` (where its module forked
while it was imported, or ""), ``epochs`` and ``steady``, or a ``fault``: in which ``stage`` (loading, pickling,
running), in whose words (``told``), how workers ended (``exit_codes``), and ``worker_stderr``, where the true reason
stands when torch only says that a worker went away.

Standard library and torch; numpy is not needed. Runs on Python 3.8 and later.
"""

from __future__ import annotations

import collections
import ctypes
import gc
import hashlib
import importlib
import multiprocessing
import os
import pickle
import random
import re
import resource
import sys
import tempfile
import time
import traceback
import warnings
from contextlib import contextmanager
from multiprocessing.reduction import ForkingPickler
from typing import Any, Iterator

import torch
from torch.utils.data import DataLoader, get_worker_info

DEFAULTS = {
    "dataset": "loader_datasets:images",
    "path": [],
    "cwd": None,
    "samples": 0,
    "stack": True,
    "workers": 2,
    "batch": 4,
    "epochs": 2,
    "persistent": False,
    "timeout_s": 20,
    "hold": False,
}
WORDS_BYTES = 4000
CAUSES = 6


class Witnessed:
    """A dataset whose samples also say which index they are and in which worker they were read."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> dict[str, Any]:
        info = get_worker_info()
        return {
            "index": index,
            "value": self.dataset[index],
            "worker": -1 if info is None else info.id,
            "pid": os.getpid(),
            "process": type(multiprocessing.current_process()).__name__,
        }


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
    return "\n".join(lines)[-WORDS_BYTES:]


def exit_codes(processes: list[Any], told: str) -> list[int]:
    """How workers ended (negative: by that signal). Where torch names pids only those count: it ends the others."""
    named = {int(pid) for pids in re.findall(r"\(pid(?:\(s\))? ([\d, ]+)\)", told) for pid in pids.split(",")}
    codes = {process.pid: process.exitcode for process in processes if process.exitcode}
    return [code for pid, code in codes.items() if pid in named or not named & set(codes)]


def fault(stage: str, error: BaseException, processes: list[Any], stderr: str) -> dict[str, Any]:
    """What went wrong, as data."""
    told = told_by(error)
    return {"stage": stage, "told": told, "exit_codes": exit_codes(processes, told), "worker_stderr": stderr}


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


def load(args: dict[str, Any]) -> Any:
    """The dataset that the arguments name."""
    module, _, factory = args["dataset"].partition(":")
    sys.path[:0] = [folder for folder in args["path"] if folder not in sys.path]
    if args["cwd"]:
        os.chdir(args["cwd"])
    with Forks.watched(module):
        made: Any = importlib.import_module(module)
    for name in factory.split("."):
        made = getattr(made, name)
    dataset = made()
    if not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
        raise TypeError("%s gives a %s: no __getitem__ and __len__" % (args["dataset"], type(dataset).__name__))
    return dataset


def open_files() -> set[str]:
    """Paths of the files on disk that this process has open."""
    found = set()
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            found.add(os.readlink("/proc/self/fd/" + descriptor))
        except OSError:
            continue
    return {path for path in found if os.path.isfile(path)}


def chosen(samples: int, most: int) -> list[int]:
    """Indices to read: all, or ``most`` of them from the first to the last."""
    if not most or samples <= most:
        return list(range(samples))
    return sorted({n * (samples - 1) // (most - 1) for n in range(most)})


def make_loader(dataset: Any, order: list[int], method: str, args: dict[str, Any]) -> DataLoader[Any]:
    """The loader under test, reading in ``order``. Without a timeout a hung worker would be waited for for ever."""
    if args["workers"] < 1 or args["epochs"] < 1 or args["timeout_s"] <= 0:
        raise ValueError("workers, epochs and timeout_s must be positive: %(workers)r %(epochs)r %(timeout_s)r" % args)
    context = multiprocessing.get_context(method)
    if method == "forkserver":
        context.set_forkserver_preload(["torch", args["dataset"].partition(":")[0]])
    return DataLoader(
        Witnessed(dataset),
        batch_size=args["batch"],
        sampler=order,
        num_workers=args["workers"],
        collate_fn=None if args["stack"] else list,
        timeout=args["timeout_s"],
        multiprocessing_context=context,
        persistent_workers=args["persistent"],
    )


def rows(batch: Any) -> list[dict[str, Any]]:
    """A batch as samples again, whichever way it was collated; nothing of it holds on to the batch's shared memory."""
    samples = batch
    if isinstance(batch, dict):
        samples = [{name: batch[name][n] for name in batch} for n in range(len(batch["index"]))]
    numbers = ("index", "worker", "pid")
    return [
        {**{name: int(one[name]) for name in numbers}, "process": one["process"], "digest": digest(one["value"])}
        for one in samples
    ]


def end_workers(batches: Any) -> None:
    """End an iterator's workers now.

    Left to the garbage collector, its queues may be closed first; then each worker is waited for in vain for 5 s.
    """
    shut_down = getattr(batches, "_shutdown_workers", None)
    if shut_down is not None:
        shut_down()


class Reading:
    """A loader being read, an epoch at a time: its workers, and the batches that are held."""

    def __init__(self, method: str, dataset: Any, args: dict[str, Any], stream: Any) -> None:
        self.indices = chosen(len(dataset), args["samples"])
        self.order = list(self.indices)
        self.loader = make_loader(dataset, self.order, method, args)
        self.hold = args["hold"]
        self.stream = stream
        self.workers: list[Any] = []
        self.held: list[Any] = []

    def epoch(self, number: int) -> dict[str, Any]:
        """One epoch: what arrived, in which order it should have, and how long it took."""
        random.Random(number).shuffle(self.order)  # noqa: S311 - an order that can be had again
        begun = time.monotonic()
        with workers_stderr(self.stream):
            batches = iter(self.loader)
        self.workers = multiprocessing.active_children()
        arrived: list[dict[str, Any]] = []
        first_s = None
        try:
            for batch in batches:
                first_s = first_s or time.monotonic() - begun
                arrived += rows(batch)
                if self.hold:
                    self.held.append(batch)
        except BaseException:
            end_workers(batches)
            raise
        total_s = time.monotonic() - begun
        return {"arrived": arrived, "order": list(self.order), "first_s": first_s, "total_s": total_s}


def summary(one: dict[str, Any], expected: dict[int, str]) -> dict[str, Any]:
    """An epoch in numbers: samples that arrived, are missing, repeated, altered; who read them; seconds."""
    arrived = one["arrived"]
    counts = collections.Counter(row["index"] for row in arrived)
    return {
        "samples": len(arrived),
        "expected": len(expected),
        "missing": sorted(set(expected) - set(counts)),
        "repeated": sorted(index for index, times in counts.items() if times > 1),
        "altered": sorted(row["index"] for row in arrived if expected[row["index"]] != row["digest"]),
        "in_order": [row["index"] for row in arrived] == one["order"],
        "workers": sorted({row["worker"] for row in arrived}),
        "pids": sorted({row["pid"] for row in arrived}),
        "processes": sorted({row["process"] for row in arrived}),
        "first_batch_s": one["first_s"],
        "total_s": one["total_s"],
    }


def descriptors(held: list[Any]) -> dict[str, int]:
    """Open descriptors of this process against its limit, while the batches in ``held`` are alive."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return {"soft": soft, "hard": hard, "open": len(os.listdir("/proc/self/fd")), "held_batches": len(held)}


def iterate(method: str, dataset: Any, args: dict[str, Any], stream: Any) -> dict[str, Any]:
    """All epochs by one start method, checked; a fault is returned, never raised."""
    before = descriptors([])
    reading = Reading(method, dataset, args, stream)
    try:
        epochs = [reading.epoch(number) for number in range(args["epochs"])]
    except Exception as error:  # torch raises again in the parent whatever a worker raised
        return {"descriptors": before, "fault": fault("running", error, reading.workers, last_words(stream))}
    after = {**descriptors(reading.held), "before": before["open"]}
    # Only now: a worker must not inherit what the dataset opens when the parent reads it.
    expected, again = ({index: digest(dataset[index]) for index in reading.indices} for _ in range(2))
    told = {"descriptors": after, "steady": expected == again, "samples": len(dataset)}
    return {**told, "epochs": [summary(one, expected) for one in epochs]}


def leg(method: str, args: dict[str, Any]) -> dict[str, Any]:
    """One start method, from the dataset's import to its last sample."""
    with tempfile.TemporaryFile("a+b") as stream:
        already = open_files()
        try:
            # A module without a main guard starts workers here.
            with workers_stderr(stream):
                dataset = load(args)
        except (Exception, SystemExit) as error:  # a user's module may raise anything
            return {"fault": fault("loading", error, [], last_words(stream))}
        opened = sorted(open_files() - already)
        unsendable = None if method == "fork" else pickling_fault(dataset)
        one = {"fault": unsendable} if unsendable else iterate(method, dataset, args, stream)
        return {**one, "opened": opened, "forked_at": Forks.where}


def close_workers(patience_s: float = 5.0) -> int:
    """Wait for the workers of loaders that nobody holds any more; returns how many had to be killed."""
    gc.collect()
    end = time.monotonic() + patience_s
    for process in multiprocessing.active_children():
        process.join(max(0.0, end - time.monotonic()))
    left = multiprocessing.active_children()
    for process in left:
        process.kill()
    return len(left)


def main(args: dict[str, Any]) -> dict[str, Any]:
    """Run every start method in turn; see the head of this file for arguments and answer."""
    args = {**DEFAULTS, **args}
    legs = {}
    for method in args["start_methods"]:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            one = leg(method, args)
        one["warnings"] = sorted({str(warning.message)[:400] for warning in warned})
        one["killed"] = close_workers()
        legs[method] = one
    return {
        "torch": torch.__version__,
        "cuda_build": torch.version.cuda,
        "affinity": len(os.sched_getaffinity(0)),
        "sharing": torch.multiprocessing.get_sharing_strategy(),
        "legs": legs,
    }
