"""An engine that is absent, refused, silent, dripping or elsewhere: the verdict, in time, in words that say which."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fakes.door import Door
    from tests.plugin.conftest import Bench, Ran

BOX = """
reply = container("here", {"path": "/gpucheck/envelope/here.py"}, deadline_s=20)
report.saw(str(reply.answer))
"""
DIGEST = "registry.example:5000/team/app@sha256:" + "0" * 64
FULL = "--gpucheck-level=default"


@pytest.fixture
def box(bench: Bench) -> Bench:
    """A bench whose only probe runs a container."""
    bench.probe("site_box", BOX)
    path = bench.probes / "test_site_box.py"
    path.write_text(path.read_text().replace("(report, host, child, options)", "(report, container)"))
    return bench


VOLUME = """
name, _ = volume()
report.saw(name)
"""
# The engine is open and the volume there; then the probe's time passes.
LATE = """
import time
name, _ = volume()
time.sleep(container.deadline.left_s())
container("here", {"path": "/gpucheck/envelope/here.py"})
"""


def volume_probe(bench: Bench, name: str, body: str, deadline_s: int = 60) -> None:
    """A probe of that name which makes a volume."""
    bench.probe(name, body, f'subject="engine", level="quick", deadline_s={deadline_s}')
    path = bench.probes / f"test_{name}.py"
    path.write_text(path.read_text().replace("(report, host, child, options)", "(report, container, volume)"))


def volumes(ran: Ran, docker_host: str) -> list[Any]:
    """What volumes of that run are left."""
    client = pytest.importorskip("docker").DockerClient(base_url=docker_host)
    try:
        return list(client.volumes.list(filters={"label": f"gpucheck.run={ran.rows[0]['run']}"}))
    finally:
        client.close()


@pytest.fixture
def listener(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[str]:
    """A socket that accepts and then says nothing, or one byte a second."""
    path = str(tmp_path_factory.mktemp("sock") / "s")
    server = socket.socket(socket.AF_UNIX)
    server.bind(path)
    server.listen(8)
    over = threading.Event()

    def serve() -> None:
        kept = []
        server.settimeout(0.2)
        answer = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9999\r\n\r\n" + b" " * 9999
        while not over.is_set():
            with contextlib.suppress(TimeoutError):
                kept.append((server.accept()[0], iter(answer)))
            if request.param == "dripping":
                for conn, rest in kept:
                    try:
                        conn.send(bytes([next(rest)]))
                    except OSError:
                        continue
                time.sleep(0.8)
        for conn, _ in kept:
            conn.close()

    thread = threading.Thread(target=serve)
    thread.start()
    yield f"unix://{path}"
    over.set()
    thread.join()
    server.close()


def unable(ran: Ran) -> None:
    """The run was undecided because the engine could not be asked."""
    assert ran.verdicts == {"site-box": "unable"}, ran.out
    assert ran.status == 10


def test_healthy(box: Bench, docker_host: str) -> None:
    """With an engine that answers, the container leg runs."""
    ran = box.run(env={"DOCKER_HOST": docker_host})
    assert ran.verdicts == {"site-box": "ok"}, ran.out
    assert ran.status == 0


def test_refused(box: Bench, tmp_path: Path) -> None:
    """A socket with nobody behind it: unable, with the system's word for it."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
    ran = box.run(env={"DOCKER_HOST": f"unix://{tmp_path}/s"})
    unable(ran)
    assert "refused" in ran.out
    assert "Error(" not in ran.out  # in the system's words, not the SDK's


@pytest.mark.parametrize("listener", ["silent", "dripping"], indirect=True)
def test_silent_or_dripping(box: Bench, listener: str) -> None:
    """An engine that accepts and never finishes an answer is unable within our deadline, not the SDK's."""
    began = time.monotonic()
    ran = box.run(env={"DOCKER_HOST": listener})
    unable(ran)
    assert "within 10 s (hello)" in " ".join(ran.out.split())
    assert time.monotonic() - began < 45


def test_a_probe_without_time_left_is_unable_and_leaves_no_volume(bench: Bench, docker_host: str) -> None:
    """That its time is over is the verdict, not an error of ours at the removal of its volume, which takes place."""
    volume_probe(bench, "site_late", LATE, deadline_s=6)
    ran = bench.run(env={"DOCKER_HOST": docker_host})
    assert ran.verdicts == {"site-late": "unable"}, ran.out
    assert "time: the probe's deadline" in " ".join(ran.out.split())
    assert volumes(ran, docker_host) == []


def test_an_engine_slow_at_removing_costs_no_verdict(bench: Bench, door: Door, docker_host: str) -> None:
    """Neither the probe's own, nor those of later probes; the run's clean-up removes what stayed."""
    door.slow("DELETE .*/volumes/", 60, times=1)
    volume_probe(bench, "site_a", VOLUME)
    volume_probe(bench, "site_b", VOLUME)
    ran = bench.run(env={"DOCKER_HOST": door.url})
    assert ran.verdicts == {"site-a": "ok", "site-b": "ok"}, ran.out
    assert ran.status == 0, ran.out
    assert volumes(ran, docker_host) == []


