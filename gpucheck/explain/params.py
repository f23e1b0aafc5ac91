"""What a log, or a record's facts, say that a command can be filled with."""

from __future__ import annotations

import posixpath
import re
import shlex
from typing import TYPE_CHECKING

from gpucheck.architecture import Capability, Cuda, wheels_for

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpucheck.diagnose import Answer
    from gpucheck.facts import Facts

_DRIVER = re.compile(r"found version (\d{4,5})\)")
_CAPABILITY = re.compile(r"(?i:cuda|compute) capability (?:\(CC\) )?(?:sm_(\d{1,2})(\d)\b|(\d{1,2})\.(\d)\b)")
_FULL = re.compile(r"[Nn]o space left on device: '([^']+)'|'([^']+)'.{0,20}: [Nn]o space left on device")
_SLURM_JOB = re.compile(r"\bStepId=(\d+)|\bin step (\d+)\.|\*\*\* JOB (\d+) ON ")
# Torch 2.7 was the last one with wheels for CUDA 11; they are no series of today's, so `architecture` leaves them out.
_LAST_FOR_CUDA_11 = "cu118"


def params_of(answer: Answer, facts: Facts | None) -> dict[str, str]:
    """Placeholders of the commands of ``answer`` by name, as far as its lines tell them; ``facts`` for the rest."""
    lines = [place.text for place in answer.places]
    told = {
        "index": _index(_driver(lines, facts), _capability(lines)),
        "full_folder": _folder(lines),
        "slurm_job": _first(_SLURM_JOB, lines),
    }
    return {name: value for name, value in told.items() if value}


def _first(pattern: re.Pattern[str], lines: Iterable[str]) -> str:
    """What the first group of ``pattern`` that matched holds, in the first line that fits; else empty."""
    found = next(filter(None, map(pattern.search, lines)), None)
    return next(filter(None, found.groups()), "") if found else ""


def _folder(lines: Iterable[str]) -> str:
    """The folder of the file that did not fit on its disk, ready for a shell; empty where no line names one."""
    path = _first(_FULL, lines)
    return shlex.quote(posixpath.dirname(path) or ".") if path else ""


def _index(driver: Cuda | None, capability: Capability | None) -> str:
    """The folder of PyTorch's package index whose wheels this driver starts and this GPU runs; none: empty."""
    if driver is None and capability is None:
        return ""
    # Which processor it is no log tells; the series of both are the same but for the oldest GPUs, which only one has.
    devices = [capability] if capability else []
    fitting = wheels_for(*devices, machine="x86_64", driver=driver)
    if fitting:
        # An unknown driver is most likely to start the oldest.
        return fitting[0 if driver else -1].index
    return _LAST_FOR_CUDA_11 if driver and driver.major == Cuda(11, 8).major and not capability else ""


def _driver(lines: Iterable[str], facts: Facts | None) -> Cuda | None:
    for line in lines:
        if found := _DRIVER.search(line):
            return Cuda.of_driver(int(found[1]))
    known = facts.known("nvml.cuda_version") if facts is not None else None
    try:
        return Cuda.parse(known) if isinstance(known, str) else None
    except ValueError:
        return None


def _capability(lines: Iterable[str]) -> Capability | None:
    for line in lines:
        if found := _CAPABILITY.search(line):
            major, minor = (part for part in found.groups() if part is not None)
            return Capability(int(major), int(minor))
    return None
