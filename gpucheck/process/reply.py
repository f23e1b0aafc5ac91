"""What comes back from a child, as data: the answer, how it ended, what it said. No exception says it."""

from __future__ import annotations

import base64
import json
import re
import signal
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from gpucheck import redact, regular

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

ANSWER_LIMIT_BYTES = 1 << 20
_REFUSED = "gpucheck-refused: "
_REFUSED_STATUS = 120
_OWN_FRAME = re.compile(r"/gpucheck/(payload|envelope)/(envelope|supervisor|warm)\.py")
_FRAMES = 24
_DUMP_BYTES = 1 << 20
_GARBAGE_SIZE = 200


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

    def __str__(self) -> str:
        return f"{self.type}: {self.text}"


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """The payload ended, or was ended, before it answered."""

    def __str__(self) -> str:
        return "no answer"


@dataclass(frozen=True, slots=True)
class Garbage:
    """What lies where the answer should be is not one."""

    text: str

    def __str__(self) -> str:
        return f"an answer that cannot be read ({self.text})"


@dataclass(frozen=True, slots=True)
class TooMuch:
    """The answer is larger than an answer may be."""

    size_bytes: int

    def __str__(self) -> str:
        return f"an answer of {self.size_bytes} bytes, of which at most {ANSWER_LIMIT_BYTES} are read"


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
    """What came back: the answer, how it ended, head and tail of its streams (redacted), seconds."""

    answer: Answer
    ended: Ended
    output: str = field(default="", repr=False)
    errors: str = field(default="", repr=False)
    duration_s: float = 0.0

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


def read_answer(path: Path, nonce: str) -> Answer:
    """The envelope at ``path``, told apart from nothing, from too much, and from what is no envelope of ours."""
    try:
        size_bytes = path.lstat().st_size
        if size_bytes > ANSWER_LIMIT_BYTES:
            return TooMuch(size_bytes)
        text = regular.read(path, ANSWER_LIMIT_BYTES).decode(errors="replace")
    except OSError:
        return NoAnswer()
    try:
        envelope = json.loads(text)
        if envelope["gpucheck"] != nonce:
            return _garbage(text)
        if "value" in envelope:
            return Value(envelope["value"])
        failure = envelope["failure"]
        return Failure(failure["type"], redact.redact(failure["text"]), redact.redact(failure["trace"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        return _garbage(text)


def _garbage(text: str) -> Garbage:
    return Garbage(redact.redact(text)[:_GARBAGE_SIZE])


@dataclass(frozen=True, slots=True)
class Heard:
    """What a supervisor reported; whether it did so at our deadline, and then where its family hung."""

    report: Mapping[str, Any] = field(repr=False)
    timed_out: bool = False
    where: tuple[str, ...] = ()

    @classmethod
    def unstarted(cls, error: OSError) -> Heard:
        """Of a child for which no supervisor could be started: too many processes, no memory."""
        said = f"{_REFUSED}{type(error).__name__}: {error}"
        return cls({"status": _REFUSED_STATUS << 8, "errors": base64.b64encode(said.encode()).decode()})

    def after(self, why: str) -> Heard:
        """The same; where it was ended by our deadline, with what had taken a part of its time."""
        return replace(self, where=(*self.where, why)) if self.timed_out and why else self

    def reply(self, answer: Answer) -> Reply:
        """The whole reply, with the answer that was found."""
        errors = text_of(self.report.get("errors", ""))
        return Reply(
            answer=answer,
            ended=self._ended(errors),
            output=text_of(self.report.get("output", "")),
            errors=errors,
            duration_s=float(self.report.get("duration_s", 0.0)),
        )

    def _ended(self, errors: str) -> Ended:
        if survivors := self.report.get("survivors"):
            return Ended("abandoned", where=(*self.where, *survivors))
        if self.timed_out:
            return Ended("deadline", where=self.where)
        status = self.report.get("status")
        if status is None:
            return Ended("lost", where=self.where)
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


def text_of(encoded: str) -> str:
    """A stream as the report carries it, as redacted text."""
    return redact.redact(base64.b64decode(encoded).decode(errors="replace"))


def frames(dump: Path) -> list[str]:
    """The innermost frames of a dumped stack, without our own at its bottom, which say nothing about where it hung."""
    try:
        text = regular.read(dump, _DUMP_BYTES).decode(errors="replace")
    except OSError:
        return []
    lines = [line.strip() for line in text.splitlines()]
    return [redact.redact(line) for line in lines if line and not _OWN_FRAME.search(line)][:_FRAMES]
