"""A machine in a bad way: full disk, full shared memory, a state folder that takes nothing, another user, secrets."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.plugin.conftest import Bench

ROOT = Path(__file__).parents[2]
TOKEN = "hf_" + "Q7x" * 12
LEAKY = """
import os, sys
reply = child("leaky", {"token": TOKEN}, deadline_s=10)
print(TOKEN, file=sys.stderr)
report.saw(f"the child said {reply.output} and {reply.errors} and {reply.answer}")
raise RuntimeError(f"with {TOKEN} in it")
"""
LEAKY_PAYLOAD = """
import sys
def main(args):
    print("Authorization: Bearer " + args["token"])
    print("https://user:" + args["token"] + "@proxy:3128", file=sys.stderr)
    raise ValueError("token=" + args["token"])
"""
needs_namespaces = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("unshare"), reason="mounting needs root and unshare"
)


def in_namespace(bench: Bench, setup: str, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the bench's command in a mount namespace of its own, after ``setup``."""
    script = f"{setup} && exec {shlex.join(bench.command(*args))}"
    return subprocess.run(
        ["unshare", "-m", "sh", "-c", script],
        cwd=bench.project,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@needs_namespaces
def test_full_disk(bench: Bench) -> None:
    """With no room for a temporary folder the run says so and what to set, and is undecided; nothing raises."""
    full = "mount -t tmpfs -o size=4k none {0} && head -c 4096 /dev/zero > {0}/fill"
    root = shlex.quote(str(ROOT))
    # The checkout itself may lie below one of the folders that are covered.
    keep, back = f"mount --bind {root} /media", f"mkdir -p {root} && mount --bind /media {root}"
    steps = [keep, *(full.format(place) for place in ("/tmp", "/var/tmp", "/mnt")), back, "cd /mnt"]
    setup = " && ".join(steps)
    command = [sys.executable, "-m", "gpucheck", "run", "--level=quick", "--record=/dev/null"]
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", f"{setup} && exec {shlex.join(command)}"],
        env={**os.environ, "TMPDIR": "/mnt", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 10, done.stdout + done.stderr
    assert "no place to work" in done.stdout
    assert "TMPDIR" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


@needs_namespaces
def test_record_on_a_full_disk(bench: Bench) -> None:
    """A row that the disk does not take goes to stderr, no half row stays, and the run is undecided at best."""
    bench.probe("site_ok", "report.saw('x' * 3000)")
    kept = bench.project / "kept.jsonl"
    setup = "mount -t tmpfs -o size=8k none /mnt && head -c 4096 /dev/zero > /mnt/fill"
    run = shlex.join(bench.command("--gpucheck-record=/mnt/r.jsonl"))
    command = f"{setup} && {run}; s=$?; cp /mnt/r.jsonl {kept}; exit $s"
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", command],
        cwd=bench.project,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 10, done.stdout + done.stderr
    assert "the record could not be written" in done.stdout
    lines = [*kept.read_text().splitlines(), *(line for line in done.stderr.splitlines() if line.startswith("{"))]
    assert {json.loads(line)["kind"] for line in lines} == {"run", "plan", "start", "result", "summary"}


@needs_namespaces
def test_state_folder_that_is_read_only(bench: Bench) -> None:
    """The same for a state folder that is read-only."""
    bench.probe("site_ok", "report.saw('x')")
    setup = "mount -t tmpfs none /mnt && mkdir /mnt/state && mount -o remount,ro /mnt"
    done = in_namespace(bench, setup, "--gpucheck-record=/mnt/state/r.jsonl")
    assert done.returncode == 10, done.stdout + done.stderr
    assert "Read-only file system" in done.stdout


@needs_namespaces
def test_full_shared_memory(bench: Bench) -> None:
    """A full /dev/shm keeps no probe from running."""
    bench.probe("site_ok", "report.saw('x')")
    done = in_namespace(bench, "mount -t tmpfs -o size=4k none /dev/shm && head -c 4096 /dev/zero > /dev/shm/fill")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("setpriv"), reason="becoming another user needs root, setpriv"
)
def test_another_user() -> None:
    """An ordinary user gets verdicts too."""
    drop = ["setpriv", "--reuid=1000", "--regid=1000", "--clear-groups"]
    itself = "import gpucheck.run, subprocess, sys; subprocess.check_call([sys.executable, '-c', 'pass'])"
    if subprocess.run([*drop, sys.executable, "-c", itself], capture_output=True, check=False).returncode:
        pytest.skip("this Python, or gpucheck, lies where another user may not go")
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        bench.probe("site_ok", "report.saw(str(child('here', {'path': '/etc/passwd'}, deadline_s=20).answer))")
        for path in (bench.project, bench.probes, Path(folder)):
            path.chmod(0o777)
        env = {**os.environ, "HOME": folder, "TMPDIR": folder}
        command = [*drop, *bench.command("-p", "no:cacheprovider")]
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("style", [[], ["-l", "--tb=long"], ["-rA", "-vv", "--junit-xml=j.xml"]], ids=str)
def test_planted_token_appears_nowhere(bench: Bench, style: list[str]) -> None:
    """A token in the environment, in a child's output, in an exception and in a URL is in no output and no record."""
    bench.probe("site_leaky", LEAKY.replace("TOKEN", repr(TOKEN)))
    payload = bench.probes / "leaky.py"
    payload.write_text(LEAKY_PAYLOAD)
    path = bench.probes / "test_site_leaky.py"
    path.write_text(path.read_text().replace('"leaky"', repr(str(payload))))
    secrets = {"HF_TOKEN": TOKEN, "WANDB_API_KEY": TOKEN, "https_proxy": f"http://me:{TOKEN}@proxy:3128"}
    ran = bench.run(*style, env=secrets)
    assert ran.verdicts == {"site-leaky": "checker-error"}, ran.out
    written = [ran.out, ran.err, ran.record.read_text()]
    written += [p.read_text() for p in bench.project.glob("*.xml")]
    assert not any(TOKEN in text for text in written)


def test_nothing_is_written_beside_the_record(bench: Bench) -> None:
    """A run leaves no .pyc, no cache and no file in the user's folder, in the package or in the temporary folder."""
    bench.probe("site_ok", "report.saw(str(child('here', {'path': '/etc/hostname'}, deadline_s=20).answer))")
    watched = [Path(__file__).parents[2] / "gpucheck", bench.probes]
    before = {p for root in watched for p in root.rglob("*")}
    ran = bench.run("-p", "no:cacheprovider", env={"PYTHONDONTWRITEBYTECODE": "1"})
    assert ran.status == 0, ran.out
    assert {p for root in watched for p in root.rglob("*")} == before
    assert list(bench.project.iterdir()) == []
    run = ran.rows[0]["run"]
    left = [
        p
        for p in Path("/tmp").glob("gpucheck-run-*")
        if (p / "owner.json").exists() and run in (p / "owner.json").read_text()
    ]
    assert left == []


@pytest.mark.parametrize("script", ["sleep 1000", "exec yes"])
def test_a_judged_python_without_an_answer_leaves_the_other_facts(bench: Bench, tmp_path: Path, script: str) -> None:
    """Within half of a small budget it is given up, the machine's own facts are in the record, and probes still run."""
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    bench.probe("site_ok", "report.saw('looked')")
    ran = bench.run(f"--gpucheck-python={python}", "--gpucheck-budget=12")
    assert ran.verdicts == {"site-ok": "ok"}, ran.out
    facts = ran.rows[0]["facts"]
    assert facts["machine.kernel"]["value"]
    assert facts["python.version"]["why"]
