"""Ranks that add up numbers over NCCL: each rank's result, or how it ended and where it stood, and NCCL's own log.

Arguments (all optional but ``ranks``):

    ranks      how many processes
    devices    the CUDA device of each, by its place in ``visible``; default: rank n takes device n
    visible    CUDA_VISIBLE_DEVICES for all of them; default: as it is
    apart      true: each rank is a world of its own (world size 1); default: they make one world
    env        {name: value or null} on top of the environment; ``{rank}`` in a value becomes the rank's number
    elements   how many numbers each collective adds up, in their order
    limit_s    for the whole, from the start of the ranks
    worker     the file of another module to run instead of NCCL; it defines ``take_part(rank, world, job, tell)``

The answer holds ``ranks``, an entry each, ``shm`` {"total_bytes", "free_bytes" before, "peak_bytes" that the ranks
took} (null where there is no /dev/shm), ``removed`` (what killed ranks left there) and ``spent_s``. An entry of a rank:

    rank, ended    "value", "failure", "exit", "signal"; "waited": ended by us because another rank had gone before;
                   "hang": ended by us at the limit; "stuck": it did not die of SIGKILL
    step, collective   where it stood: "CUDA" (before NCCL is asked for anything), "initialise", "collective", and the
                   number of the collective from 1 on
    value          {"wrong", "checked"} numbers, and what the worker adds ("version", ...)
    type, text     of the exception; ``code``, ``signal`` of the process
    gone_s         when it ended, in seconds from the start
    stack, log, output   Python frames where it was ended, lines of NCCL's log, the end of what it wrote

Ranks are forked when torch is imported, and never touch CUDA before. Needs torch, unless another worker does not.
"""

from __future__ import annotations

import datetime
import importlib
import json
import os
import shutil
import sys
import tempfile
from typing import Any, Callable

from ranks_watched import Watch

PERIOD = 1021
Tell = Callable[..., None]


def main(args: dict[str, Any]) -> dict[str, Any]:
    """Start the ranks, watch them to their end or the limit, and read what each left."""
    import envelope

    take_part = load(args.get("worker"))
    folder = tempfile.mkdtemp(prefix="ranks-")
    envelope.progress(f"{args['ranks']} rank(s)")
    try:
        watch = Watch(args, folder, take_part)
        watch.run()
        return watch.answer()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def load(path: str | None) -> Callable[..., dict[str, Any]]:
    """What each rank runs. Imported here, once, so that the ranks need not."""
    if path is None:
        import torch.distributed  # noqa: F401 - the forks have it

        return take_part
    folder, name = os.path.split(path)
    sys.path.append(folder)
    return importlib.import_module(os.path.splitext(name)[0]).take_part


def take_part(rank: int, world: int, job: dict[str, Any], tell: Tell) -> dict[str, Any]:
    """One rank over NCCL: meet, add, check each number. Numbers are whole and small enough to be exact in float32."""
    import torch
    from torch import distributed

    tell("CUDA")
    device = torch.device("cuda", job["device"])
    torch.cuda.set_device(device)
    torch.ones(1, device=device).sum().item()
    tell("initialise")
    # Ours is the first to end it: torch's own watchdog would only abort the process.
    patience = datetime.timedelta(seconds=10 * job["limit_s"])
    meeting = "file://" + job["store"]
    distributed.init_process_group("nccl", init_method=meeting, rank=rank, world_size=world, timeout=patience)
    wrong = checked = 0
    for number, elements in enumerate(job["elements"], 1):
        tell("collective", number)
        base = torch.arange(elements, device=device).remainder(PERIOD).float()
        total = base * (rank + 1)
        distributed.all_reduce(total)
        torch.cuda.synchronize(device)
        wrong += int((total != base * (world * (world + 1) // 2)).sum())
        checked += elements
    return {"wrong": wrong, "checked": checked, "version": list(torch.cuda.nccl.version()), "torch": torch.__version__}


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1])), indent=1))
