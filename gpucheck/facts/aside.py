"""Questions asked in a child, because their answer may never come: a driver that hangs, a resolver, a judged Python.

A child that does not end by its deadline is killed; one that cannot be killed (state D) is left, never waited for.
"""

from __future__ import annotations

import json
import math
import os
import selectors
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpucheck.facts.fact import Json, Unknown
from gpucheck.redact import redact

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpucheck.facts.tree import Tree

_PAYLOADS: Final = Path(__file__).parents[1] / "payload"
_KILL_GRACE_S: Final = 1.0
_CHUNK_BYTES: Final = 1 << 16
# An answer is a hundred kilobytes; a child that prints without end must not fill our memory.
_MOST_BYTES: Final = 4 << 20
# The envelope is the last thing that a payload's child prints; libraries may have printed before it.
_ENVELOPE_START: Final = '{\n "gpucheck"'
# For payloads that need the standard library alone: no site-packages, none of the user's variables, less time.
_ISOLATED: Final = ("-I", "-S")


@dataclass(frozen=True, slots=True)
class Said:
    """What a child printed and how it ended: ``code`` below zero is a signal, None that it hung and was killed."""

    output: str = field(repr=False)
    errors: str = field(repr=False)
    code: int | None

    @property
    def ending(self) -> str:
        """How it ended, and the last line of what it complained about, for people."""
        last = redact(self.errors.strip().splitlines()[-1])[:300] if self.errors.strip() else ""
        how = "hang" if self.code is None else f"signal {-self.code}" if self.code < 0 else f"exit {self.code}"
        return f"{how}: {last}" if last else how


def ask(argv: Sequence[str], deadline_s: float, environ: Mapping[str, str]) -> Said:
    """Run ``argv`` and return by ``deadline_s`` and a second, whatever it does. Raises OSError when it cannot start."""
    process = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=dict(environ),
        start_new_session=True,
    )
    ends = time.monotonic() + deadline_s
    try:
        output, errors = _listen(process, ends)
        process.wait(max(0.0, ends - time.monotonic()))
    except subprocess.TimeoutExpired:
        _kill(process)
        return Said("", "", None)
    except _Flood:
        _kill(process)
        return Said("", f"killed, because it printed more than {_MOST_BYTES >> 20} MiB", -signal.SIGKILL)
    finally:
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
    return Said(output.decode(errors="replace"), errors.decode(errors="replace"), process.returncode)


class _Flood(Exception):
    """A child prints more than anybody would read."""


def _listen(process: subprocess.Popen[bytes], ends: float) -> tuple[bytearray, bytearray]:
    """What a child prints to the end of its streams. Raises TimeoutExpired and _Flood."""
    heard = bytearray(), bytearray()
    with selectors.DefaultSelector() as waiting:
        for stream, text in zip((process.stdout, process.stderr), heard, strict=True):
            if stream is not None:
                waiting.register(stream, selectors.EVENT_READ, text)
        while waiting.get_map():
            left_s = ends - time.monotonic()
            if left_s <= 0 or not (ready := waiting.select(left_s)):
                raise subprocess.TimeoutExpired(process.args, left_s)
            for key, _ in ready:
                chunk = os.read(key.fd, _CHUNK_BYTES)
                key.data.extend(chunk)
                if not chunk:
                    waiting.unregister(key.fileobj)
            if sum(map(len, heard)) > _MOST_BYTES:
                raise _Flood
    return heard


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    try:
        process.wait(_KILL_GRACE_S)
    except subprocess.TimeoutExpired:
        # Without a status the object would complain when it is collected; nobody will ever wait for this process.
        process.returncode = -signal.SIGKILL


def ask_payload(tree: Tree, python: str, payload: str, args: Mapping[str, Json], deadline_s: float = math.inf) -> Json:
    """What ``main(args)`` of ``payload`` returned under ``python``, by ``deadline_s`` or as the tree has time.

    Raises Unknown with how the child ended when it gave no answer, RuntimeError when the payload itself broke.
    """
    return _answer(tree, [python], payload, args, tree.left_s(deadline_s))


def ask_own(tree: Tree, payload: str, args: Mapping[str, Json], deadline_s: float = math.inf) -> Json:
    """The same for a payload that needs nothing but our own Python's standard library."""
    return _answer(tree, [sys.executable, *_ISOLATED], payload, args, tree.left_s(deadline_s))


def _answer(tree: Tree, python: Sequence[str], payload: str, args: Mapping[str, Json], deadline_s: float) -> Json:
    argv = [*python, "-B", str(_PAYLOADS / "envelope.py"), str(_PAYLOADS / f"{payload}.py"), json.dumps(args)]
    said = ask(argv, deadline_s, tree.environ)
    start = said.output.rfind(_ENVELOPE_START)
    if said.code != 0 or start < 0:
        raise Unknown(python[0], said.ending)
    envelope = json.loads(said.output[start:])
    if "failure" in envelope:
        message = redact(f"payload {payload}: {envelope['failure']['type']}: {envelope['failure']['text']}")
        raise RuntimeError(message)
    return envelope["value"]


def files(tree: Tree, names: Sequence[str]) -> dict[str, str | None]:
    """The texts of files that a driver or a server answers for; None where there is none. Raises Unknown on a hang."""
    paths = [str(tree.path(name)) for name in names]
    try:
        found = ask_own(tree, "read_files", {"paths": paths})
    except Unknown as unknown:
        raise Unknown(names[0], unknown.why) from unknown
    return {name: found[path] for name, path in zip(names, paths, strict=True)}
