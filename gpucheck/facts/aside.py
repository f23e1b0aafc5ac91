"""Questions asked in a child, because their answer may never come: a driver that hangs, a resolver, a judged Python.

A child that does not end by its deadline is killed; one that cannot be killed (state D) is left, never waited for.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpucheck.facts.fact import Json, Unknown
from gpucheck.payload import bounded
from gpucheck.redact import redact

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpucheck.facts.tree import Tree
    from gpucheck.payload.bounded import Said

_PAYLOADS: Final = Path(__file__).parents[1] / "payload"
# What a site's customisation prints comes before it, and nothing after it: see the envelope.
_ENVELOPE_START: Final = '{\n "gpucheck"'
# For payloads that need the standard library alone: no site-packages, none of the user's variables, less time.
_ISOLATED: Final = ("-I", "-S")


def ending(said: Said) -> str:
    """How a child ended, and the last line of what it complained about, for people."""
    last = redact(said.errors.strip().splitlines()[-1])[:300] if said.errors.strip() else ""
    how = "hang" if said.code is None else f"signal {-said.code}" if said.code < 0 else f"exit {said.code}"
    return f"{how}: {last}" if last else how


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
    said = bounded.run(argv, deadline_s, dict(tree.environ))
    start = said.output.rfind(_ENVELOPE_START)
    if said.code != 0 or start < 0:
        raise Unknown(python[0], ending(said))
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
