"""One process hands torch tensors of a real batch's size to another through a queue, as data-loading workers do.

Arguments: ``shape`` of a float32 batch, ``batches`` in flight at once, ``held_bytes`` of ``/dev/shm`` that are taken by
somebody else meanwhile (NCCL's segments), ``deadline_s``, ``folder`` (default ``/dev/shm``). The receiver checks each
batch, then turns every bit of it around in place; the sender, which still holds the batch, must see that. The
``outcome`` is

    exchanged   every batch arrived and both sides saw each other's bytes
    lost        the queue dropped ``lost`` batches: the sender's feeder thread failed, the sender went on as if nothing
                had been, a receiver without a time-out of its own waits for ever; ``error`` is what the thread wrote
    killed      a process died of ``signal``: SIGBUS up to torch 2.9
    refused     the part that is held could not be taken
    broken      the receiver's ``get`` raised ``error``
    corrupt     a side saw other bytes than were written
    hang        the deadline came first

Needs torch; numpy is not used.
"""

from __future__ import annotations

import ctypes
import errno
import math
import os
import queue
import signal
import sys
import time
import zlib
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

import torch
import torch.multiprocessing

LAST_LOOK_S = 0.2
POLL_S = 0.05
PART_BYTES = 8 << 20
PR_SET_DUMPABLE = 4


class Ended(Exception):
    """The exchange is over; carries what goes into the answer."""

    def __init__(self, outcome: str, **details: Any) -> None:
        super().__init__(outcome)
        self.answer: dict[str, Any] = {"outcome": outcome, **details}


def checksum(tensor: torch.Tensor) -> int:
    """Over every byte of a contiguous tensor, where it lies."""
    size_bytes = tensor.numel() * tensor.element_size()
    return zlib.crc32((ctypes.c_char * size_bytes).from_address(tensor.data_ptr()))


def batch(shape: list[int], number: int, seed: int) -> torch.Tensor:
    """A float32 batch whose bytes depend on its number and on the run's seed."""
    values = torch.arange(math.prod(shape), dtype=torch.int32)
    return values.mul_(seed * 2 + 1).add_(number).view(torch.float32).view(shape)


def turn_around(tensor: torch.Tensor) -> None:
    """Flip every bit, in place."""
    tensor.view(torch.int32).bitwise_not_()


def become_worker(errors: int) -> None:
    """In a fresh child: keep what is written to stderr, one thread, no core file for an expected SIGBUS."""
    os.dup2(errors, 2)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    torch.set_num_threads(1)
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


def send(conn: Connection, items: Any, plan: dict[str, Any], errors: int) -> None:
    """The sender: put every batch, wait until the feeder thread has done what it can, then look for the answer."""
    become_worker(errors)
    batches = [batch(plan["shape"], number, plan["seed"]) for number in range(plan["batches"])]
    sums = [checksum(tensor) for tensor in batches]
    for number, tensor in enumerate(batches):
        items.put((number, tensor))
    items.close()
    # Returns when the feeder has emptied its buffer: what is not in the pipe now will never be.
    items.join_thread()
    conn.send({"step": "flushed", "sums": sums})
    conn.recv()
    conn.send({"step": "looked", "sums": [checksum(tensor) for tensor in batches]})
    conn.recv()


def receive(conn: Connection, items: Any, plan: dict[str, Any], errors: int) -> None:
    """The receiver: take batches until all are there, or until the sender has sent all and none is left."""
    become_worker(errors)
    got: dict[int, torch.Tensor] = {}
    patience_s = POLL_S
    while len(got) < plan["batches"]:
        try:
            number, tensor = items.get(timeout=patience_s)
        except queue.Empty:
            if patience_s == LAST_LOOK_S:
                break
            patience_s = LAST_LOOK_S if conn.poll() else POLL_S
            continue
        except Exception as error:
            conn.send({"step": "broken", "error": "%s: %s" % (type(error).__name__, error), "got": len(got)})
            return
        got[number] = tensor
    report(conn, got)


def report(conn: Connection, got: dict[int, torch.Tensor]) -> None:
    """Tell what came and what it holds, answer in place, and keep it alive until told to end."""
    sums = {number: checksum(tensor) for number, tensor in got.items()}
    shared = all(tensor.untyped_storage().is_shared() for tensor in got.values())
    for tensor in got.values():
        turn_around(tensor)
    conn.send({"step": "received", "sums": sums, "shared": shared})
    while conn.recv() != "end":
        pass


