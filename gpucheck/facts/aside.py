"""Questions asked in a child, because their answer may never come: a driver that hangs, a resolver, a judged Python.

A child that does not end by its deadline is killed; one that cannot be killed (state D) is left, never waited for.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
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
        last = redact(self.errors.strip().splitlines()[-1][:300]) if self.errors.strip() else ""
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
    try:
        output, errors = process.communicate(timeout=deadline_s)
    except subprocess.TimeoutExpired:
        return _give_up(process)
    return Said(output.decode(errors="replace"), errors.decode(errors="replace"), process.returncode)


def _give_up(process: subprocess.Popen[bytes]) -> Said:
    try:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=_KILL_GRACE_S)
    except (ProcessLookupError, subprocess.TimeoutExpired):
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
        # Without a status the object would complain when it is collected; nobody will ever wait for this process.
        process.returncode = -signal.SIGKILL
    return Said("", "", None)


def ask_payload(tree: Tree, python: str, payload: str, args: Mapping[str, Json]) -> Json:
    """What ``main(args)`` of ``payload`` returned under ``python``.

    Raises Unknown with how the child ended when it gave no answer, RuntimeError when the payload itself broke.
    """
    return _answer(tree, [python], payload, args, tree.deadline_s)


def ask_own(tree: Tree, payload: str, args: Mapping[str, Json], deadline_s: float) -> Json:
    """The same for a payload that needs nothing but our own Python's standard library."""
    return _answer(tree, [sys.executable, *_ISOLATED], payload, args, min(deadline_s, tree.deadline_s))


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
        found = ask_own(tree, "read_files", {"paths": paths}, tree.deadline_s)
    except Unknown as unknown:
        raise Unknown(names[0], unknown.why) from unknown
    return {name: found[path] for name, path in zip(names, paths, strict=True)}
