"""What the rows of a run grant to a test's marker."""

from __future__ import annotations

from typing import Any

import pytest

from gpucheck.marker import Wanted, WrongMarkerError, refused


def row(probe: str, verdict: str = "ok", **gpu: Any) -> dict[str, Any]:
    """One row of a record; with ``gpu`` about one GPU."""
    subject = {"kind": "gpu", "details": gpu} if gpu else {"kind": "host", "details": {}}
    return {"probe": probe, "verdict": verdict, "subject": subject}


def gpu(verdict: str = "ok", capability: str | None = "9.0", memory_bytes: int | None = 80 << 30) -> dict[str, Any]:
    """A GPU as cuda-available judged it."""
    return row("cuda-available", verdict, capability=capability, memory_bytes=memory_bytes)


PROBES = ("cuda-available", "gpus-present")
MACHINE = [row("cuda-available"), gpu(), gpu("degraded"), gpu("bad"), gpu(capability="8.0", memory_bytes=40 << 30)]


@pytest.mark.parametrize(
    ("wanted", "usable"),
    [
        ({"gpus": 3}, None),
        ({"gpus": 4}, 3),
        ({"gpus": 3, "capability": "8.9"}, 2),
        ({"capability": "10.0"}, 0),
        ({"memory_gb": 80}, None),
        ({"memory_gb": 90}, 0),
        ({"gpus": 3, "memory_gb": 40}, None),
        ({"gpus": 0}, None),
        ({}, None),
    ],
)
def test_gpus(wanted: dict[str, Any], usable: int | None) -> None:
    """Only GPUs on which cuda-available is good count; 10.0 is more than 9.0."""
    reason = refused(Wanted.parse((), wanted, PROBES), MACHINE)
    assert reason is None if usable is None else str(reason).endswith(f"wanted, {usable} usable")


def test_what_a_gpu_does_not_tell_is_not_granted() -> None:
    """Unknown memory or capability is less than any that is asked for."""
    silent = [gpu(capability=None, memory_bytes=None)]
    assert refused(Wanted.parse((), {"gpus": 1}, PROBES), silent) is None
    assert refused(Wanted.parse((), {"memory_gb": 1}, PROBES), silent)
    assert refused(Wanted.parse((), {"capability": "3.0"}, PROBES), silent)


def test_a_probe_must_be_good_on_each_subject() -> None:
    """One GPU's ok does not hide another's bad, in whichever order they come."""
    for rows in (MACHINE, MACHINE[::-1]):
        assert (
            refused(Wanted.parse((), {"probes": ["cuda-available"]}, PROBES), rows) == "gpucheck: cuda-available is bad"
        )


@pytest.mark.parametrize(
    "wrong",
    [
        {"gpus": -1},
        {"gpus": True},
        {"gpus": 1.5},
        {"memory_gb": "80"},
        {"memory_gb": 0},
        {"capability": "9"},
        {"probes": "cuda-available"},
        {"probes": [1]},
        {"probes": ["cuda-availabel"]},
        {"gpu": 1},
    ],
)
def test_a_wrong_value_is_named(wrong: dict[str, Any]) -> None:
    """The text has the name, and the value where the name is right."""
    with pytest.raises(WrongMarkerError, match=next(iter(wrong))):
        Wanted.parse((), wrong, PROBES)
