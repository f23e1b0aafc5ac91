"""What a census of `/dev/shm` means: a decision table, a row a test."""

from __future__ import annotations

from typing import Any

import pytest

from gpucheck.judgement.shm_need import MIB, Need
from gpucheck.judgement.shm_room import Room, judge, room_of
from gpucheck.verdict import Verdict

NEED = Need(2)
GIB = 1 << 30


def room(**changes: Any) -> Room:
    """A healthy tmpfs of 8 GiB, changed."""
    values: dict[str, Any] = {"filesystem": "tmpfs", "total_bytes": 8 * GIB, "free_bytes": 8 * GIB, "sees_all": True}
    return Room(**{**values, **changes})


NOTHING_FREE = {"free_bytes": 16 * MIB}
LITTER = {"leftovers": ("nccl-a", "torch_1_2_0", "nccl-b", "nccl-c"), "leftover_count": 60}

TABLE: list[tuple[str, dict[str, Any], bool, tuple[str, str, str] | None]] = [
    ("plenty", {}, False, None),
    ("exactly enough", {"free_bytes": NEED.total_bytes}, False, None),
    ("no limit", {"filesystem": "ramfs", "total_bytes": 0, "free_bytes": 0}, False, None),
    ("big and partly used by the living", {"free_bytes": 4 * GIB, "living_bytes": 4 * GIB}, False, None),
    ("no folder", {"filesystem": None}, False, ("shm-unusable", "bad", "high")),
    ("not writable", {"refused": "EACCES"}, False, ("shm-unusable", "bad", "high")),
    ("read-only", {"refused": "EROFS"}, True, ("shm-unusable", "bad", "high")),
    ("no inodes", {"refused": "ENOSPC"}, False, ("shm-full", "bad", "high")),
    ("on a disk", {"filesystem": "ext4"}, False, ("shm-unusable", "bad", "medium")),
    ("tiny host", {"total_bytes": 64 * MIB, "free_bytes": 64 * MIB}, False, ("shm-too-small", "bad", "high")),
    ("tiny container", {"total_bytes": 64 * MIB, "free_bytes": 64 * MIB}, True, ("shm-too-small", "degraded", "high")),
    ("full", NOTHING_FREE, False, ("shm-full", "bad", "high")),
    ("full in a container", NOTHING_FREE, True, ("shm-full", "bad", "high")),
    ("full of a running job", {**NOTHING_FREE, "living_bytes": 7 * GIB}, False, ("shm-full", "degraded", "high")),
    ("the dead hold it", {**NOTHING_FREE, **LITTER, "leftover_bytes": GIB}, False, ("shm-leftovers", "bad", "high")),
    (
        "the dead hold it, not all seen",
        {**NOTHING_FREE, **LITTER, "leftover_bytes": GIB, "sees_all": False},
        False,
        ("shm-leftovers", "bad", "medium"),
    ),
    ("the dead hold too little", {**NOTHING_FREE, **LITTER, "leftover_bytes": MIB}, False, ("shm-full", "bad", "high")),
    ("litter, but room", {**LITTER, "leftover_bytes": 30 * MIB}, False, None),
    ("a job's worth of litter", {**LITTER, "leftover_bytes": GIB}, False, ("shm-leftovers", "degraded", "high")),
]


@pytest.mark.parametrize(
    ("changes", "contained", "expected"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE]
)
def test_a_room_is_judged(
    changes: dict[str, Any],
    contained: bool,
    expected: tuple[str, str, str] | None,
) -> None:
    """Each kind of `/dev/shm` has one cause, and a healthy one has none."""
    found = judge(room(**changes), NEED, contained=contained)
    assert (found and (found.pitfall, found.weight.value, found.confidence)) == expected


def test_a_finding_says_how_large_the_need_is_and_how_to_ask_for_it() -> None:
    """The evidence carries size, need and the three flags."""
    found = judge(room(total_bytes=64 * MIB, free_bytes=60 * MIB), NEED, contained=False)
    assert found is not None
    text = "\n".join(found.evidence)
    assert "64.0 MiB" in text
    assert str(NEED) in text
    assert "--shm-size=256m" in text
    assert "sizeLimit: 256Mi" in text


def test_names_of_the_left_over_are_shown_and_the_rest_is_counted() -> None:
    """Three names, then how many more there are, also of those that the census did not list."""
    found = judge(room(**NOTHING_FREE, **LITTER, leftover_bytes=GIB), NEED, contained=False)
    assert found is not None
    assert found.evidence[-1].endswith("nccl-a, torch_1_2_0, nccl-b and 57 more")


def test_a_census_is_parsed() -> None:
    """What has no name counts as living, a read-only mount as refused."""
    census = {
        "filesystem": "tmpfs",
        "read_only": True,
        "refused": None,
        "total_bytes": 64 * MIB,
        "free_bytes": 40 * MIB,
        "unnamed_bytes": 4 * MIB,
        "bytes_by_state": {"held": MIB, "orphan": 0, "unknown": 0},
        "leftovers": [],
        "leftover_count": 0,
        "leftover_bytes": 0,
        "holders": ["python (pid 7)"],
        "sees_all": True,
    }
    parsed = room_of(census)
    assert parsed.living_bytes == 5 * MIB
    assert parsed.refused == "EROFS"
    assert "5.0 MiB held by running processes (python (pid 7))" in str(parsed)
    assert room_of({"filesystem": None}) == Room(None)
    with pytest.raises(KeyError):
        room_of({"filesystem": "tmpfs"})


def test_verdicts_are_of_the_enum() -> None:
    """A weight is a verdict, so that it can be compared."""
    found = judge(room(**NOTHING_FREE), NEED, contained=False)
    assert found is not None
    assert found.weight is Verdict.BAD
