"""Who expects GPUs here beside what the facts of the machine say: the profile, and the last record that saw some."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from gpucheck import record, regular
from gpucheck.facts import Expectation
from gpucheck.judgement.presence import PROBE

if TYPE_CHECKING:
    from pathlib import Path

    from gpucheck.profile import Options

# A run of a hundred that saw none must not cost a hundred records' worth of JSON.
_RECORD_BYTES = 8 << 20
_SAW_SOME = re.compile(r'"gpus": [1-9]')


def of(options: Options, machine: dict[str, Any]) -> list[Expectation]:
    """The profile's where it says a number, which settles it; else the last record's."""
    gpus = options.profile.expect.get("gpus")
    if gpus is not None:
        return [Expectation(f"the profile {options.profile.path}", gpus)] if gpus else []
    return [] if options["rehearse"] else of_last_record(record.state_folder(), machine)


def of_last_record(folder: Path, machine: dict[str, Any]) -> list[Expectation]:
    """What this machine had when all its GPUs were last seen. A container or a job may be given another part of it."""
    if machine["container"] != "none" or machine["scheduler"] or not machine["id"]:
        return []
    for path in record.newest(folder):
        try:
            text = regular.read(path, _RECORD_BYTES, ours=True).decode(errors="replace")
            count = _seen(text, machine) if _SAW_SOME.search(text) else 0
        except (OSError, ArithmeticError, LookupError, RecursionError, TypeError, ValueError, AttributeError):
            continue  # somebody else's file, or a torn one, is no witness
        if count:
            return [Expectation(f"the record of {path.stem}, the last run here that saw all its GPUs", count)]
    return []


def _seen(text: str, machine: dict[str, Any]) -> int:
    rows = [json.loads(line) for line in text.splitlines()]
    if any(rows[0]["machine"][name] != machine[name] for name in ("id", "container", "scheduler")):
        return 0
    # A run that missed some is no measure: what was lost would be expected no more on the second night.
    good = (row for row in rows if row["kind"] == "result" and row["probe"] == PROBE and row["verdict"] == "ok")
    return int(next((row["measures"]["gpus"] for row in good), 0))
