"""What somebody else laid where we look is neither waited for nor followed."""

from __future__ import annotations

import json
import os
import stat
from typing import TYPE_CHECKING

import pytest

from gpucheck import owner, record, regular, scratch
from gpucheck.process import Garbage, NoAnswer, frames, read_answer
from gpucheck.process.supervised import Follow
from gpucheck.run import expectations

if TYPE_CHECKING:
    from pathlib import Path

DEEP = "[" * 100_000


def lay(path: Path, what: str) -> None:
    """Something other than a file at ``path``."""
    if what == "pipe":
        os.mkfifo(path)
    elif what == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero" if what == "device" else "/etc/passwd")


TRAPS = pytest.mark.parametrize("what", ["pipe", "folder", "device", "link"])


@TRAPS
def test_only_a_regular_file_is_read(tmp_path: Path, what: str) -> None:
    """Everything else is an OSError at once."""
    lay(tmp_path / "x", what)
    with pytest.raises(OSError, match=r"."):
        regular.read(tmp_path / "x", 10)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes device nodes")
def test_a_device_is_not_read(tmp_path: Path) -> None:
    """One that gives bytes for ever, laid there by somebody who may."""
    os.mknod(tmp_path / "x", 0o600 | stat.S_IFCHR, os.makedev(1, 5))
    with pytest.raises(OSError, match=r"."):
        regular.read(tmp_path / "x", 10)


def test_no_more_is_read_than_is_meant(tmp_path: Path) -> None:
    """From where, and how much."""
    (tmp_path / "x").write_text("0123456789")
    assert regular.read(tmp_path / "x", 3, start=2) == b"234"


@TRAPS
def test_an_answer_that_is_no_file_is_none(tmp_path: Path, what: str) -> None:
    """A payload can neither hang the reader nor have a file of the host's read out."""
    lay(tmp_path / "answer", what)
    assert read_answer(tmp_path / "answer", "n") == NoAnswer()


def test_a_deep_answer_is_garbage(tmp_path: Path) -> None:
    """It is no reason to crash."""
    (tmp_path / "answer").write_text(DEEP)
    assert isinstance(read_answer(tmp_path / "answer", "n"), Garbage)


@TRAPS
def test_progress_and_stacks_that_are_no_files_tell_nothing(tmp_path: Path, what: str) -> None:
    """Nobody waits for them."""
    lay(tmp_path / "x", what)
    told: list[str] = []
    Follow(tmp_path / "x", told.append).tick()
    assert told == frames(tmp_path / "x") == []


@pytest.mark.parametrize("what", ["pipe", "folder", "link", "[]", "null", DEEP, '{"gpucheck.run": 1}'])
def test_a_strangers_folder_stops_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """Anybody can make a folder of our name in a shared temporary folder; it is left alone."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("gpucheck.scratch._LONGEST_FOLDER", 1000)  # a test's folder is longer than a run's may be
    marks = tmp_path / f"{scratch.PREFIX}x" / "owner.json"
    marks.parent.mkdir()
    if what in ("pipe", "folder", "link"):
        lay(marks, what)
    else:
        marks.write_text(what)
    assert scratch.sweep(owner.this_run()) == []


@pytest.mark.parametrize("what", ["pipe", "link", '{"gpus": 1', f'{{"gpus": 1, "x": {DEEP}', '{"gpus": 1e999}\n'])
def test_a_strangers_record_is_no_witness(tmp_path: Path, what: str) -> None:
    """Whatever lies among the records."""
    path = tmp_path / f"01A{record.SUFFIX}"
    if what in ("pipe", "link"):
        lay(path, what)
    else:
        path.write_text(what)
    assert expectations.of_last_record(tmp_path, {"id": "m1", "container": "none", "scheduler": None}) == []


def test_a_row_is_not_glued_to_a_torn_one(tmp_path: Path) -> None:
    """A run that died half-way in a row of a file that is used again costs that row, and no other."""
    path = tmp_path / "r.jsonl"
    path.write_text('{"kind": "run", "n": 1}\n{"kind": "resu')
    record.Record(path, "RUN").append("run", {"n": 2})
    assert [row["n"] for row in record.read(path)] == [1, 2]
    assert json.loads(path.read_text().splitlines()[-1])["run"] == "RUN"


def test_long_lines_and_many_are_all_told(tmp_path: Path) -> None:
    """More than is taken at one look comes with the next ones, the rest at the end; a line may be megabytes long."""
    path, told = tmp_path / "x", list[str]()
    follow = Follow(path, told.append)
    lines = ["x" * (3 << 20), *(str(n).rjust(1000) for n in range(9000)), "the last"]
    path.write_text("\n".join(lines))
    follow.tick()
    assert 0 < len(told) < len(lines) - 1
    follow.finish()
    assert told == lines[:-1]
    with path.open("a") as stream:
        stream.write("\n")
    follow.tick()
    assert told == lines