class Pair:
    """Sender and receiver, seen from above."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan = plan
        self.started = time.time()
        self.end = time.monotonic() + plan["deadline_s"]
        self.errors = os.memfd_create("errors")
        fork = torch.multiprocessing.get_context("fork")
        items = fork.Queue()
        self.conns: list[Connection] = []
        self.processes: list[Any] = []
        for work in (send, receive):
            ours, theirs = Pipe()
            process = fork.Process(target=work, args=(theirs, items, plan, self.errors), daemon=True)
            process.start()
            theirs.close()
            self.conns.append(ours)
            self.processes.append(process)
        items.close()

    def close(self) -> None:
        """Kill and collect both, and what torch leaves of them."""
        for process in self.processes:
            process.kill()
            process.join()
        os.close(self.errors)
        # torch 2.13 keeps the name of a file for which it found no space.
        for entry in os.scandir(self.plan["folder"]):
            ours = any(entry.name.startswith("torch_%d_" % process.pid) for process in self.processes)
            if ours and entry.stat(follow_symlinks=False).st_ctime >= self.started - 1.0:
                os.unlink(entry.path)

    def last_error(self) -> str:
        """The last line that a process wrote to stderr: the end of the feeder thread's traceback."""
        size_bytes = os.fstat(self.errors).st_size
        lines = os.pread(self.errors, size_bytes, 0).decode(errors="replace").split("\n")
        return next((line for line in reversed(lines) if line.strip() and not line.startswith(" ")), "")

    def next(self, steps: dict[str, Any]) -> None:
        """Take one message into ``steps``. Raises ``Ended`` for a death or the deadline."""
        ready = wait(self.conns, max(0.0, self.end - time.monotonic()))
        if not ready:
            raise Ended("hang", step="after " + (", ".join(steps) or "the start"), error=self.last_error())
        conn = self.conns[0] if self.conns[0] in ready else self.conns[1]
        try:
            message = conn.recv()
        except (EOFError, ConnectionResetError):
            raise self.fate(self.processes[self.conns.index(conn)], steps) from None
        steps[message["step"]] = message

    def fate(self, process: Any, steps: dict[str, Any]) -> Ended:
        """How a process that fell silent ended."""
        process.join()
        who = "sender" if process is self.processes[0] else "receiver"
        if process.exitcode < 0:
            name = signal.Signals(-process.exitcode).name
            return Ended("killed", signal=name, who=who, step="after " + (", ".join(steps) or "the start"))
        raise RuntimeError("the %s left with status %d: %s" % (who, process.exitcode, self.last_error()))

    def exchange(self) -> None:
        """All steps; raises ``Ended`` in every case."""
        steps: dict[str, Any] = {}
        while "received" not in steps:
            self.next(steps)
            if "broken" in steps:
                raise Ended("broken", error=steps["broken"]["error"], received=steps["broken"]["got"])
            if list(steps)[-1] == "flushed":
                self.conns[1].send("flushed")
        while "flushed" not in steps:
            self.next(steps)
        self.compare(steps)

    def compare(self, steps: dict[str, Any]) -> None:
        """Raises ``Ended`` with what the two saw."""
        sent, received = steps["flushed"]["sums"], steps["received"]["sums"]
        held_bytes = len(received) * 4 * math.prod(self.plan["shape"])
        details = {"received": len(received), "held_bytes": held_bytes}
        if any(sent[number] != value for number, value in received.items()):
            raise Ended("corrupt", step="receive", **details)
        if len(received) < len(sent):
            raise Ended("lost", lost=len(sent) - len(received), error=self.last_error(), **details)
        self.conns[0].send("look")
        while "looked" not in steps:
            self.next(steps)
        answered = [checksum_of_flipped(self.plan, number) for number in range(len(sent))]
        same = steps["looked"]["sums"] == answered and steps["received"]["shared"]
        raise Ended("exchanged" if same else "corrupt", **({} if same else {"step": "answer"}), **details)


def checksum_of_flipped(plan: dict[str, Any], number: int) -> int:
    """What a batch must look like after the receiver's answer, computed from its definition."""
    expected = batch(plan["shape"], number, plan["seed"])
    turn_around(expected)
    return checksum(expected)


def nameless(folder: str) -> int:
    """A new file without a name: its descriptor."""
    run = os.environ.get("GPUCHECK_RUN", "by-hand")
    name = os.path.join(folder, "gpucheck-%s-%d-%s" % (run, os.getpid(), os.urandom(4).hex()))
    descriptor = os.open(name, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    os.unlink(name)
    return descriptor


def hold(folder: str, size_bytes: int) -> list[int]:
    """Take that much of the folder's file system, in parts of about a segment: descriptors. Raises ``Ended``."""
    held: list[int] = []
    try:
        for start in range(0, size_bytes, PART_BYTES):
            held.append(nameless(folder))
            os.posix_fallocate(held[-1], 0, min(PART_BYTES, size_bytes - start))
    except OSError as error:
        for descriptor in held:
            os.close(descriptor)
        symbol = errno.errorcode.get(error.errno or 0, str(error.errno))
        raise Ended("refused", step="hold", errno=symbol, error=os.strerror(error.errno or 0)) from None
    return held


def attempt(plan: dict[str, Any]) -> dict[str, Any]:
    """Hold, exchange, collect: the answer."""
    try:
        held = hold(plan["folder"], plan["held_bytes"])
    except Ended as ended:
        return ended.answer
    pair = Pair(plan)
    try:
        pair.exchange()
    except Ended as ended:
        return ended.answer
    finally:
        pair.close()
        for descriptor in held:
            os.close(descriptor)
    raise AssertionError("an exchange always ends")


def main(args: dict[str, Any]) -> dict[str, Any]:
    """See the module's text."""
    torch.set_num_threads(1)
    seed = int.from_bytes(os.urandom(2), "little")
    plan = {"folder": "/dev/shm", "held_bytes": 0, "deadline_s": 20.0, "seed": seed, **args}
    started = time.monotonic()
    stat = os.statvfs(plan["folder"])
    answer = attempt(plan)
    return {
        "room": {"total_bytes": stat.f_blocks * stat.f_frsize, "free_bytes": stat.f_bavail * stat.f_frsize},
        "torch": torch.__version__,
        "batch_bytes": 4 * math.prod(plan["shape"]),
        "duration_s": time.monotonic() - started,
        **answer,
    }
