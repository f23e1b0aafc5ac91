"""Two processes exchange through segments in ``/dev/shm`` of NCCL's size and number, and check every byte.

Arguments: ``segments`` (how many live at once), ``segment_bytes``, ``ways`` (``fallocate``: NCCL up to 2.11 and from
2.19 on; ``ftruncate``: 2.12 to 2.18), ``deadline_s`` for each way, ``folder`` (default ``/dev/shm``). Answer: ``room``
and a try for each way, whose ``outcome`` is

    exchanged   every segment was filled by the one process and read back, equal, by the other
    refused     a call failed: ``errno``, ``error``, and the ``step`` at which it did
    killed      a process died of ``signal``: SIGBUS where ftruncate promised more than there is
    corrupt     the other process read something else than was written
    hang        the deadline came first

As in NCCL the receiver makes a segment and the sender fills it. Segments lose their name before they have a size, so
that nothing stays behind even when all processes here are killed; descriptors travel by sockets. Standard library only.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import errno
import hashlib
import json
import mmap
import os
import select
import signal
import socket
import struct
import time
import zlib
from typing import Any

PROCESSES = 2
CHUNK_BYTES = 1 << 20
MESSAGE_BYTES = 4096
PR_SET_DUMPABLE = 4


class Ended(Exception):
    """A try is over; carries what goes into the answer."""

    def __init__(self, outcome: str, **details: Any) -> None:
        super().__init__(outcome)
        self.answer: dict[str, Any] = {"outcome": outcome, **details}


def room(folder: str) -> dict[str, int]:
    """Size and free bytes of the file system at ``folder``; a size of 0 means no limit."""
    stat = os.statvfs(folder)
    return {"total_bytes": stat.f_blocks * stat.f_frsize, "free_bytes": stat.f_bavail * stat.f_frsize}


def described(error: OSError) -> dict[str, str]:
    """The error's symbol and words, without the path."""
    number = error.errno or 0
    return {"errno": errno.errorcode.get(number, str(number)), "error": os.strerror(number)}


def tell(conn: socket.socket, message: dict[str, Any], descriptor: int | None = None) -> None:
    """Send one message, with a descriptor or without. An end that is gone is noticed where it is heard."""
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [-1 if descriptor is None else descriptor]))
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        conn.sendmsg([json.dumps(message).encode()], [] if descriptor is None else [rights])


def hear(conn: socket.socket) -> tuple[dict[str, Any] | None, int | None]:
    """Receive one message and the descriptor that came with it; (None, None) when the other end is gone."""
    room_for_one = socket.CMSG_SPACE(array.array("i", [0]).itemsize)
    try:
        data, ancillary, flags, _ = conn.recvmsg(MESSAGE_BYTES, room_for_one)
    except ConnectionResetError:
        data = b""
    if not data:
        return None, None
    if flags & socket.MSG_CTRUNC:
        # The kernel drops descriptors in silence where the limit of open files is reached.
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    descriptors = array.array("i")
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(payload[: descriptors.itemsize])
    return json.loads(data.decode()), descriptors[0] if descriptors else None


