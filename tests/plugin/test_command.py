"""``gpucheck run`` and ``gpucheck list``: the same run without a pytest session."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = (sys.executable, "-m", "gpucheck")


def gpucheck(*args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run it."""
    return subprocess.run([*COMMAND, *args], capture_output=True, text=True, timeout=120, cwd=cwd, check=False)


def test_a_selection_that_pytest_refuses(tmp_path: Path) -> None:
    """Status 4, the reason in a line, and a record that was closed: the run did not die."""
    record = tmp_path / "r.jsonl"
    ran = gpucheck("run", "--level=quick", "-k", "a b", f"--record={record}", cwd=tmp_path)
    assert ran.returncode == 4, ran.stdout + ran.stderr
    assert "Wrong expression passed to '-k': a b" in ran.stderr
    last = json.loads(record.read_text().splitlines()[-1])
    assert (last["kind"], last["exit"]) == ("summary", 4)


def test_the_help_says_what_the_plugins_help_says(tmp_path: Path) -> None:
    """One wording for both ways in."""
    assert "judge this Python without installing into it" in gpucheck("run", "--help", cwd=tmp_path).stdout


def test_a_reader_that_has_seen_enough(tmp_path: Path) -> None:
    """A closed pipe ends the talk; it is no bug of ours and no status of its own."""
    for what in ("--pitfalls", "--faults"):
        read, write = os.pipe()
        os.close(read)
        ran = subprocess.run([*COMMAND, "list", what], stdout=write, stderr=subprocess.PIPE, timeout=60, check=False)
        os.close(write)
        assert (ran.returncode, ran.stderr) == (0, b"")


def test_gpus_that_were_here_last_night_are_missed(tmp_path: Path) -> None:
    """The last record that saw GPUs on this machine expects them; a profile that says otherwise settles it."""
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}

    def status(*args: str) -> tuple[int, str]:
        command = [*COMMAND, "run", "--level=quick", "-k", "gpus-present", *args]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=False)
        return ran.returncode, ran.stdout

    assert status()[0] == 5
    (record,) = (tmp_path / "gpucheck").glob("*.jsonl")
    rows = [json.loads(line) for line in record.read_text().splitlines()]
    if rows[0]["machine"]["container"] != "none" or rows[0]["machine"]["scheduler"]:
        pytest.skip("inside a container or a job nothing is expected by what was seen before")
    row = next(row for row in rows if row["kind"] == "result")
    row |= {"verdict": "ok", "measures": {"gpus": 8}}
    record.write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, said = status()
    assert code == 1, said
    assert "the last run here that saw all its GPUs: 8" in " ".join(said.split())
    profile = tmp_path / "node.toml"
    profile.write_text("[expect]\ngpus = 0\n")
    assert status(f"--profile={profile}")[0] == 5


def test_a_full_disk_behind_the_output_is_no_bug_of_ours(tmp_path: Path) -> None:
    """The run goes on, and its status stands."""
    with open("/dev/full", "w") as full:
        command = [*COMMAND, "list"]
        ran = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, timeout=60, cwd=tmp_path, check=False)
    assert (ran.returncode, ran.stderr) == (0, b"")


def test_a_relative_record_in_a_folder_that_is_gone(tmp_path: Path) -> None:
    """A usage error, with what would do."""
    gone = tmp_path / "gone"
    gone.mkdir()
    script = f"cd {gone} && rmdir {gone} && exec {sys.executable} -m gpucheck run --record=r.jsonl"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = ["sh", "-c", script]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=False)
    assert ran.returncode == 4
    assert "the current folder is gone; name a whole path" in ran.stderr
