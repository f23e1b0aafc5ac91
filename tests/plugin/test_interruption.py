"""Killed half-way, at any moment, a run leaves nothing behind and its record can be read."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import docker
import pytest

from gpucheck.payload import family

if TYPE_CHECKING:
    from tests.plugin.conftest import Bench

MOMENTS = 10
LONGEST_S = 6.0
PATIENCE_S = family.CLEAN_UP_S + 15  # what a supervisor gives the clean-up behind a killed run
# One of everything that could be left: a child with a daemon, shared memory, a namespace, a volume, a container.
BUSY = """
child("site_busy", {"seconds": 0.6}, deadline_s=10)
child("site_busy", {"seconds": 0.3}, deadline_s=10, shm_bytes=8 << 20)
child("site_busy", {"seconds": 0.2}, deadline_s=10, warm=False)
name, place = volume()
from gpucheck.engine import VolumeMount
container("site_busy", {"seconds": 1.0}, deadline_s=15, volumes=(VolumeMount(name, "/data"),))
report.saw("all of it")
"""
PAYLOAD = """
import os, time
from multiprocessing import shared_memory

def main(args):
    if os.fork() == 0:
        os.setsid()
        time.sleep(300)
        os._exit(0)
    path = "/dev/shm/gpucheck-" + os.environ["GPUCHECK_RUN"]
    open(path, "w").close()
    try:
        time.sleep(args["seconds"])
    finally:
        os.unlink(path)
"""


def arm(bench: Bench) -> None:
    """Add the busy probe and its payload."""
    bench.probe("site_busy", BUSY, mark='subject="host", level="quick", deadline_s=60')
    path = bench.probes / "test_site_busy.py"
    text = path.read_text().replace("(report, host, child, options)", "(report, child, container, volume)")
    payload = bench.probes / "payload" / "site_busy.py"
    payload.parent.mkdir()
    payload.write_text(PAYLOAD)
    path.write_text(text.replace('"site_busy", {', f'"{payload}", {{'))


def run_id(bench: Bench) -> str | None:
    """The id of the run that wrote the record, once it has."""
    try:
        return str(json.loads(bench.record.read_text().partition("\n")[0])["run"])
    except (OSError, ValueError):
        return None


def traces(docker_host: str, run: str) -> list[str]:
    """Everything of the run that is still there."""
    client = docker.DockerClient(base_url=docker_host)
    mark = {"label": f"gpucheck.run={run}"}
    left = [f"process {family.describe(pid)}" for pid in family.bearers(run)]
    left += [f"container {c['Id']}" for c in client.api.containers(all=True, filters=mark)]
    left += [f"volume {v['Name']}" for v in client.api.volumes(filters=mark)["Volumes"] or []]
    left += [f"image {i['Id']}" for i in client.api.images(filters=mark)]
    left += [str(p) for p in Path("/dev/shm").glob(f"*{run}*")]
    left += [str(p) for p in Path("/tmp").glob("gpucheck-run-*") if run in _marks(p)]
    client.close()
    return left


def _marks(folder: Path) -> str:
    try:
        return (folder / "owner.json").read_text()
    except OSError:
        return ""


def wait_for_nothing(docker_host: str, run: str) -> list[str]:
    """What is left when the clean-up has had its time."""
    end = time.monotonic() + PATIENCE_S
    while (left := traces(docker_host, run)) and time.monotonic() < end:
        time.sleep(0.2)
    return left


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda n: n.name)
def test_killed_at_ten_random_moments(bench: Bench, docker_host: str, number: signal.Signals) -> None:
    """After SIGKILL, SIGTERM or Ctrl-C at a random moment: nothing left, and a record of whole rows."""
    arm(bench)
    rng = random.Random(number)
    for moment in range(MOMENTS):
        bench.record.unlink(missing_ok=True)
        after_s = LONGEST_S * (moment + rng.random()) / MOMENTS
        process = subprocess.Popen(
            bench.command(keyword="site_busy"),
            cwd=bench.project,
            env={**os.environ, "DOCKER_HOST": docker_host},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        time.sleep(after_s)
        process.send_signal(number)
        status = process.wait(60)
        run = run_id(bench)
        if run is None:
            continue
        assert wait_for_nothing(docker_host, run) == [], f"{number.name} after {after_s:.2f} s"
        rows = [json.loads(line) for line in bench.record.read_text().splitlines()]
        if number is not signal.SIGKILL and status != 0:
            assert status in {2, -number}, f"{number.name} after {after_s:.2f} s"
            assert rows[-1]["kind"] == "summary"


def test_two_runs_at_once_do_not_touch_each_other(bench: Bench, docker_host: str, tmp_path: Path) -> None:
    """Two runs side by side both end ok, and neither sweeps what the other is using."""
    arm(bench)
    env = {**os.environ, "DOCKER_HOST": docker_host}
    records = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    processes = [
        subprocess.Popen(
            [*bench.command(keyword="site_busy"), f"--gpucheck-record={record}"],
            cwd=bench.project,
            env=env,
            stdout=subprocess.PIPE,
            text=True,
        )
        for record in records
    ]
    outputs = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], "\n".join(outputs)
    for record in records:
        assert wait_for_nothing(docker_host, json.loads(record.read_text().partition("\n")[0])["run"]) == []


def test_a_later_run_sweeps_what_a_dead_one_left(bench: Bench, docker_host: str) -> None:
    """Where even the supervisor was killed, the next run removes container, volume and folder of the dead one."""
    arm(bench)
    env = {**os.environ, "DOCKER_HOST": docker_host}
    process = subprocess.Popen(
        bench.command(keyword="site_busy"),
        cwd=bench.project,
        env=env,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    end = time.monotonic() + 30
    while time.monotonic() < end and not any("container" in t for t in traces(docker_host, run_id(bench) or "none")):
        time.sleep(0.05)
    dead = run_id(bench)
    assert dead
    for pid in (process.pid, *family.bearers(dead)):
        os.kill(pid, signal.SIGKILL)
    process.wait(30)
    family.kill(lambda: family.bearers(dead))
    assert any("container" in trace for trace in traces(docker_host, dead))
    bench.run(keyword="site_busy", env={"DOCKER_HOST": docker_host})
    assert traces(docker_host, dead) == []