def make(way: str, folder: str, size_bytes: int) -> int:
    """A segment of that size: its descriptor."""
    run = os.environ.get("GPUCHECK_RUN", "by-hand")
    name = os.path.join(folder, "gpucheck-%s-%d-%s" % (run, os.getpid(), os.urandom(4).hex()))
    descriptor = os.open(name, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    os.unlink(name)
    if way == "fallocate":
        os.posix_fallocate(descriptor, 0, size_bytes)
    else:
        os.ftruncate(descriptor, size_bytes)
    return descriptor


def fill(descriptor: int, size_bytes: int, seed: bytes) -> int:
    """Write every byte of a segment; returns the checksum of what was meant to be written."""
    base = hashlib.shake_256(seed).digest(CHUNK_BYTES)
    checksum = 0
    with mmap.mmap(descriptor, size_bytes) as memory:
        for number, start in enumerate(range(0, size_bytes, CHUNK_BYTES)):
            # Stamped, so that chunks which change places are noticed.
            chunk = (struct.pack("<Q", number) + base[8:])[: size_bytes - start]
            memory[start : start + len(chunk)] = chunk
            checksum = zlib.crc32(chunk, checksum)
    return checksum


def read(descriptor: int, size_bytes: int) -> int:
    """The checksum of what a segment holds."""
    with mmap.mmap(descriptor, size_bytes, prot=mmap.PROT_READ) as memory:
        return zlib.crc32(memory)


def never_dump_core() -> None:
    """SIGBUS is expected here: leave no core file, and wake no crash reporter."""
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


class Worker:
    """What each of the two processes does, told step by step."""

    def __init__(self, conn: socket.socket, plan: dict[str, Any], mine: int, theirs: int) -> None:
        self.conn, self.plan, self.mine, self.theirs = conn, plan, mine, theirs
        self.step = "make"

    def work(self) -> None:
        """Make own segments, fill the other's, read own ones back; an error is told with its step."""
        try:
            size_bytes = self.plan["segment_bytes"]
            own = self.make_own(size_bytes)
            others = self.receive()
            self.step = "fill"
            for number, descriptor in enumerate(others):
                tell(self.conn, {"step": "filling", "number": number})
                seed = os.urandom(16)
                tell(self.conn, {"step": "filled", "number": number, "sum": fill(descriptor, size_bytes, seed)})
            self.step = "read"
            self.wait()
            for number, descriptor in enumerate(own):
                tell(self.conn, {"step": "read", "number": number, "sum": read(descriptor, size_bytes)})
            self.wait()
        except OSError as error:
            tell(self.conn, {"step": self.step, **described(error)})

    def make_own(self, size_bytes: int) -> list[int]:
        """Make the own segments, and hand each on at once."""
        own = []
        for number in range(self.mine):
            own.append(make(self.plan["way"], self.plan["folder"], size_bytes))
            tell(self.conn, {"step": "made", "number": number}, own[-1])
        return own

    def receive(self) -> list[int]:
        """The other's segments."""
        self.step = "attach"
        others = []
        for _ in range(self.theirs):
            descriptor = hear(self.conn)[1]
            if descriptor is None:
                os._exit(1)
            others.append(descriptor)
        return others

    def wait(self) -> None:
        """Wait to be told to go on; leave when there is nobody to tell."""
        if hear(self.conn)[0] is None:
            os._exit(1)


class Pair:
    """The two processes, seen from above: passes descriptors on and watches how each goes on."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan = plan
        self.end = time.monotonic() + plan["deadline_s"]
        first = (plan["segments"] + 1) // 2
        self.shares = (first, plan["segments"] - first)
        self.last: list[str] = ["start", "start"]
        self.made: list[list[int]] = [[], []]
        self.pids: list[int] = []
        self.conns: list[socket.socket] = []
        for me in (0, 1):
            self.start(me)

    def start(self, me: int) -> None:
        """Fork one of the two."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = os.fork()
        if pid == 0:
            try:
                for conn in (*self.conns, ours):
                    conn.close()
                never_dump_core()
                Worker(theirs, self.plan, self.shares[me], self.shares[1 - me]).work()
            finally:
                os._exit(0)
        theirs.close()
        self.conns.append(ours)
        self.pids.append(pid)

    def close(self) -> None:
        """Kill and collect both; the segments go with their last descriptor."""
        for pid in self.pids:
            if pid:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        for conn in self.conns:
            conn.close()
        for descriptor in self.segments():
            os.close(descriptor)

    def segments(self) -> list[int]:
        """Descriptors of all segments made so far."""
        return self.made[0] + self.made[1]

    def fate(self, me: int) -> Ended:
        """How a process that fell silent ended."""
        status = os.waitpid(self.pids[me], 0)[1]
        self.pids[me] = 0
        if os.WIFSIGNALED(status):
            return Ended("killed", signal=signal.Signals(os.WTERMSIG(status)).name, step=self.last[me])
        raise RuntimeError("a worker left with status %d after %r" % (os.WEXITSTATUS(status), self.last[me]))

    def next(self, me_too: list[int]) -> tuple[int, dict[str, Any], int | None]:
        """The next message of one of those processes. Raises ``Ended`` for an error, a death, the deadline."""
        left_s = max(0.0, self.end - time.monotonic())
        ready = select.select([self.conns[me] for me in me_too], [], [], left_s)[0]
        if not ready:
            raise Ended("hang", step=" | ".join(self.last))
        me = self.conns.index(ready[0])
        try:
            message, descriptor = hear(ready[0])
        except OSError as error:
            raise Ended("refused", step="pass on", **described(error)) from None
        if message is None:
            raise self.fate(me)
        self.last[me] = message["step"]
        if "errno" in message:
            raise Ended("refused", **message)
        return me, message, descriptor

    def collect(self, step: str) -> list[list[int]]:
        """Hear both until each has said ``step`` for all its segments; the checksums, by process and segment."""
        wanted = [self.shares[1 - me] if step == "filled" else self.shares[me] for me in (0, 1)]
        sums: list[list[int]] = [[], []]
        while any(len(sums[me]) < wanted[me] for me in (0, 1)):
            me, message, descriptor = self.next([me for me in (0, 1) if len(sums[me]) < wanted[me]])
            if descriptor is not None:
                self.made[me].append(descriptor)
            if message["step"] == step:
                sums[me].append(message.get("sum", 0))
        return sums

    def exchange(self) -> None:
        """All steps; raises ``Ended`` in every case."""
        self.collect("made")
        for me in (0, 1):
            for descriptor in self.made[1 - me]:
                tell(self.conns[me], {"step": "take"}, descriptor)
        written = self.collect("filled")
        for conn in self.conns:
            tell(conn, {"step": "read"})
        # Each read what the other wrote.
        raise Ended("exchanged" if self.collect("read") == written[::-1] else "corrupt")


def attempt(plan: dict[str, Any]) -> dict[str, Any]:
    """One way, from the first segment to a clean folder."""
    started = time.monotonic()
    pair = Pair(plan)
    try:
        pair.exchange()
    except Ended as ended:
        answer = ended.answer
    finally:
        # Blocks in use, not sizes: a file that was only ftruncated has a size and no memory.
        held_bytes = sum(os.fstat(descriptor).st_blocks * 512 for descriptor in pair.segments())
        made = len(pair.segments())
        pair.close()
    lasted_s = time.monotonic() - started
    return {"way": plan["way"], "made": made, "held_bytes": held_bytes, "duration_s": lasted_s, **answer}


def main(args: dict[str, Any]) -> dict[str, Any]:
    """See the module's text."""
    plan = {"folder": "/dev/shm", "deadline_s": 20.0, **args}
    if plan["segments"] < PROCESSES:
        raise ValueError("an exchange needs two segments at least, not %r" % plan["segments"])
    try:
        before = room(plan["folder"])
    except OSError as error:
        refusal = {"outcome": "refused", "step": "look", **described(error)}
        return {"room": None, "tries": [{"way": way, "made": 0, "held_bytes": 0, **refusal} for way in plan["ways"]]}
    return {"room": before, "tries": [attempt({**plan, "way": way}) for way in plan["ways"]]}
