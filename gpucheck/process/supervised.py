"""The line to a supervisor: it runs one command, and kills the whole family when our end of a socket closes."""

from __future__ import annotations

import json
import select
import subprocess
import sys
import time
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from gpucheck import regular
from gpucheck.payload import bounded

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterable, Mapping, Sequence

PAYLOADS = Path(__file__).parents[1] / "payload"
KILL_GRACE_S = 4.0
SEND_S = 5.0
CHUNK_BYTES = 1 << 20
TICK_CHUNKS = 4
LAST_CHUNKS = 256
LINE_BYTES = 16 << 20
LOST = MappingProxyType({"lost": True})


class Conversation:
    """One request to one supervisor: send it, wait to the deadline, read the report."""

    def __init__(self, conn: socket.socket, request: Mapping[str, Any]) -> None:
        self.conn = conn
        self.buffer = b""
        conn.settimeout(SEND_S)
        self.lost = not self._send(json.dumps(request).encode() + b"\n")

    def report(self, timeout_s: float, tick: Callable[[], None] = lambda: None) -> dict[str, Any] | None:
        """The supervisor's report; None when it is not there in time. ``tick`` is called about ten times a second."""
        if self.lost:
            return dict(LOST)
        end = time.monotonic() + timeout_s
        while b"\n" not in self.buffer:
            left = end - time.monotonic()
            if left <= 0:
                return None
            if select.select([self.conn], [], [], min(left, 0.1))[0]:
                try:
                    chunk = self.conn.recv(65536)
                except ConnectionError:
                    chunk = b""
                if not chunk:
                    return dict(LOST)
                self.buffer += chunk
            tick()
        report: dict[str, Any] = json.loads(self.buffer)
        return report

    def say(self, word: str) -> None:
        """Send ``dump`` or ``kill``; a supervisor that is gone needs neither."""
        self._send(word.encode())

    def _send(self, data: bytes) -> bool:
        """Whether the supervisor took it. One that is gone, or reads nothing, is no error of ours."""
        try:
            self.conn.sendall(data)
        except OSError:
            return False
        return True


class Follow:
    """Passes on each whole line that somebody appends to a file, of any length up to LINE_BYTES."""

    def __init__(self, path: Path, tell: Callable[[str], None]) -> None:
        self.path = path
        self.tell = tell
        self.seen = 0
        self.begun = b""

    def tick(self) -> None:
        """Look for new lines, of which a flood may leave some for the next time."""
        self._take(TICK_CHUNKS)

    def finish(self) -> None:
        """All that is left, when nobody appends any more; a flood ends somewhere."""
        self._take(LAST_CHUNKS)

    def _take(self, chunks: int) -> None:
        for _ in range(chunks):
            try:
                fresh = regular.read(self.path, CHUNK_BYTES, start=self.seen)
            except OSError:
                return
            self.seen += len(fresh)
            *lines, rest = (self.begun + fresh).split(b"\n")
            self.begun = rest[:LINE_BYTES]
            for line in lines:
                self.tell(line.decode(errors="replace"))
            if len(fresh) < CHUNK_BYTES:
                return


def _start(argv: Sequence[str], pass_fds: Iterable[int], env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=tuple(pass_fds),
        env=dict(env),
        start_new_session=True,
    )


def supervisor(conn: socket.socket, env: Mapping[str, str], also: Iterable[int] = ()) -> subprocess.Popen[bytes]:
    """Start a supervisor that serves one request on ``conn``; the command inherits the descriptors in ``also``."""
    # -S -s -E: neither site-packages nor the user's PYTHON* variables are any business of the supervisor.
    argv = [sys.executable, "-B", "-S", "-s", "-E", str(PAYLOADS / "supervisor.py"), str(conn.fileno())]
    return _start(argv, (conn.fileno(), *also), env)


def wait(process: subprocess.Popen[bytes]) -> None:
    """Collect a process that is about to end; one that is not is killed."""
    bounded.wait(process, KILL_GRACE_S)
    if process.returncode is None:
        bounded.kill(process)
