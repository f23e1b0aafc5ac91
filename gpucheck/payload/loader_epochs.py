"""Epochs through a torch ``DataLoader`` by given start methods, every sample compared with what the parent reads.

Arguments (all but the first optional): ``start_methods`` [fork, spawn, forkserver], ``dataset`` ("MODULE:FACTORY"),
``path`` (folders to find it in), ``cwd`` (where it runs), ``samples`` (read at most so many, evenly spread; 0: all),
``stack`` (collate samples into one tensor), ``workers``, ``batch``, ``epochs``, ``persistent``, ``timeout_s`` (of one
batch), ``pin`` (batches in pinned memory), ``hold`` (keep every batch alive, as a job does that collects its
predictions). Answer: ``{"torch", "cuda_build", "affinity", "sharing", "legs": {method: leg}}``; a leg carries
``descriptors`` and either ``samples`` (how many the dataset has), ``opened`` (files that it opened before workers
started), ``forked_at`` (where its module forked while it was imported, or ""), ``epochs`` and ``steady``, or a
``fault``: in which ``stage`` (loading, pickling, running), in whose words (``told``), at which ``sample`` (its index,
None where that is not told), how workers ended (``exit_codes``), and ``worker_stderr``, where the true reason stands
when torch only says that a worker went away.

Standard library and torch; numpy is not needed. Runs on Python 3.8 and later.
"""

from __future__ import annotations

import collections
import gc
import importlib
import multiprocessing
import os
import random
import resource
import sys
import tempfile
import time
import warnings
from typing import Any, Callable, Iterable

import torch
from loader_notes import (
    Forks,
    digest,
    end_workers,
    fault,
    last_words,
    note_sample,
    open_files,
    pickling_fault,
    workers_stderr,
)
from torch.utils.data import DataLoader, get_worker_info

DEFAULTS: dict[str, Any] = {
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
    "pin": False,
}
Way = Callable[[Any], Iterable[Any]]


class Witnessed:
    """A dataset whose samples also say which index they are and in which worker they were read."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> dict[str, Any]:
        info = get_worker_info()
        try:
            value = self.dataset[index]
        except Exception:
            if info is not None:
                note_sample(info.id, index)
            raise
        return {
            "index": index,
            "value": value,
            "worker": -1 if info is None else info.id,
            "pid": os.getpid(),
            "process": type(multiprocessing.current_process()).__name__,
        }


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
        pin_memory=args["pin"],
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


class Reading:
    """A loader being read, an epoch at a time: its workers, and the batches that are held."""

    def __init__(self, method: str, dataset: Any, args: dict[str, Any], stream: Any, way: Way) -> None:
        self.indices = chosen(len(dataset), args["samples"])
        self.order = list(self.indices)
        self.loader = make_loader(dataset, self.order, method, args)
        self.hold = args["hold"]
        self.way = way
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
            for batch in self.way(batches):
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


def as_they_come(batches: Any) -> Any:
    """Batches as the loader gives them."""
    return batches


def iterate(method: str, dataset: Any, args: dict[str, Any], stream: Any, way: Way = as_they_come) -> dict[str, Any]:
    """All epochs by one start method, checked; a fault is returned, never raised. ``way``: where batches go first."""
    before = descriptors([])
    reading = Reading(method, dataset, args, stream, way)
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
