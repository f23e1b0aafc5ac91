"""A payload's reply as a probe wants it: the value, or the verdict that its absence means."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from gpucheck.process import Failure, NoAnswer, Value
from gpucheck.verdict import Failed, Unable, Unexplained

if TYPE_CHECKING:
    from gpucheck.process import Reply

IMPORT_S = 45.0
KILLED = ("SIGKILL", "SIGTERM")
# In a traceback, or in a stack of faulthandler: the body of a module that is not ours, so it was being imported.
_IMPORTING = re.compile(r'^ *File "(?!.*/gpucheck/payload/)/[^"\n]+", line \d+,? in <module>', re.MULTILINE)
_IMPORT_ERRORS = ("ImportError", "ModuleNotFoundError")


def value_of(reply: Reply, what: str) -> Any:
    """The payload's value; ``what`` names what was asked.

    Raises Unable when the machine was in the way (refused, killed, out of memory, out of time), or when what is under
    test cannot be imported or ended the process; Failed when the payload failed in words that may say why.
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
        refuse_long_sockets(reply.answer.text)
        said = f"{reply.answer.type}: {reply.answer.text}"
        if reply.answer.type in _IMPORT_ERRORS or _IMPORTING.search(reply.answer.trace):
            raise Unable(f"{what}: {said}")
        raise Failed(f"{what}: {said}", f"{reply.answer.trace}\n{said}")
    how = died(reply)
    if how is not None and _IMPORTING.search(reply.errors):
        raise Unable(f"{what}: {how}, at an import")
    kind = Failed if how is None else Unexplained
    raise kind(f"{what}: {reply.answer}, {reply.ended}; {reply.errors.strip()[-300:]}", reply.errors)


def refuse_long_sockets(said: str) -> None:
    """Raises Unable where these are the words of a socket whose path, below TMPDIR, was too long."""
    if "AF_UNIX path too long" in said:
        raise Unable("a shorter path of the temporary folder (TMPDIR): sockets in it may have 107 characters")


def import_of_torch(child: Any) -> Any:
    """How `import torch` ends in a fresh process: what ``payload/import_probe.py`` says. Raises as ``value_of``."""
    return value_of(child("import_probe", {"limit_s": IMPORT_S}, warm=False), "import torch")


def died(reply: Reply) -> str | None:
    """How the code in a child ended the process before it could answer; None where it did not, or somebody else did."""
    if not isinstance(reply.answer, NoAnswer) or reply.ended.signal in KILLED:
        return None
    return str(reply.ended) if reply.ended.kind in ("exit", "signal") else None
