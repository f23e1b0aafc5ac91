"""The clean-up behind a run: it takes what it can, says what it could not, and ends within its bound."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from gpucheck import cleanup, engine, owner, scratch
from gpucheck.payload import family
from gpucheck.process.supervised import KILL_GRACE_S

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def a_run_that_used_an_engine(folder: Path) -> owner.Owner:
    """A run's folder as it is when the run ends; nobody listens at the engine's address."""
    who = owner.this_run()
    (folder / "owner.json").write_text(json.dumps(who.labels()))
    (folder / cleanup.ENGINE_USED).write_text(f"unix://{folder}/none.sock")
    return who


def test_a_clean_up_that_breaks_says_why(tmp_path: Path) -> None:
    """What its child complained about last stands in the line about it: here, that its folder is no run's."""
    who = a_run_that_used_an_engine(tmp_path)
    (tmp_path / "owner.json").write_text("{}")
    (line,) = cleanup.conclude(who, tmp_path)
    assert line == f"unknown: the clean-up ended with 1: {tmp_path}/owner.json names no run"


def test_an_engine_that_is_gone_is_named_and_the_folder_goes_all_the_same() -> None:
    """What the engine may still hold is one line; what lies here is removed."""
    with scratch.folder(owner.this_run()) as folder:
        who = a_run_that_used_an_engine(folder)
        (line,) = cleanup.conclude(who, folder)
        assert line.startswith("the engine could not be asked to remove what this run made")
        assert not folder.exists()


def test_files_of_the_operators_folder_are_no_modules_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A json.py where the operator stands must not break the clean-up, which would leave containers."""
    for name in ("json", "runpy", "signal", "gpucheck"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('not this one')")
    monkeypatch.chdir(tmp_path)
    with scratch.folder(owner.this_run()) as folder:
        (line,) = cleanup.conclude(a_run_that_used_an_engine(folder), folder)
    assert line.startswith("the engine could not be asked to remove what this run made")


def test_a_clean_up_that_breaks_in_the_middle_still_removes_the_folder(tmp_path: Path) -> None:
    """Whatever goes wrong on the way (here: the folder has lost its parts), the run's folder does not stay."""
    folder = tmp_path / "run"
    folder.mkdir()
    (line,) = cleanup.conclude(a_run_that_used_an_engine(folder), folder)
    assert "ended with 1: FileNotFoundError" in line
    assert not folder.exists()


def test_shared_memory_that_will_not_go_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name of ours that cannot be removed (here: a folder of that name) is left, named, and stops nothing."""
    who = owner.this_run()
    monkeypatch.setattr(cleanup, "SHM", tmp_path)
    for name in (f"{who.run}-a", f"{who.run}-b/inside"):
        (tmp_path / name).mkdir(parents=True) if "/" in name else (tmp_path / name).touch()
    (line,) = cleanup.clean(who, tmp_path)
    assert line == f"{tmp_path}/{who.run}-b: Is a directory"
    assert not (tmp_path / f"{who.run}-a").exists()


def test_two_looks_at_an_engine_that_does_not_answer_fit_into_the_bound() -> None:
    """A supervisor waits for the whole clean-up: two looks, each with two questions that end at their deadlines."""
    look_s = 2 * (engine.CALL_S + KILL_GRACE_S) + 2.0
    assert look_s < cleanup.LOOK_S
    assert 2 * look_s + cleanup.SETTLE_S < family.CLEAN_UP_S
