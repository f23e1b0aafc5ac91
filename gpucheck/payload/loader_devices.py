"""Batches through pinned memory to devices, and workers that compute on them.

Arguments: ``devices`` (CUDA ordinals), ``leg`` (``pinned``, ``in-workers``, ``forked``), ``workers``, ``timeout_s`` (of
one batch). Answer: ``{ordinal: told}``, where ``told`` holds a ``fault`` as ``loader_epochs`` has it, or

    pinned       what ``loader_epochs`` tells of a leg, with ``unpinned``: batches that were not in pinned memory;
                 the samples that are compared have been on the device
    in-workers,  ``samples``, ``workers`` (who computed them), ``wrong`` (indices), ``errors`` (in torch's words)
    forked

One loader serves all devices in ``in-workers`` and ``forked``: starting its workers is what costs. A sample that fails
says so itself, so that one device's failure is not another's. In ``forked`` this process has used CUDA before.
"""

from __future__ import annotations

import tempfile
from typing import Any, Iterator

import envelope
import loader_epochs
import loader_notes
import torch
from torch.utils.data import DataLoader, get_worker_info

EACH = 4
SIDE = 64
METHODS = {"in-workers": "spawn", "forked": "fork"}


class OnDevices:
    """Samples that are computed on a device by whoever reads them; consecutive ones on the same device."""

    def __init__(self, devices: list[int], workers: int) -> None:
        self.devices = devices
        self.workers = workers

    def __len__(self) -> int:
        return EACH * self.workers * len(self.devices)

    def device(self, index: int) -> int:
        """The device of a sample: each worker, which gets every n-th, computes on each device."""
        return self.devices[index // self.workers % len(self.devices)]

    def __getitem__(self, index: int) -> dict[str, Any]:
        info = get_worker_info()
        told: dict[str, Any] = {"index": index, "worker": -1 if info is None else info.id, "value": None, "error": ""}
        try:
            there = torch.arange(SIDE, dtype=torch.float32).to(torch.device("cuda", self.device(index)))
            told["value"] = (there + index).cpu().tolist()
        except Exception as error:  # CUDA's errors, and torch's own refusal
            told["error"] = "%s: %s" % (type(error).__name__, str(error)[:2000])
        return told


class Moved:
    """A loader's batches, taken to a device and back, and how many of them were not pinned."""

    def __init__(self, loader: Any, device: int) -> None:
        self.loader = loader
        self.device = torch.device("cuda", device)
        self.unpinned = 0

    def __iter__(self) -> Iterator[Any]:
        for batch in self.loader:
            self.unpinned += not batch["value"].is_pinned()
            there = batch["value"].to(self.device, non_blocking=True)
            torch.cuda.synchronize(self.device)
            yield {**batch, "value": there.cpu()}


def pinned(device: int, args: dict[str, Any]) -> dict[str, Any]:
    """An epoch whose batches are pinned and go to the device and back."""
    torch.cuda.set_device(device)
    asked = {**loader_epochs.DEFAULTS, "workers": args["workers"], "timeout_s": args["timeout_s"], "pin": True}
    dataset = loader_epochs.load(asked)
    with tempfile.TemporaryFile("a+b") as stream:
        moved: list[Moved] = []

        def through_the_device(loader: Any) -> Moved:
            moved.append(Moved(loader, device))
            return moved[-1]

        told = loader_epochs.iterate("fork", dataset, asked, stream, through_the_device)
    return {**told, "unpinned": sum(one.unpinned for one in moved)}


def computed(args: dict[str, Any], method: str) -> dict[str, dict[str, Any]]:
    """What workers computed on each device."""
    dataset = OnDevices(args["devices"], args["workers"])
    told: dict[int, dict[str, Any]] = {
        device: {"samples": 0, "workers": [], "wrong": [], "errors": []} for device in args["devices"]
    }
    with tempfile.TemporaryFile("a+b") as stream:
        processes: list[Any] = []
        try:
            for one in loader_notes.witnessed(read_by(dataset, args, method), stream, processes):
                note(told[dataset.device(one["index"])], one)
        except Exception as error:  # torch raises again in the parent whatever happened to a worker
            words = loader_notes.last_words(stream)
            fault = loader_notes.fault("running", error, processes, words)
            return {str(device): {"fault": fault} for device in args["devices"]}
    return {str(device): one for device, one in told.items()}


def read_by(dataset: OnDevices, args: dict[str, Any], method: str) -> DataLoader[Any]:
    """A loader of single samples."""
    return DataLoader(
        dataset,
        batch_size=None,
        num_workers=args["workers"],
        timeout=args["timeout_s"],
        multiprocessing_context=method,
    )


def note(told: dict[str, Any], one: dict[str, Any]) -> None:
    """Add one sample to what is told of its device."""
    told["samples"] += 1
    told["workers"] = sorted({*told["workers"], one["worker"]})
    if one["error"]:
        told["errors"] = sorted({*told["errors"], one["error"]})
    elif one["value"] != [float(n + one["index"]) for n in range(SIDE)]:
        told["wrong"].append(one["index"])


def main(args: dict[str, Any]) -> dict[str, Any]:
    """One leg on every device; see the head of this file for arguments and answer."""
    if args["leg"] != "pinned":
        if args["leg"] == "forked":
            torch.cuda.init()
        told = computed(args, METHODS[args["leg"]])
    else:
        told = {}
        for device in args["devices"]:
            envelope.progress("pinned batches to device %d" % device)
            told[str(device)] = pinned(device, args)
    loader_epochs.close_workers()
    return told
