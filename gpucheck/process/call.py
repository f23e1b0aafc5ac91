"""A payload that is to run once, as its supervisor is told of it: forked from the warm server, or in a fresh Python."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpucheck.process.supervised import PAYLOADS

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Call:
    """A payload, its arguments and what is its own around it; ``folder`` is the run's, ``nonce`` marks the answer.

    ``env`` adds variables (None: removes), ``shm_bytes`` is the size of a /dev/shm of its own, ``limits`` are resource
    limits by lower-case name.
    """

    path: str
    args: Mapping[str, Any]
    nonce: str
    folder: Path
    env: Mapping[str, str | None] = field(default_factory=dict, repr=False)
    shm_bytes: int | None = None
    limits: Mapping[str, int] = field(default_factory=dict)

    @property
    def answer(self) -> Path:
        """Where its envelope will lie."""
        return self.folder / "answers" / self.nonce

    @property
    def progress(self) -> Path:
        """Where it writes how far it is."""
        return Path(f"{self.answer}.progress")

    def warm_request(self) -> dict[str, Any]:
        """For a supervisor that was forked from the warm server, and runs the payload in a fork of its own."""
        own = {**self.env, "GPUCHECK_PROGRESS": str(self.progress)}
        return self._surroundings() | {
            "payload": self.path,
            "args": dict(self.args),
            "nonce": self.nonce,
            "answer": str(self.answer),
            "env": {name: value for name, value in own.items() if value is not None},
            "unset": [name for name, value in own.items() if value is None],
        }

    def cold_request(self, python: str, env: Mapping[str, str]) -> dict[str, Any]:
        """For a supervisor that starts ``python``, whose variables are ``env`` and the call's own."""
        arguments = Path(f"{self.answer}.args")
        arguments.write_text(json.dumps(dict(self.args)))
        sent = (self.path, f"@{arguments}", self.nonce, str(self.answer))
        own = {**self.env, "GPUCHECK_PROGRESS": str(self.progress)}
        return self._surroundings() | {
            "argv": [python, "-B", str(PAYLOADS / "envelope.py"), *sent],
            "env": merged(env, own),
        }

    def _surroundings(self) -> dict[str, Any]:
        return {"shm_bytes": self.shm_bytes, "limits": dict(self.limits), "cwd": str(self.folder / "tmp")}


def merged(env: Mapping[str, str], own: Mapping[str, str | None]) -> dict[str, str]:
    """An environment with variables of one's own; None removes one."""
    return {name: value for name, value in {**env, **own}.items() if value is not None}
