"""Forked ranks under watch: how each ended and where it stood, by a deadline, with nothing left. Standard library only.

The launcher's half of ``ranks_nccl.py``, whose docstring describes arguments and answer.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import time
from typing import Any, Callable

import family

LIMIT_S = 45.0
# A rank whose peer is gone may still tell why.
GRACE_S = 4.0
DUMP_S = 0.5
KILL_S = 3.0
TICK_S = 0.02
LOOK_S = 0.2
SHM = "/dev/shm"
# Small: latency protocols; large: every channel's whole buffers.
ELEMENTS = (1 << 10, 1 << 18, 1 << 22)
LOG_BYTES = 48 << 10
OUTPUT_BYTES = 6 << 10
LAST_LINES = 12
FRAMES = 24
TOLD = ("NCCL WARN", "NCCL version", " via ", "shared memory", "shareable", "/dev/shm", "COMPLETE", "Connected all")


class Rank:
    """One forked rank, seen from the launcher."""

    def __init__(self, number: int, pid: int, folder: str) -> None:
        self.number = number
        self.pid = pid
        self.folder = folder
        self.status: int | None = None
        self.gone_s: float | None = None
        self.ended_by_us = ""
        self.files: set[str] = set()

    def path(self, kind: str) -> str:
        """Where this rank writes ``said``, ``nccl``, ``out``, ``stack``."""
        return os.path.join(self.folder, f"{self.number}.{kind}")

    def reap(self, now_s: float) -> None:
        """Note the end, if it has ended."""
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status, self.gone_s = status, now_s

    def look(self) -> None:
        """Note which files in /dev/shm it has mapped: what it will leave there when it is killed."""
        for line in text_of(f"/proc/{self.pid}/maps").splitlines():
            name = line.partition(SHM + "/")[2]
            if name and not name.endswith("(deleted)"):
                self.files.add(f"{SHM}/{name}")

    @property
    def said(self) -> list[dict[str, Any]]:
        """What it told so far."""
        lines = text_of(self.path("said")).splitlines()
        return [json.loads(line) for line in lines if line.endswith("}")]

    @property
    def has_ended_well(self) -> bool:
        """Whether it has reported a value."""
        return any("value" in line for line in self.said)

    def kill(self, why: str) -> None:
        """End it; ``why`` is the word for how it ended."""
        if self.status is None:
            self.ended_by_us = why
            signal_to(self.pid, signal.SIGKILL)

    def answer(self) -> dict[str, Any]:
        """Its entry in the answer."""
        said = self.said
        where = next((line for line in reversed(said) if "step" in line), {"step": "", "collective": 0})
        last: dict[str, Any] = next((line for line in reversed(said) if "step" not in line), {})
        entry = {"rank": self.number, "step": where["step"], "collective": where["collective"], "gone_s": self.gone_s}
        entry.update(self.end(last))
        entry["log"] = told(text_of(self.path("nccl")))
        entry["output"] = text_of(self.path("out"))[-OUTPUT_BYTES:]
        entry["stack"] = frames(text_of(self.path("stack")))
        return entry

    def end(self, last: dict[str, Any]) -> dict[str, Any]:
        """How it ended."""
        if last:
            return {"ended": "value" if "value" in last else "failure", **last}
        if self.status is None:
            return {"ended": "stuck"}
        if self.ended_by_us:
            return {"ended": self.ended_by_us}
        if os.WIFSIGNALED(self.status):
            return {"ended": "signal", "signal": signal.Signals(os.WTERMSIG(self.status)).name}
        return {"ended": "exit", "code": os.WEXITSTATUS(self.status)}


class Watch:
    """All ranks of one run."""

    def __init__(self, args: dict[str, Any], folder: str, work: Callable[..., dict[str, Any]]) -> None:
        self.args = args
        self.folder = folder
        self.work = work
        self.limit_s = float(args.get("limit_s", LIMIT_S))
        self.begun = time.monotonic()
        self.room = room()
        self.peak_bytes = 0
        self.looked_s = 0.0
        self.removed: list[str] = []
        self.ranks: list[Rank] = []

    @property
    def spent_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.begun

    def run(self) -> None:
        """Start, watch, end, clean."""
        try:
            for number in range(self.args["ranks"]):
                self.ranks.append(Rank(number, self.fork(number), self.folder))
            self.watch()
        finally:
            self.end()
        for path in sorted(set().union(*(rank.files for rank in self.ranks))):
            if os.path.exists(path):
                os.unlink(path)
                self.removed.append(path)

    def fork(self, number: int) -> int:
        """A rank's pid; does not return in the rank itself."""
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                self.be_rank(number)
                status = 0
            finally:
                os._exit(status)
        return pid

    def be_rank(self, number: int) -> None:
        """In the forked process: surroundings, work, report, and wait until all have reported."""
        rank = Rank(number, os.getpid(), self.folder)
        out = os.open(rank.path("out"), os.O_WRONLY | os.O_CREAT, 0o600)
        os.dup2(out, 1)
        os.dup2(out, 2)
        # A descriptor, which nobody closes: the handler must be able to write at any time.
        faulthandler.register(signal.SIGUSR1, file=os.open(rank.path("stack"), os.O_WRONLY | os.O_CREAT), chain=False)
        self.surround(rank)
        said = os.open(rank.path("said"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

        def tell(step: str, collective: int = 0) -> None:
            say(said, {"step": step, "collective": collective})

        try:
            say(said, {"value": self.work(*self.place(number), self.job(number), tell)})
        except BaseException as error:
            say(said, {"type": type(error).__name__, "text": str(error)[:8000]})
            return
        # A peer may still be reading from this one's memory.
        while not os.path.exists(os.path.join(self.folder, "leave")):
            time.sleep(TICK_S)

    def surround(self, rank: Rank) -> None:
        """The environment of a rank."""
        os.environ["NCCL_DEBUG_FILE"] = rank.path("nccl")
        if self.args.get("visible") is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = self.args["visible"]
        for name, value in (self.args.get("env") or {}).items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value.replace("{rank}", str(rank.number))

    def place(self, number: int) -> tuple[int, int]:
        """A process's rank and the size of its world."""
        return (0, 1) if self.args.get("apart") else (number, self.args["ranks"])

    def job(self, number: int) -> dict[str, Any]:
        """What a rank has to know beside its place."""
        devices = self.args.get("devices") or list(range(self.args["ranks"]))
        store = os.path.join(self.folder, f"store-{number}" if self.args.get("apart") else "store")
        elements = self.args.get("elements") or ELEMENTS
        return {"device": devices[number], "store": store, "elements": elements, "limit_s": self.limit_s}

    def watch(self) -> None:
        """Until all have reported or ended, one is gone for too long, or the limit is reached."""
        while self.spent_s < self.limit_s:
            self.tick()
            open_ranks = [rank for rank in self.ranks if rank.status is None and not rank.has_ended_well]
            if not open_ranks:
                return
            gone = [rank.gone_s for rank in self.ranks if rank.gone_s is not None and not rank.has_ended_well]
            if gone and not self.args.get("apart") and self.spent_s > min(gone) + GRACE_S:
                self.give_up(open_ranks, "waited")
                return
            time.sleep(TICK_S)
        self.give_up([rank for rank in self.ranks if rank.status is None and not rank.has_ended_well], "hang")

    def tick(self) -> None:
        """Look at the ranks and at /dev/shm."""
        now = room()
        if self.room and now:
            self.peak_bytes = max(self.peak_bytes, self.room["free_bytes"] - now["free_bytes"])
        if self.spent_s - self.looked_s > LOOK_S:
            self.looked_s = self.spent_s
            for rank in self.ranks:
                rank.look()
        for rank in self.ranks:
            rank.reap(self.spent_s)

    def give_up(self, ranks: list[Rank], why: str) -> None:
        """Ask each where it stands, then kill it."""
        for rank in ranks:
            rank.look()
            # Before it has a handler the signal would be its end, and no hang.
            if family.catches(rank.pid, signal.SIGUSR1):
                signal_to(rank.pid, signal.SIGUSR1)
        time.sleep(DUMP_S)
        for rank in ranks:
            rank.kill(why)

    def end(self) -> None:
        """Let those that have reported go, and wait for every rank, but not for ever."""
        with open(os.path.join(self.folder, "leave"), "w", encoding="ascii"):
            pass
        patience_s = self.spent_s + KILL_S
        while any(rank.status is None for rank in self.ranks) and self.spent_s < patience_s + KILL_S:
            for rank in self.ranks:
                rank.reap(self.spent_s)
                if self.spent_s > patience_s:
                    signal_to(rank.pid, signal.SIGKILL)
            time.sleep(TICK_S)

    def answer(self) -> dict[str, Any]:
        """The payload's answer."""
        shm = None if self.room is None else {**self.room, "peak_bytes": self.peak_bytes}
        ranks = [rank.answer() for rank in self.ranks]
        return {"ranks": ranks, "shm": shm, "removed": self.removed, "spent_s": self.spent_s}


def frames(dump: str) -> list[str]:
    """The innermost frames of a dumped stack, down to ours, which are the same in every rank."""
    lines = [line.strip() for line in dump.splitlines() if line.lstrip().startswith("File ")]
    ours = next((number for number, line in enumerate(lines) if __file__ in line), len(lines))
    return lines[:ours][:FRAMES]


def say(descriptor: int, what: dict[str, Any]) -> None:
    """One line for the launcher, in one write."""
    os.write(descriptor, json.dumps(what).encode() + b"\n")


def signal_to(pid: int, number: int) -> None:
    """Send a signal to a child that may be gone."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def text_of(path: str) -> str:
    """A file's text; empty where there is none."""
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read()
    except OSError:
        return ""


def told(log: str) -> str:
    """The lines of NCCL's log that say something about transports, memory and failures, and its last ones."""
    lines = log.splitlines()
    kept = [line for line in lines[:-LAST_LINES] if any(word in line for word in TOLD)]
    return "\n".join(kept + lines[-LAST_LINES:])[-LOG_BYTES:]


def room() -> dict[str, int] | None:
    """Size and free bytes of /dev/shm."""
    try:
        found = os.statvfs(SHM)
    except OSError:
        return None
    return {"total_bytes": found.f_blocks * found.f_frsize, "free_bytes": found.f_bavail * found.f_frsize}
