"""The last record that saw GPUs expects them on this machine again."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from gpucheck import profile, record
from gpucheck.run import expectations

if TYPE_CHECKING:
    from pathlib import Path

MACHINE = {"id": "m1", "container": "none", "scheduler": None}


def keep(folder: Path, name: str, gpus: int, verdict: str = "ok", **machine: Any) -> None:
    """A record of a run that saw so many GPUs."""
    measures = {"gpus": gpus} if gpus else {}
    rows = [
        {"kind": "run", "machine": MACHINE | machine},
        {"kind": "result", "probe": "a-sites-own", "verdict": "ok", "measures": {"gpus": 99}},
        {"kind": "result", "probe": "gpus-present", "verdict": verdict, "measures": measures},
    ]
    (folder / f"{name}{record.SUFFIX}").write_text("".join(json.dumps(row) + "\n" for row in rows))


def told(folder: Path, **machine: Any) -> list[tuple[str, int | None]]:
    """Who expects how many."""
    return [(e.who, e.count) for e in expectations.of_last_record(folder, MACHINE | machine)]


def test_the_newest_that_saw_some_counts(tmp_path: Path) -> None:
    """A run that saw none, or missed one, does not lower it: a lost GPU would not be missed on the second night."""
    keep(tmp_path, "01A", 4)
    keep(tmp_path, "01B", 8)
    keep(tmp_path, "01C", 7, "bad")
    keep(tmp_path, "01D", 0, "bad")
    assert told(tmp_path) == [("the record of 01B, the last run here that saw all its GPUs", 8)]


def test_another_machines_record_says_nothing(tmp_path: Path) -> None:
    """A home that nodes share holds the records of all of them."""
    keep(tmp_path, "01A", 8, id="m2")
    assert told(tmp_path) == []


def test_a_container_or_a_job_may_have_been_given_less(tmp_path: Path) -> None:
    """Neither what they see nor what was seen in one is compared with the whole machine."""
    keep(tmp_path, "01A", 8)
    keep(tmp_path, "01B", 2, scheduler=["slurm", "77"])
    assert told(tmp_path, container="docker") == told(tmp_path, scheduler=["slurm", "78"]) == []
    assert told(tmp_path)[0][1] == 8


def test_a_rehearsal_is_no_witness(tmp_path: Path) -> None:
    """What was played was not there."""
    keep(tmp_path, f"{record.REHEARSAL}01A", 8)
    assert told(tmp_path) == []


def test_a_torn_record_is_no_witness(tmp_path: Path) -> None:
    """A file that is no record is passed over."""
    keep(tmp_path, "01A", 8)
    (tmp_path / f"01B{record.SUFFIX}").write_text('{"gpus": 4')
    assert told(tmp_path)[0][1] == 8


def test_the_profile_settles_it(tmp_path: Path) -> None:
    """An operator who took the GPUs out says so, and is believed."""
    path = tmp_path / "node.toml"
    path.write_text("[expect]\ngpus = 0\n")
    assert expectations.of(profile.resolve({"profile": str(path)}), MACHINE) == []
