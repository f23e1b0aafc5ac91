"""The server from which warm children are forked, seen from this side."""

from __future__ import annotations

import select
import socket
import time
from typing import TYPE_CHECKING

from gpucheck.process.supervised import KILL_GRACE_S, PAYLOADS, Conversation, supervisor, wait

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

START_S = 90.0


class WarmServer:
    """A process of ``python`` that has imported ``preload`` and forks a child a payload.

    Raises OSError where no process can be started. ``why``: why whoever asked last was not served; who asks later may
    be, for what is slow at importing may get there.
    """

    def __init__(self, python: str, preload: Sequence[str], env: Mapping[str, str]) -> None:
        self.why = ""
        self.preload = ", ".join(preload)
        self.began = time.monotonic()
        self.control, theirs = socket.socketpair()
        self.watch, watched = socket.socketpair()
        try:
            self.process = supervisor(watched, env, also=(theirs.fileno(),))
        except OSError:
            for end in (self.control, theirs, self.watch, watched):
                end.close()
            raise
        argv = [python, "-B", str(PAYLOADS / "warm.py"), str(theirs.fileno()), *preload]
        self.talk = Conversation(self.watch, {"argv": argv, "env": dict(env), "close_fds": [theirs.fileno()]})
        theirs.close()
        watched.close()

    @property
    def age_s(self) -> float:
        """Seconds since it was started."""
        return time.monotonic() - self.began

    def _is_ready(self, within_s: float) -> bool:
        """Whether the libraries are imported; START_S after its start nobody waits for that any more."""
        if not select.select([self.control], [], [], max(0.0, min(within_s, START_S - self.age_s)))[0]:
            self.why = f"the warm server was still importing {self.preload}, {self.age_s:.0f} s after its start"
        elif not self.control.recv(64, socket.MSG_PEEK):
            self.why = f"the warm server died while importing {self.preload}"
        else:
            self.why = ""
        return not self.why

    def connect(self, within_s: float) -> socket.socket | None:
        """A connection to a supervisor forked from the server; None, and ``why``, when it is not ready or gone."""
        if not self._is_ready(within_s):
            return None
        ours, theirs = socket.socketpair()
        try:
            socket.send_fds(self.control, [b"."], [theirs.fileno()])
        except OSError as error:
            ours.close()
            self.why = f"the warm server is gone: {error}"
            return None
        finally:
            theirs.close()
        return ours

    def close(self) -> None:
        """End the server and everything below it."""
        self.talk.say("kill")
        self.talk.report(KILL_GRACE_S)
        self.control.close()
        self.watch.close()
        wait(self.process)
