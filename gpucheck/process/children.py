"""Children of one Python: each under a supervisor of its own, warm or cold, to a deadline that we own."""

from __future__ import annotations

import secrets
import socket
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from gpucheck import redact, scratch
from gpucheck.process.call import Call, merged
from gpucheck.process.reply import Heard, NoAnswer, Reply, frames, read_answer
from gpucheck.process.supervised import KILL_GRACE_S, LOST, PAYLOADS, Conversation, Follow, supervisor, wait
from gpucheck.process.warm import WarmServer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

DUMP_GRACE_S = 0.4
LEAST_S = 1.0


class Children:
    """Runs children of one Python inside one run's folder. Use as a context manager: leaving it leaves nothing."""

    def __init__(self, run: str, folder: Path, python: str = sys.executable, preload: Sequence[str] = ()) -> None:
        self.run_id = run
        self.folder = folder
        self.python = python
        self.preload = tuple(preload)
        self.env = scratch.environment(run, folder)
        self.progress: Callable[[str], None] = lambda _: None
        self._server: WarmServer | None = None

    def __enter__(self) -> Children:  # noqa: PYI034 - typing has Self from 3.11 on
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start_server(self) -> None:
        """Begin importing in the background what the first warm payload would otherwise wait for."""
        if self.preload and self._server is None:
            with suppress(OSError):  # a cold child will meet the same, and say it
                self._server = WarmServer(self.python, self.preload, self.env)

    def close(self) -> None:
        """End the warm server; every other child has ended with its own call."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def run(  # noqa: PLR0913 - the ways in which a child can differ, all named
        self,
        payload: str,
        args: Mapping[str, Any] | None = None,
        *,
        deadline_s: float,
        warm: bool = True,
        env: Mapping[str, str | None] | None = None,
        shm_bytes: int | None = None,
        limits: Mapping[str, int] | None = None,
    ) -> Reply:
        """Run ``payload/<payload>.py`` (or that path) and return its reply by ``deadline_s``, dead or alive.

        ``env`` adds variables (None: removes). ``shm_bytes`` gives it a ``/dev/shm`` of its own of that size;
        ``limits`` are soft and hard resource limits by lower-case name (``nofile``, ``as``).
        """
        path = payload if "/" in payload else str(PAYLOADS / f"{payload}.py")
        call = Call(path, args or {}, secrets.token_hex(8), self.folder, env or {}, shm_bytes, limits or {})
        ends = time.monotonic() + deadline_s
        heard = self._warm(call, ends) if warm else None
        if heard is None:
            heard = self._cold(call.cold_request(self.python, self.env), ends, self._follow(call))
            heard = heard.after(self._server.why if warm and self._server is not None else "")
        return self._reply(heard, call)

    def run_argv(
        self,
        argv: Sequence[str],
        *,
        deadline_s: float,
        env: Mapping[str, str | None] | None = None,
        follow: Follow | None = None,
        after: Sequence[str] = (),
    ) -> Reply:
        """Run a command that is not a payload; its answer is always :class:`NoAnswer`.

        ``follow`` passes on what the command appends to a file. ``after`` is a command that the supervisor runs when
        *we* are gone before it has ended: the last chance to clean up behind a killed run.
        """
        request: dict[str, Any] = {"argv": list(argv), "env": merged(self.env, env or {})}
        request |= {"cwd": str(self.folder / "tmp"), "after": list(after)}
        return self._reply(self._cold(request, time.monotonic() + deadline_s, follow))

    def _follow(self, call: Call) -> Follow:
        return Follow(call.progress, lambda line: self.progress(redact.redact(line)))

    def _warm(self, call: Call, ends: float) -> Heard | None:
        """What came of it in a fork of the warm server; None when no server forks within half of the time."""
        self.start_server()
        if self._server is None or (conn := self._server.connect(_left_s(ends) / 2)) is None:
            return None
        heard = self._converse(conn, call.warm_request(), ends, self._follow(call))
        if refused := heard.report.get("refused"):
            self._server.why = f"the warm server does not fork: {refused}"
            return None
        return heard

    def _cold(self, request: Mapping[str, Any], ends: float, follow: Follow | None) -> Heard:
        ours, theirs = socket.socketpair()
        try:
            process = supervisor(theirs, self.env)
        except OSError as error:
            ours.close()
            return Heard.unstarted(error)
        finally:
            theirs.close()
        try:
            return self._converse(ours, request, ends, follow)
        finally:
            wait(process)

    def _converse(self, conn: socket.socket, request: Mapping[str, Any], ends: float, follow: Follow | None) -> Heard:
        with conn:
            talk = Conversation(conn, request)
            report = talk.report(_left_s(ends), follow.tick if follow else lambda: None)
            if report is not None:
                if follow:
                    follow.finish()
                return Heard(report)
            talk.say("dump")
            time.sleep(DUMP_GRACE_S)
            talk.say("kill")
            report = talk.report(KILL_GRACE_S) or {**LOST, "survivors": ["supervisor did not answer"]}
        return Heard(report, timed_out=True, where=self._where(report))

    def _where(self, report: Mapping[str, Any]) -> tuple[str, ...]:
        """Where the family hung: the kernel's words, then the innermost Python frames that were dumped."""
        lines = list(report.get("hung") or ())
        for dump in sorted((self.folder / "stacks").glob("*")):
            lines += [f"pid {dump.name}: {line}" for line in frames(dump)]
        return tuple(redact.redact(line) for line in lines)

    def _reply(self, heard: Heard, call: Call | None = None) -> Reply:
        for dump in (self.folder / "stacks").glob("*"):
            with suppress(OSError):  # a payload can have laid anything there
                dump.unlink()
        return heard.reply(read_answer(call.answer, call.nonce) if call is not None else NoAnswer())


def _left_s(ends: float) -> float:
    return max(LEAST_S, ends - time.monotonic())
