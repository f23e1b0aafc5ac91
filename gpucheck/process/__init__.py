"""Run a payload or a command to a deadline that we own, and say how it ended: as data, never as an exception.

Each child runs under a small supervisor (``payload/supervisor.py``) that kills its whole family when our end of a
socket closes, so that nothing survives us, however we end. *Warm* children are forked from a server that has imported
the heavy libraries; *cold* ones start a fresh interpreter.
"""

from __future__ import annotations

import json
import secrets
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpucheck import redact, scratch
from gpucheck.process.deadline import Deadline
from gpucheck.process.once import Once
from gpucheck.process.reply import (
    Answer,
    Ended,
    Failure,
    Garbage,
    NoAnswer,
    Reply,
    TooMuch,
    Value,
    ended,
    frames,
    read_answer,
    signal_name,
    text_of,
)
from gpucheck.process.supervised import KILL_GRACE_S, PAYLOADS, Conversation, Follow, supervisor, wait
from gpucheck.process.warm import WarmServer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

DUMP_GRACE_S = 0.4
WARM_START_S = 90.0
__all__ = [
    "PAYLOADS",
    "Answer",
    "Children",
    "Deadline",
    "Ended",
    "Failure",
    "Follow",
    "Garbage",
    "NoAnswer",
    "Once",
    "Reply",
    "TooMuch",
    "Value",
    "frames",
    "read_answer",
    "signal_name",
]


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
        nonce = secrets.token_hex(8)
        answer = self.folder / "answers" / nonce
        request: dict[str, Any] = {
            "shm_bytes": shm_bytes,
            "limits": dict(limits or {}),
            "cwd": str(self.folder / "tmp"),
        }
        extra = {**(env or {}), "GPUCHECK_PROGRESS": str(answer) + ".progress"}
        begun = time.monotonic()
        conn = self._warm_connection(deadline_s) if warm else None
        left_s = max(1.0, deadline_s - (time.monotonic() - begun))
        if conn is not None:
            changes = {name: value for name, value in extra.items() if value is not None}
            unset = [name for name, value in extra.items() if value is None]
            request |= {"payload": path, "args": dict(args or {}), "nonce": nonce, "answer": str(answer)}
            request |= {"env": changes, "unset": unset}
            report, timed_out, where = self._converse(conn, request, left_s, self._follow(answer))
            if not report.get("refused"):
                return self._reply(report, where, read_answer(answer, nonce), timed_out=timed_out)
        arguments = self.folder / "answers" / f"{nonce}.args"
        arguments.write_text(json.dumps(dict(args or {})))
        argv = [self.python, "-B", str(PAYLOADS / "envelope.py"), path, f"@{arguments}", nonce, str(answer)]
        request |= {"argv": argv, "env": self._environment(extra)}
        report, timed_out, where = self._cold(request, left_s, self._follow(answer))
        return self._reply(report, where, read_answer(answer, nonce), timed_out=timed_out)

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
        request: dict[str, Any] = {"argv": list(argv), "env": self._environment(env or {})}
        request |= {"cwd": str(self.folder / "tmp"), "after": list(after)}
        report, timed_out, where = self._cold(request, deadline_s, follow)
        return self._reply(report, where, NoAnswer(), timed_out=timed_out)

    def _environment(self, extra: Mapping[str, str | None]) -> dict[str, str]:
        merged: dict[str, str | None] = {**self.env, **extra}
        return {name: value for name, value in merged.items() if value is not None}

    def _warm_connection(self, deadline_s: float) -> socket.socket | None:
        self.start_server()
        if self._server is None or not self._server.ready(min(deadline_s, WARM_START_S)):
            return None
        return self._server.connect()

    def _follow(self, answer: Path) -> Follow:
        return Follow(Path(f"{answer}.progress"), lambda line: self.progress(redact.redact(line)))

    def _cold(
        self, request: Mapping[str, Any], deadline_s: float, follow: Follow | None
    ) -> tuple[Any, bool, tuple[str, ...]]:
        ours, theirs = socket.socketpair()
        process = supervisor(theirs, self.env)
        theirs.close()
        try:
            return self._converse(ours, request, deadline_s, follow)
        finally:
            wait(process)

    def _converse(
        self, conn: socket.socket, request: Mapping[str, Any], deadline_s: float, follow: Follow | None
    ) -> tuple[dict[str, Any], bool, tuple[str, ...]]:
        with conn:
            talk = Conversation(conn, request)
            report = talk.report(deadline_s, follow.tick if follow else lambda: None)
            if report is not None:
                if follow:
                    follow.tick()
                return report, False, ()
            talk.say("dump")
            time.sleep(DUMP_GRACE_S)
            talk.say("kill")
            report = talk.report(KILL_GRACE_S) or {"lost": True, "survivors": ["supervisor did not answer"]}
        return report, True, self._where(report)

    def _where(self, report: Mapping[str, Any]) -> tuple[str, ...]:
        """Where the family hung: the kernel's words, then the innermost Python frames that were dumped."""
        lines = list(report.get("hung") or ())
        for dump in sorted((self.folder / "stacks").glob("*")):
            lines += [f"pid {dump.name}: {line}" for line in frames(dump)]
        return tuple(redact.redact(line) for line in lines)

    def _reply(self, report: Mapping[str, Any], where: tuple[str, ...], answer: Answer, *, timed_out: bool) -> Reply:
        errors = text_of(report.get("errors", ""))
        for dump in (self.folder / "stacks").glob("*"):
            dump.unlink(missing_ok=True)
        return Reply(
            answer=answer,
            ended=ended(report, where, errors, timed_out=timed_out),
            output=text_of(report.get("output", "")),
            errors=errors,
            duration_s=float(report.get("duration_s", 0.0)),
            left=tuple(report.get("left") or ()),
        )
