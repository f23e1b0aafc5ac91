"""Run a payload or a command to a deadline that we own, and say how it ended: as data, never as an exception.

Each child runs under a small supervisor (``payload/supervisor.py``) that kills its whole family when our end of a
socket closes, so that nothing survives us, however we end. *Warm* children are forked from a server that has imported
the heavy libraries; *cold* ones start a fresh interpreter.
"""

from __future__ import annotations

import base64
import json
import re
import secrets
import select
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpucheck import redact, scratch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

PAYLOADS = Path(__file__).parent / "payload"
ANSWER_LIMIT_BYTES = 1 << 20
DUMP_GRACE_S = 0.4
KILL_GRACE_S = 4.0
WARM_START_S = 90.0
_REFUSED = "gpucheck-refused: "
_REFUSED_STATUS = 120
_OWN_FRAME = re.compile(r"/gpucheck/(payload|envelope)/(envelope|supervisor|warm)\.py")
_FRAMES = 24


@dataclass(frozen=True, slots=True)
class Value:
    """The payload returned this."""

    value: Any = field(repr=False)


@dataclass(frozen=True, slots=True)
class Failure:
    """The payload raised: the exception's type, its text, its traceback."""

    type: str
    text: str
    trace: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """The payload ended, or was ended, before it answered."""


@dataclass(frozen=True, slots=True)
class Garbage:
    """What lies where the answer should be is not one."""

    text: str


@dataclass(frozen=True, slots=True)
class TooMuch:
    """The answer is larger than an answer may be."""

    size_bytes: int


Answer = Value | Failure | NoAnswer | Garbage | TooMuch


@dataclass(frozen=True, slots=True)
class Ended:
    """How a child ended.

    ``kind``: exit, signal, deadline (we killed it), refused (it could not be set up), abandoned (it did not die of
    SIGKILL: state D), lost (its supervisor died), oom (the kernel killed it for want of memory).
    """

    kind: str
    code: int | None = None
    signal: str | None = None
    where: tuple[str, ...] = ()

    def __str__(self) -> str:
        """One phrase for people."""
        return {
            "exit": f"exit {self.code}",
            "signal": f"killed by {self.signal}",
            "deadline": "did not end in time and was killed",
            "refused": "could not be set up here",
            "abandoned": "did not die when killed (uninterruptible sleep) and was left",
            "lost": "its supervisor died",
            "oom": "killed by the kernel for want of memory (OOM)",
        }[self.kind]


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back: the answer, how it ended, head and tail of its streams (redacted), seconds, processes left."""

    answer: Answer
    ended: Ended
    output: str = field(default="", repr=False)
    errors: str = field(default="", repr=False)
    duration_s: float = 0.0
    left: tuple[str, ...] = ()

    @property
    def hung(self) -> bool:
        """Whether it was ended by our deadline."""
        return self.ended.kind in ("deadline", "abandoned")

    @property
    def refusal(self) -> str | None:
        """Why the child could not be set up (namespace, limits), in the kernel's words."""
        if self.ended.kind != "refused":
            return None
        return (self.errors.partition(_REFUSED)[2].strip().splitlines() or ["no reason given"])[0]


class Conversation:
    """One request to one supervisor: send it, wait to the deadline, read the report."""

    def __init__(self, conn: socket.socket, request: Mapping[str, Any]) -> None:
        self.conn = conn
        self.buffer = b""
        conn.settimeout(10)
        conn.sendall(json.dumps(request).encode() + b"\n")

    def report(self, timeout_s: float, tick: Callable[[], None] = lambda: None) -> dict[str, Any] | None:
        """The supervisor's report; None when it is not there in time. ``tick`` is called about ten times a second."""
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
                    return {"lost": True}
                self.buffer += chunk
            tick()
        report: dict[str, Any] = json.loads(self.buffer)
        return report

    def say(self, word: str) -> None:
        """Send ``dump`` or ``kill``; a supervisor that is gone needs neither."""
        try:
            self.conn.sendall(word.encode())
        except OSError:
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


def _supervisor(conn: socket.socket, env: Mapping[str, str], also: Iterable[int] = ()) -> subprocess.Popen[bytes]:
    # -S -s -E: neither site-packages nor the user's PYTHON* variables are any business of the supervisor.
    argv = [sys.executable, "-B", "-S", "-s", "-E", str(PAYLOADS / "supervisor.py"), str(conn.fileno())]
    return _start(argv, (conn.fileno(), *also), env)