def test_a_refusal_that_nobody_knows_is_the_engines(bench: Bench, door: Door) -> None:
    """It is told in its own words as what was missing, and never as a mistake of ours."""
    door.refuse("POST .*/volumes/create", "authorization denied by plugin opa: not on Mondays", 403)
    volume_probe(bench, "site_volume", VOLUME)
    ran = bench.run(env={"DOCKER_HOST": door.url})
    assert ran.verdicts == {"site-volume": "unable"}, ran.out
    assert "denied by plugin opa: not on Mondays" in " ".join(ran.out.split())
    assert ran.status == 10


def test_a_refusal_that_is_known_is_a_finding(box: Bench, door: Door) -> None:
    """The knowledge base is asked about the engine's words: a full disk beneath its images."""
    door.refuse("POST .*/images/create", "write /var/lib/docker/tmp/layer: no space left on device")
    ran = box.run(env={"DOCKER_HOST": door.url})
    assert ran.verdicts == {"site-box": "bad"}, ran.out
    assert "disk-full" in ran.out


def test_absent_socket_of_an_asked_for_address(box: Bench) -> None:
    """DOCKER_HOST that names nothing is unable: somebody expects an engine there."""
    unable(box.run(env={"DOCKER_HOST": "unix:///nonexistent/docker.sock"}))


def test_switched_off(box: Bench, docker_host: str) -> None:
    """``--gpucheck-engine none`` rules containers out by the operator's word."""
    ran = box.run("--gpucheck-engine=none", env={"DOCKER_HOST": docker_host})
    assert ran.verdicts == {"site-box": "not-applicable"}
    assert "no container engine wanted" in ran.out
    assert ran.status == 5


def test_asked_for_and_not_installed(box: Bench) -> None:
    """``--gpucheck-engine podman`` on a machine without podman is a finding."""
    if shutil.which("podman"):
        pytest.skip("podman is installed here")
    ran = box.run("--gpucheck-engine=podman", env={"CONTAINER_HOST": ""})
    assert ran.verdicts == {"site-box": "bad"}, ran.out
    assert "engine-missing" in ran.out
    assert "podman was asked for and is not installed" in ran.out
    assert "blocks" not in ran.out  # what it is itself
    assert ran.status == 1


def test_elsewhere(box: Bench, docker_host: str) -> None:
    """An engine that does not share our files (we are in a mount namespace of our own) is said to be elsewhere."""
    if os.geteuid() != 0 or not shutil.which("unshare"):
        pytest.skip("needs root and unshare")
    command = " ".join(f"'{part}'" for part in box.command())
    script = f"mount -t tmpfs none /mnt && TMPDIR=/mnt exec {command}"
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script],
        cwd=box.project,
        env={**os.environ, "DOCKER_HOST": docker_host},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "does not see this host's files" in " ".join(done.stdout.split()), done.stdout + done.stderr
    assert done.returncode == 10


# Images that are named and cannot be looked at


def test_images_that_the_engine_does_not_have(bench: Bench, docker_host: str) -> None:
    """One row an image, however often it is named, with the command that would bring it; nothing is pulled."""
    names = [f"--gpucheck-image={name}" for name in ("nobody/has-this:1", DIGEST, "nobody/has-this:1")]
    ran = bench.run(*names, FULL, keyword="image_runs_torch", env={"DOCKER_HOST": docker_host})
    assert ran.status == 10, ran.out
    rows = [row for row in ran.rows if row["kind"] == "result"]
    assert [(row["subject"]["id"], row["verdict"]) for row in rows] == [
        ("nobody/has-this:1", "unable"),
        (DIGEST, "unable"),
    ]
    for row in rows:
        assert f"docker pull {row['subject']['id']}, or docker load -i FILE.tar" in row["lacking"][0]


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--gpucheck-engine=none", "no container engine wanted"),
        ("--gpucheck-level=quick", "no probe of this run judges"),
    ],
)
def test_a_named_image_is_never_ruled_out(bench: Bench, option: str, words: str) -> None:
    """Without an engine, or at a level that looks at no image, what was named was not judged, and the run says so."""
    ran = bench.run("--gpucheck-image=nobody/has-this:1", FULL, option, keyword="image_runs_torch")
    assert ran.status == 10, ran.out
    assert "unable" in ran.verdicts.values()
    assert words in " ".join(ran.out.split())


def test_an_unnamed_image_is_no_row(bench: Bench) -> None:
    """Where no image is named there is nothing to judge, and that is all."""
    ran = bench.run("--gpucheck-engine=none", FULL, keyword="image_runs_torch or site_ok")
    assert "image-runs-torch" not in ran.verdicts
    assert ran.status == 5
