"""Run a command to a deadline, whatever it does: hang, print without end, leave somebody who holds its pipes.

For both sides: a payload imports it as its sibling, the package as ``gpucheck.payload.bounded``. Standard library only;
runs on Python 3.8 and later.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from typing import NamedTuple

# An answer is a hundred kilobytes; of more the end is kept, and a flood fills no memory.
MOST_BYTES = 4 << 20
CHUNK_BYTES = 1 << 16
CHUNKS_IN_A_PIPE = 16
KILL_GRACE_S = 1.0
LOOK_S = 0.05


class Said(NamedTuple):
    """The end of what a command printed, and how it ended.

    ``code`` is its exit status; below zero: the signal that ended it; None: it had not ended in time.
    """

    output: str
    errors: str
    code: int | None


def run(
    argv: list[str], limit_s: float, env: dict[str, str] | None = None, *, ask_s: float = 0.0, leave: bool = False
) -> Said:
    """Run ``argv`` without input, in a session of its own, where no Ctrl-C reaches it. OSError: it cannot start.

    At its limit it is killed with its process group, after ``ask_s`` seconds for it to follow a SIGTERM; with ``leave``
    it goes on instead. What does not die of SIGKILL (state D) is left, and never waited for.
    """
    null, pipe = subprocess.DEVNULL, subprocess.PIPE
    process = subprocess.Popen(argv, stdin=null, stdout=pipe, stderr=pipe, env=env, start_new_session=True)
    listener = Listener(process)
    ended = False
    try:
        ended = listener.listen(limit_s)
        if not ended and ask_s:
            process.terminate()
            listener.listen(ask_s)
    finally:
        if process.returncode is None and not leave:
            kill(process)
        listener.close()
    output, errors = listener.texts()
    code = process.returncode if ended else None
    if process.returncode is None:
        # Without a status the object would complain when it is collected; nobody will ever wait for this process.
        process.returncode = -signal.SIGKILL
    return Said(output, errors, code)


class Listener:
    """Keeps the end of what a process prints, until the process ends: not until its pipes do, which others may hold."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.heard = [(stream, bytearray()) for stream in (process.stdout, process.stderr) if stream is not None]
        self.open = selectors.DefaultSelector()
        for stream, text in self.heard:
            self.open.register(stream, selectors.EVENT_READ, text)

    def listen(self, limit_s: float) -> bool:
        """Listen for that long at most; whether the process ended."""
        ends = time.monotonic() + limit_s
        while self.process.poll() is None:
            left_s = ends - time.monotonic()
            if left_s <= 0:
                return False
            if self.open.get_map():
                self.take(min(left_s, LOOK_S))
            else:
                wait(self.process, left_s)
        for _ in range(CHUNKS_IN_A_PIPE):
            if not self.take(0.0):
                break
        return True

    def take(self, timeout_s: float) -> bool:
        """Take what is there within that time; whether there was something, or an end."""
        ready = self.open.select(timeout_s)
        for key, _ in ready:
            chunk = os.read(key.fd, CHUNK_BYTES)
            key.data.extend(chunk)
            del key.data[:-MOST_BYTES]
            if not chunk:
                self.open.unregister(key.fileobj)
        return bool(ready)

    def texts(self) -> tuple[str, str]:
        """What was printed, and what was complained about."""
        output, errors = (text.decode(errors="replace") for _, text in self.heard)
        return output, errors

    def close(self) -> None:
        """Give the pipes back."""
        self.open.close()
        for stream, _ in self.heard:
            stream.close()


def wait(process: subprocess.Popen[bytes], limit_s: float) -> None:
    """Wait for the end of a process, and no longer than that."""
    try:
        process.wait(limit_s)
    except subprocess.TimeoutExpired:
        pass


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill it with its group, and collect it if it dies."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
    wait(process, KILL_GRACE_S)
