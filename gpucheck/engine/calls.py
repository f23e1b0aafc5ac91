"""One question to an engine, asked in a child that can be killed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpucheck import redact
from gpucheck.process import Failure, Value
from gpucheck.verdict import Bug, Unable, Unexplained

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpucheck.process import Children, Reply


class Refused(Unexplained):
    """The engine answered and said no: ``text`` is its own words, which may say why."""

    def __init__(self, url: str, op: str, text: str) -> None:
        super().__init__(f"the engine at {url} refused ({op}): {text}", text)

    def __str__(self) -> str:
        """The refusal alone."""
        return self.what


def why(reply: Reply) -> str:
    """What came instead of an answer: the payload's failure, or how its process ended."""
    answer = reply.answer
    return f"{answer.type}: {answer.text}" if isinstance(answer, Failure) else str(reply.ended)


def call(calls: Children, url: str, op: str, deadline_s: float, args: Mapping[str, Any]) -> Any:
    """What the engine at ``url`` answers. Raises Refused with its words, Unable when it did not answer in time."""
    where = redact.redact(url)
    reply = calls.run("engine_call", {"op": op, "url": url, **args}, deadline_s=deadline_s)
    if isinstance(reply.answer, Value):
        said = reply.answer.value
        if "value" in said:
            return said["value"]
        if "refused" in said:
            raise Refused(where, op, redact.redact(said["refused"]))
        raise Unable(f"an answer of the engine at {where}: {redact.redact(said['unreachable'])}")
    if reply.hung:
        raise Unable(f"an answer of the engine at {where} within {deadline_s:.0f} s ({op})")
    raise Bug(f"the engine's child, {op}: {why(reply)}; {reply.errors[-300:]}")
