"""A site's own probes bring their payloads and their pitfalls; a user's own code is judged only when it is named."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING

import pytest

import gpucheck

if TYPE_CHECKING:
    from tests.plugin.conftest import Bench

PITFALL = """
[scratch-not-mounted]
headline = "The scratch file system of {site} is not mounted"
wrong_guess = "A slow disk."
cause = "The automounter does not know this node."
remedy = "Ask the storage team."
commands = ["mount /scratch/{site}"]
safety = "needs-root"
"""
DATASET = """
    import pathlib

    WORDS = pathlib.Path("words.txt").read_text().split()

    class Words:
        def __len__(self):
            return len(WORDS)

        def __getitem__(self, index):
            return WORDS[index]

    class Broken(Words):
        def __init__(self):
            self.transform = lambda word: word
    """

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed here")


def test_a_sites_pitfall_has_its_words(bench: Bench) -> None:
    """`DIR/*.toml` is loaded beside our own entries; placeholders are filled."""
    bench.probe("site_scratch", "report.bad('scratch-not-mounted', 'no /scratch', site='halle')")
    (bench.probes / "ours.toml").write_text(PITFALL)
    ran = bench.run("--gpucheck-lang=en")
    assert ran.status == 1
    assert "The scratch file system of halle is not mounted" in ran.out
    (result,) = [row for row in ran.rows if row["kind"] == "result"]
    assert result["findings"][0]["commands"] == ["mount /scratch/halle"]


def test_a_pitfall_that_nobody_knows_is_a_checker_error(bench: Bench) -> None:
    """A finding without words is the probe's mistake."""
    bench.probe("site_scratch", "report.bad('scratch-not-mounted', 'no /scratch', site='halle')")
    ran = bench.run()
    assert (ran.status, ran.verdicts) == (10, {"site-scratch": "checker-error"})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (PITFALL.replace("scratch-not-mounted", "shm-full"), "ours.toml: [shm-full] is an entry of gpucheck's own"),
        (PITFALL.replace('cause = "', 'reason = "'), "has the unknown key 'reason'"),
        ("[scratch", "ours.toml: not TOML"),
    ],
)
def test_a_sites_pitfall_that_cannot_be_read(bench: Bench, text: str, words: str) -> None:
    """One usage error with folder, file, entry and what is allowed."""
    bench.probe("site_ok", "report.saw('x')")
    (bench.probes / "ours.toml").write_text(text)
    ran = bench.run()
    assert ran.status == 4, ran.out
    assert words in ran.out + ran.err
    assert str(bench.probes) in ran.out + ran.err
    assert "Traceback" not in ran.out + ran.err


def test_a_sites_payload_lies_beside_its_probe(bench: Bench) -> None:
    """`child("name")` runs the file of that name in the probe's folder, in the judged Python."""
    bench.probe("site_scratch", "report.saw(child('scratch_usage', {'limit': 3}, deadline_s=20).answer.value)")
    payload = """
        import os

        import envelope

        def main(args):
            envelope.progress("looking")
            return f"limit {args['limit']}, looked in a process of its own: {os.environ['GPUCHECK_RUN'] != ''}"
        """
    (bench.probes / "scratch_usage.py").write_text(dedent(payload))
    ran = bench.run()
    (result,) = [row for row in ran.rows if row["kind"] == "result"]
    assert result["evidence"] == ["limit 3, looked in a process of its own: True"], result


def test_one_of_our_payloads_serves_a_site_too(bench: Bench) -> None:
    """Where no file of that name lies beside the probe it is one of ours."""
    bench.probe("site_name", "report.saw(str(child('resolve_name', {'names': ['localhost']}).ended.kind))")
    assert bench.run().verdicts == {"site-name": "ok"}


def test_unasked_own_code_is_not_there(bench: Bench) -> None:
    """Without the options neither probe is planned, left out, or mentioned."""
    ran = bench.run("--gpucheck-level=deep", keyword="dataset_spawn or model_exports")
    (plan,) = [row for row in ran.rows if row["kind"] == "plan"]
    assert (plan["items"], plan["left_out"]) == ([], [])
    assert ran.status == 5


@needs_torch
def test_a_users_dataset(bench: Bench) -> None:
    """It is found from the folder in which pytest was started, reads its files there, and is the row's subject."""
    bench.write(mine_py=DATASET, words_txt="one two three four", conftest_py="raise SystemExit('not to be imported')")
    asked = ["--gpucheck-level=default", "--gpucheck-dataset=mine:Words"]
    ran = bench.run(*asked, keyword="dataset_spawn")
    (result,) = [row for row in ran.rows if row["kind"] == "result"]
    assert (result["probe"], result["verdict"]) == ("dataset-spawn-safe", "ok"), result
    assert result["subject"] == {"kind": "dataset", "id": "mine:Words", "label": "mine:Words", "details": {}}
    assert ran.status == 0
    assert not list(bench.project.rglob("mine*.pyc"))


@needs_torch
def test_a_users_broken_dataset(bench: Bench) -> None:
    """The finding closes the gate in front of the user's tests, and its command names their folder."""
    bench.write(mine_py=DATASET, words_txt="one two three four", test_mine_py="def test_mine(): pass")
    asked = ["--gpucheck-level=default", "--gpucheck-dataset=mine:Broken", "-rs"]
    ran = bench.run(*asked, "test_mine.py", keyword="dataset_spawn or mine")
    assert ran.status == 1
    assert "gpucheck: dataset-spawn-safe is bad on this machine" in ran.out
    assert "dataset.transform" in ran.out
    assert "-c 'import pickle, mine; pickle.dumps(mine.Broken())'" in ran.out


LENT = """
import importlib.util, os

def main(args):
    return [importlib.util.find_spec("lent_by_gpucheck") is not None, os.environ.get("PYTHONPATH")]
"""


def test_what_is_installed_beside_gpucheck_is_not_lent_to_the_judged_python(bench: Bench, tmp_path: Path) -> None:
    """A torch in gpucheck's own environment is none in the one that is judged: no path of ours reaches its children."""
    place = tmp_path / "site-packages"
    place.mkdir()
    shutil.copytree(Path(gpucheck.__file__).parent, place / "gpucheck", ignore=shutil.ignore_patterns("__pycache__"))
    (place / "lent_by_gpucheck.py").write_text("")
    bench.probe("site_lent", 'report.saw(child("lent", {}, deadline_s=20, warm=False).answer.value)')
    (bench.probes / "lent.py").write_text(LENT)
    args = ["run", "-k", "site_lent", "--level=quick", f"--probes={bench.probes}", f"--record={bench.record}"]
    code = f"import sys; sys.path.insert(0, {str(place)!r}); from gpucheck.__main__ import main; sys.exit(main({args}))"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-c", code]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, cwd="/", check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    rows = [json.loads(line) for line in bench.record.read_text().splitlines()]
    evidence = next(row["evidence"] for row in rows if row["kind"] == "result")
    assert evidence == ["[False, None]"]