class Follow:
    """Passes on each whole line that somebody appends to a file."""

    def __init__(self, path: Path, tell: Callable[[str], None]) -> None:
        self.path = path
        self.tell = tell
        self.seen = 0

    def tick(self) -> None:
        """Look for new lines."""
        try:
            with self.path.open("rb") as stream:
                stream.seek(self.seen)
                fresh = stream.read()
        except OSError:
            return
        whole = fresh[: fresh.rfind(b"\n") + 1]
        self.seen += len(whole)
        for line in whole.decode(errors="replace").splitlines():
            self.tell(line)


class WarmServer:
    """A process of ``python`` that has imported ``preload`` and forks a child a payload."""

    def __init__(self, python: str, preload: Sequence[str], env: Mapping[str, str]) -> None:
        self.why = ""
        self.control, theirs = socket.socketpair()
        self.watch, watched = socket.socketpair()
        self.process = _supervisor(watched, env, also=(theirs.fileno(),))
        argv = [python, "-B", str(PAYLOADS / "warm.py"), str(theirs.fileno()), *preload]
        self.talk = Conversation(self.watch, {"argv": argv, "env": dict(env), "close_fds": [theirs.fileno()]})
        theirs.close()
        watched.close()

    def ready(self, timeout_s: float) -> bool:
        """Whether the libraries are imported; waits for it once."""
        if self.why or not select.select([self.control], [], [], timeout_s)[0]:
            self.why = self.why or f"not ready in {timeout_s:.0f} s"
            return False
        if not self.control.recv(64, socket.MSG_PEEK):
            self.why = "it died while importing"
            return False
        return True

    def connect(self) -> socket.socket | None:
        """A connection to a supervisor forked from the server; None when the server is gone."""
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
        _wait(self.process)


def _wait(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(KILL_GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()


def read_answer(path: Path, nonce: str) -> Answer:
    """The envelope at ``path``, told apart from nothing, from too much, and from what is no envelope of ours."""
    try:
        size_bytes = path.stat().st_size
        if size_bytes > ANSWER_LIMIT_BYTES:
            return TooMuch(size_bytes)
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return NoAnswer()
    try:
        envelope = json.loads(text)
        if envelope["gpucheck"] != nonce:
            return Garbage(redact.redact(text[:200]))
        if "value" in envelope:
            return Value(envelope["value"])
        failure = envelope["failure"]
        return Failure(failure["type"], redact.redact(failure["text"]), redact.redact(failure["trace"]))
    except (ValueError, KeyError, TypeError):
        return Garbage(redact.redact(text[:200]))


def _ended(report: Mapping[str, Any], where: tuple[str, ...], errors: str, *, timed_out: bool) -> Ended:
    if report.get("survivors"):
        return Ended("abandoned", where=where + tuple(report["survivors"]))
    if timed_out:
        return Ended("deadline", where=where)
    status = report.get("status")
    if status is None:
        return Ended("lost", where=where)
    if (status & 0x7F) == 0:
        code = status >> 8
        refused = code == _REFUSED_STATUS and _REFUSED in errors
        return Ended("refused" if refused else "exit", code=code)
    return Ended("signal", signal=signal_name(status & 0x7F))


def signal_name(number: int) -> str:
    """``SIGBUS`` for 7."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _text(encoded: str) -> str:
    return redact.redact(base64.b64decode(encoded).decode(errors="replace"))


def frames(dump: Path) -> list[str]:
    """The innermost frames of a dumped stack, without our own at its bottom, which say nothing about where it hung."""
    lines = [line.strip() for line in dump.read_text(errors="replace").splitlines()]
    return [redact.redact(line) for line in lines if line and not _OWN_FRAME.search(line)][:_FRAMES]


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
        process = _supervisor(theirs, self.env)
        theirs.close()
        try:
            return self._converse(ours, request, deadline_s, follow)
        finally:
            _wait(process)

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
        for dump in sorted((self.folder / "stacks").iterdir()):
            lines += [f"pid {dump.name}: {line}" for line in frames(dump)]
        return tuple(redact.redact(line) for line in lines)

    def _reply(self, report: Mapping[str, Any], where: tuple[str, ...], answer: Answer, *, timed_out: bool) -> Reply:
        errors = _text(report.get("errors", ""))
        for dump in (self.folder / "stacks").iterdir():
            dump.unlink()
        return Reply(
            answer=answer,
            ended=_ended(report, where, errors, timed_out=timed_out),
            output=_text(report.get("output", "")),
            errors=errors,
            duration_s=float(report.get("duration_s", 0.0)),
            left=tuple(report.get("left") or ()),
        )
