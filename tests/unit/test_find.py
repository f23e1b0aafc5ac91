"""Which engine is asked, by what the operator wants and what is on a planted machine."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest

from gpucheck.engine import find
from gpucheck.facts import Fact, Facts
from gpucheck.verdict import NotApplicable, Unable

if TYPE_CHECKING:
    from tests.conftest import Plant

NAMES = ("engine.sockets", "engine.clients", "engine.starter")


@pytest.fixture(autouse=True)
def _no_host_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in find.HOSTS.values():
        monkeypatch.delenv(name, raising=False)


def socket(plant: Plant, name: str) -> None:
    """A socket at that path."""
    os.mknod(plant.path(name), stat.S_IFSOCK | 0o600)


def test_sockets_are_tried_docker_first_and_the_systems_before_the_users(plant: Plant) -> None:
    """As the facts list them; what no engine of ours listens at is left out."""
    for name in ("/run/podman/podman.sock", "/run/containerd/containerd.sock", "/run/docker.sock"):
        socket(plant, name)
    socket(plant, "/run/user/1000/docker.sock")
    host = plant.facts(*NAMES, XDG_RUNTIME_DIR="/run/user/1000")
    docker = ["unix:///run/docker.sock", "unix:///run/user/1000/docker.sock"]
    assert find.addresses("docker", host) == docker
    assert find.addresses("auto", host) == [*docker, "unix:///run/podman/podman.sock"]
    assert find.addresses("podman", host) == ["unix:///run/podman/podman.sock"]


def test_a_named_host_is_the_only_one_tried(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    """DOCKER_HOST is docker's, CONTAINER_HOST is podman's."""
    socket(plant, "/run/docker.sock")
    host = plant.facts(*NAMES)
    monkeypatch.setenv("CONTAINER_HOST", "unix:///p")
    assert find.addresses("docker", host) == ["unix:///run/docker.sock"]
    monkeypatch.setenv("DOCKER_HOST", "tcp://d:1")
    assert find.addresses("auto", host) == ["tcp://d:1"]
    assert find.addresses("podman", host) == ["unix:///p"]


def test_no_engine_at_all_rules_containers_out(plant: Plant) -> None:
    """A known fact; but asked for by name it is missing."""
    host = plant.facts(*NAMES)
    with pytest.raises(NotApplicable, match="no container engine installed"):
        find.addresses("auto", host)
    with pytest.raises(find.Missing, match="the engine podman, which is not installed"):
        find.addresses("podman", host)
    with pytest.raises(NotApplicable, match="no container engine wanted"):
        find.addresses("none", host)


def test_a_missing_engine_is_named_and_so_is_the_one_that_is_here(
    plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the option that asks for it; an address is told without who logs in there."""
    with pytest.raises(find.Missing) as none:
        find.addresses("podman", plant.facts(*NAMES))
    assert none.value.lines == ("podman was asked for and is not installed", "no other engine is here")
    socket(plant, "/run/docker.sock")
    with pytest.raises(find.Missing) as missing:
        find.addresses("podman", plant.facts(*NAMES))
    assert missing.value.lines[1] == "docker is at unix:///run/docker.sock: --gpucheck-engine docker"
    monkeypatch.setenv("DOCKER_HOST", "tcp://me:secret@far:2376")
    with pytest.raises(find.Missing) as named:
        find.addresses("podman", plant.facts(*NAMES))
    assert "docker is at tcp://" in named.value.lines[1]
    assert "secret" not in named.value.lines[1]


@pytest.mark.parametrize(
    ("program", "starter", "start"),
    [
        ("dockerd", "/run/systemd/system/", "systemctl start docker"),
        ("dockerd", "/etc/init.d/docker", "service docker start"),
        ("dockerd", "/etc/hosts", "dockerd"),
        ("podman", "/run/systemd/system/", r"systemctl start podman\.socket"),
        ("podman", "/etc/hosts", "podman system service --time=0"),
    ],
)
def test_an_engine_that_is_stopped_is_told_with_its_start(plant: Plant, program: str, starter: str, start: str) -> None:
    """Somebody can start it, so nothing is ruled out; by what starts services on this machine."""
    plant.file(f"/usr/bin/{program}")
    plant.file(f"{starter}x" if starter.endswith("/") else starter)
    with pytest.raises(Unable, match=rf"{program} is installed, but no socket is there \(start it: {start}\)"):
        find.addresses("auto", plant.facts(*NAMES))


def test_what_could_not_be_read_is_not_absent() -> None:
    """A fact that is unknown is said, with its reason."""
    with pytest.raises(Unable, match="whether there is a container engine: EIO"):
        find.addresses("auto", Facts([Fact(name, None, "a folder", "EIO") for name in NAMES]))
