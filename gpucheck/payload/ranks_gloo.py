"""Two ranks started by torchrun meet over gloo, add up numbers, and check them.

Arguments: ``host``, where the ranks meet (default ``localhost``; the port is a free one), ``local_addr`` for torchrun's
own option of that name (default: none, torchrun asks for this machine's name), ``limit_s`` for the whole. The answer
holds

    endpoint   where they were to meet
    ended      "exit" with ``code``, or "hang": torchrun was ended by us
    spent_s    how long it took
    errors     the end of what torchrun and the ranks wrote to stderr
    ranks      what each rank reported: {"rank", "world", "sum", "right", "addresses"}; ``addresses`` are its own ends
               of the TCP connections that it holds, so that one sees over which network the ranks talked

Needs torch. Run as a program, this file is what each rank runs; gloo uses no shared memory, so that this says nothing
about /dev/shm.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
import tempfile
import time
from typing import Any

import bounded

RANKS = 2
LIMIT_S = 60.0
GRACE_S = 6.0
ERRORS_BYTES = 1 << 16
LENGTH = 1024
OUT = "GPUCHECK_RANKS_OUT"
LIMIT = "GPUCHECK_RANKS_LIMIT_S"
ESTABLISHED = "01"


def main(args: dict[str, Any]) -> dict[str, Any]:
    """Start torchrun, wait, and read what each rank reported."""
    import envelope

    limit_s = float(args.get("limit_s", LIMIT_S))
    endpoint = f"{args.get('host', 'localhost')}:{free_port()}"
    envelope.progress(f"torchrun: {RANKS} ranks meet at {endpoint}")
    folder = tempfile.mkdtemp(prefix="ranks-")
    begun = time.monotonic()
    try:
        ended, code, errors = launch(endpoint, args.get("local_addr"), folder, limit_s)
        ranks = reports(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    spent_s = time.monotonic() - begun
    return {"endpoint": endpoint, "ended": ended, "code": code, "spent_s": spent_s, "errors": errors, "ranks": ranks}


def free_port() -> int:
    """A port that nobody holds now. A fixed one is often held by the corpse of the last try."""
    with socket.socket() as asked:
        asked.bind(("", 0))
        return int(asked.getsockname()[1])


def launch(endpoint: str, local_addr: str | None, folder: str, limit_s: float) -> tuple[str, int | None, str]:
    """Run torchrun to its end or ours: how it ended, its exit status, what it wrote."""
    argv = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nnodes=1",
        f"--nproc-per-node={RANKS}",
        "--max-restarts=0",
    ]
    argv += ["--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}", f"--rdzv-id=gpucheck-{os.getpid()}"]
    argv += [f"--local-addr={local_addr}"] if local_addr else []
    environment = {**os.environ, OUT: folder, LIMIT: str(limit_s), "OMP_NUM_THREADS": "1"}
    # Torchrun ends its ranks, which have sessions of their own, when it is asked to end; what is left then is our
    # supervisor's to kill.
    said = bounded.run([*argv, os.path.abspath(__file__)], limit_s, environment, ask_s=GRACE_S)
    return "hang" if said.code is None else "exit", said.code, said.errors[-ERRORS_BYTES:]


def reports(folder: str) -> list[dict[str, Any]]:
    """What the ranks reported, by rank."""
    found = []
    for name in sorted(os.listdir(folder)):
        if name.endswith(".json"):
            with open(os.path.join(folder, name), encoding="utf-8") as stream:
                found.append(json.load(stream))
    return found


def rank() -> None:
    """In each rank: meet, add, check, report."""
    import datetime

    import torch
    from torch import distributed

    distributed.init_process_group("gloo", timeout=datetime.timedelta(seconds=float(os.environ[LIMIT])))
    number, world = distributed.get_rank(), distributed.get_world_size()
    total = torch.full((LENGTH,), float(number + 1))
    distributed.all_reduce(total)
    token = torch.arange(LENGTH) * (1 if number == 0 else 0)
    distributed.broadcast(token, src=0)
    right = bool((total == world * (world + 1) / 2).all()) and torch.equal(token, torch.arange(LENGTH))
    report = {"rank": number, "world": world, "sum": float(total[0]), "right": right, "addresses": own_addresses()}
    path = os.path.join(os.environ[OUT], f"{number}.json")
    with open(path + ".part", "w", encoding="utf-8") as stream:
        json.dump(report, stream)
    os.replace(path + ".part", path)
    # Nobody leaves while another still asks the store.
    distributed.barrier()
    distributed.destroy_process_group()


def own_addresses() -> list[str]:
    """The ends of our TCP connections that are ours, by the kernel's tables."""
    inodes = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[len("socket:[") : -1])
    return sorted(set(addresses("tcp", socket.AF_INET, inodes)) | set(addresses("tcp6", socket.AF_INET6, inodes)))


def addresses(table: str, family: int, inodes: set[str]) -> list[str]:
    """The local addresses of established connections in one of the kernel's tables; none where the kernel lacks it."""
    try:
        with open(f"/proc/self/net/{table}", encoding="ascii") as stream:
            rows = [line.split() for line in stream.readlines()[1:]]
    except OSError:
        return []
    local = [row[1].partition(":")[0] for row in rows if row[3] == ESTABLISHED and row[9] in inodes]
    return [socket.inet_ntop(family, words(text)) for text in local]


def words(text: str) -> bytes:
    """The kernel writes an address as 32-bit words of this machine's own byte order."""
    digits = [text[start : start + 8] for start in range(0, len(text), 8)]
    return b"".join(int(word, 16).to_bytes(4, sys.byteorder) for word in digits)


if __name__ == "__main__":
    rank()
