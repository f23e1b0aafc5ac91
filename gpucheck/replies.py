"""A payload's reply as a probe wants it: the value, or the verdict that its absence means."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpucheck.process import Failure, NoAnswer, Value
from gpucheck.verdict import Failed, Unable

if TYPE_CHECKING:
    from gpucheck.process import Reply

KILLED = ("SIGKILL", "SIGTERM")


def value_of(reply: Reply, what: str) -> Any:
    """The payload's value; ``what`` names what was asked.

    Raises Unable when the machine was in the way (refused, killed, out of memory, out of time), Failed when the payload
    failed in words that may say why.
    """
    if isinstance(reply.answer, Value):
        return reply.answer.value
    if reply.refusal:
        raise Unable(f"{what}: {reply.refusal}")
    if reply.hung:
        raise Unable(f"{what}: {reply.ended}", *reply.ended.where[-3:])
    if reply.ended.kind == "oom" or reply.ended.signal in KILLED:
        raise Unable(f"{what}: {reply.ended}")
    if isinstance(reply.answer, Failure):
        if reply.answer.type == "MemoryError":
            raise Unable(f"{what}: out of memory")
        said = f"{reply.answer.type}: {reply.answer.text}"
        raise Failed(f"{what}: {said}", f"{reply.answer.trace}\n{said}")
    raise Failed(f"{what}: {reply.answer}, {reply.ended}; {reply.errors.strip()[-300:]}", reply.errors)


def died(reply: Reply) -> str | None:
    """How the code in a child ended the process before it could answer; None where it did not, or somebody else did."""
    if not isinstance(reply.answer, NoAnswer) or reply.ended.signal in KILLED:
        return None
    return str(reply.ended) if reply.ended.kind in ("exit", "signal") else None
