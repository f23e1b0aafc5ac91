"""A payload's reply as a probe wants it: the value, or the verdict that its absence means."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpucheck.process import Failure, Value
from gpucheck.verdict import Bug, Unable

if TYPE_CHECKING:
    from gpucheck.process import Reply

KILLED = ("SIGKILL", "SIGTERM")


def value_of(reply: Reply, what: str) -> Any:
    """The payload's value; ``what`` names what was asked.

    Raises Unable when the machine was in the way (refused, killed, out of memory, out of time) and Bug when we were.
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
        raise Bug(f"{what}: {reply.answer.type}: {reply.answer.text}")
    raise Bug(f"{what}: {reply.answer}, {reply.ended}; {reply.errors.strip()[-300:]}")
