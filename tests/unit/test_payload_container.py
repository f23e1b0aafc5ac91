"""What the payload in a GPU container makes of an nvidia-smi that does not end."""

from __future__ import annotations

import importlib
import os
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from gpucheck.process import PAYLOADS

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The payload's question to an ``nvidia-smi`` that is this script, within half a second."""
    monkeypatch.syspath_prepend(str(PAYLOADS))
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    payload = importlib.import_module("gpu_in_container")

    def ask(script: str) -> Any:
        program = tmp_path / "nvidia-smi"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        return payload.smi(0.5)

    return ask


def test_what_it_says_is_passed_on(smi: Any) -> None:
    """Its status and both of its streams."""
    assert smi("echo GPU 0; echo trouble >&2; exit 6") == {"code": 6, "output": "GPU 0\ntrouble\n"}


def test_one_that_never_ends_costs_only_its_own_answer(smi: Any) -> None:
    """It is killed; a process of its that holds its pipes, as one in the driver does, is not waited for."""
    begun = time.monotonic()
    said = smi(f"setsid {sys.executable} -S -c 'import time; time.sleep(20)' & sleep 30")
    assert said == {"code": None, "output": "no end within 0.5 s"}
    assert time.monotonic() - begun < 8
