"""The server from which warm children are forked, seen from this side."""

from __future__ import annotations

import select
import socket
from typing import TYPE_CHECKING

from gpucheck.process.supervised import KILL_GRACE_S, PAYLOADS, Conversation, supervisor, wait

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

START_S = 90.0


class WarmServer:
    """A process of ``python`` that has imported ``preload`` and forks a child a payload."""

    def __init__(self, python: str, preload: Sequence[str], env: Mapping[str, str]) -> None:
        self.why = ""
        self.control, theirs = socket.socketpair()
        self.watch, watched = socket.socketpair()
        self.process = supervisor(watched, env, also=(theirs.fileno(),))
        argv = [python, "-B", str(PAYLOADS / "warm.py"), str(theirs.fileno()), *preload]
        self.talk = Conversation(self.watch, {"argv": argv, "env": dict(env), "close_fds": [theirs.fileno()]})
        theirs.close()
        watched.close()

    def _is_ready(self, timeout_s: float) -> bool:
        if self.why or not select.select([self.control], [], [], timeout_s)[0]:
            self.why = self.why or f"not ready in {timeout_s:.0f} s"
            return False
        if not self.control.recv(64, socket.MSG_PEEK):
            self.why = "it died while importing"
            return False
        return True

    def connect(self, within_s: float) -> socket.socket | None:
        """A connection to a supervisor forked from the server; None when it is not ready in time, or gone."""
        if not self._is_ready(min(within_s, START_S)):
            return None
        ours, theirs = socket.socketpair()
        try:
            socket.send_fds(self.control, [b"."], [theirs.fileno()])
        except OSError as error:
            ours.close()
            self.why = str(error)
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
