"""The record: whole rows, whatever happens to the disk or the process."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from gpucheck import record
from gpucheck.verdict import Because, Finding, NotRun, Result, Subject, Verdict

if TYPE_CHECKING:
    from pathlib import Path

RESULT = Result(
    probe="a-probe",
    title="a title",
    subject=Subject("gpu", "GPU-1", "GPU 0", {"pci": "0000:01:00.0"}),
    verdict=Verdict.BAD,
    evidence=("seen",),
    findings=(Finding("shm-too-small", Verdict.BAD, ("64m",), {"shm_need": "2g"}, "medium", "known"),),
    measures={"epoch_s": 1.5},
    limits={"epoch_s": {"value": 2, "from": "the profile"}},
    legs=("one",),
    not_run=(NotRun("two", "no engine"),),
    because=Because("fact", 1, "a file"),
    lacking=("x",),
    blocked_by="another",
    started="2026-01-01T00:00:00.000Z",
    duration_s=1.0,
    rehearsal="hang",
)


def test_result_round_trip() -> None:
    """A result survives the way through a row."""
    assert record.result_of(json.loads(json.dumps(record.result_row(RESULT)))) == RESULT


def test_torn_last_line_is_dropped(tmp_path: Path) -> None:
    """A record that was cut off in the middle of a row is read up to that row."""
    path = tmp_path / "r.jsonl"
    book = record.Record(path, "RUN")
    book.append("run", {"a": 1})
    book.append("summary", {"b": 2})
    path.write_text(path.read_text()[:-5])
    assert [row["kind"] for row in record.read(path)] == ["run"]


def test_broken_row_in_the_middle_is_an_error(tmp_path: Path) -> None:
    """A broken row elsewhere is no record of ours: the error names file and line."""
    path = tmp_path / "r.jsonl"
    path.write_text('{"kind": "run"}\nnonsense\n{"kind": "summary"}\n')
    with pytest.raises(ValueError, match=r"r\.jsonl, line 2"):
        record.read(path)


def test_unwritable_file_sends_rows_to_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where the file takes nothing, the row is not lost, and the reason is kept."""
    (tmp_path / "file").write_text("")
    book = record.Record(tmp_path / "file" / "r.jsonl", "RUN")
    book.append("run", {"a": 1})
    assert json.loads(capsys.readouterr().err)["a"] == 1
    assert book.error is not None
    assert "r.jsonl" in book.error


def test_unknown_keys_are_kept(tmp_path: Path) -> None:
    """A reader keeps keys that it does not know."""
    path = tmp_path / "r.jsonl"
    path.write_text('{"kind": "run", "from_the_future": [1]}\n')
    assert record.read(path)[0]["from_the_future"] == [1]


def test_secrets_are_masked_in_every_row(tmp_path: Path) -> None:
    """No string of a row, however deep, keeps a token."""
    token = "ghp_" + "a1B2" * 9
    path = tmp_path / "r.jsonl"
    record.Record(path, "RUN").append("result", {"evidence": [f"Bearer {token}"], "facts": {"x": {"value": token}}})
    assert token not in path.read_text()


def test_newest_records_are_kept(tmp_path: Path) -> None:
    """Pruning keeps the newest, by run id."""
    for name in "CABD":
        (tmp_path / f"{name}.jsonl").write_text("")
    record.prune(tmp_path, keep=2)
    assert sorted(p.stem for p in tmp_path.iterdir()) == ["C", "D"]
