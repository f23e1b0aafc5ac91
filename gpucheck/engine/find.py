"""Which container engine this run should talk to: addresses to try, from what the operator asked and what is there."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from shutil import which

from gpucheck.verdict import NotApplicable, Unable

SOCKETS = {
    "docker": ("/var/run/docker.sock", "{runtime}/docker.sock", "{home}/.docker/run/docker.sock"),
    "podman": ("/run/podman/podman.sock", "{runtime}/podman/podman.sock"),
}
DAEMONS = {"docker": ("dockerd",), "podman": ("podman",)}


class Missing(Unable):
    """An engine was asked for by name and is not installed."""

    def __init__(self, kind: str) -> None:
        super().__init__(f"the engine {kind}, which is not installed")
        self.kind = kind


@dataclass(frozen=True, slots=True)
class Address:
    """Where an engine may answer, and who says so."""

    url: str
    kind: str
    source: str


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(Path(path).stat().st_mode)
    except OSError:
        return False


def _sockets(kind: str) -> list[Address]:
    runtime = os.environ.get("XDG_RUNTIME_DIR", "/nonexistent")
    places = [p.format(runtime=runtime, home=Path.home()) for p in SOCKETS[kind]]
    return [Address(f"unix://{place}", kind, place) for place in places if _is_socket(place)]


def addresses(wanted: str) -> list[Address]:
    """Addresses to try, best first. ``wanted``: auto, docker, podman, none.

    Raises NotApplicable when there is no engine to ask, Unable when one is installed and has no socket, Missing when
    one was asked for by name and is not installed.
    """
    if wanted == "none":
        raise NotApplicable("engine", "no container engine wanted", "--gpucheck-engine none")
    kinds = ("docker", "podman") if wanted == "auto" else (wanted,)
    if (host := os.environ.get("DOCKER_HOST")) and "docker" in kinds:
        return [Address(host, "docker", "DOCKER_HOST")]
    if (host := os.environ.get("CONTAINER_HOST")) and "podman" in kinds:
        return [Address(host, "podman", "CONTAINER_HOST")]
    found = [address for kind in kinds for address in _sockets(kind)]
    if found:
        return found
    installed = [name for kind in kinds for name in DAEMONS[kind] if which(name)]
    if installed:
        start = "systemctl start podman.socket" if installed == ["podman"] else "systemctl start docker"
        raise Unable(f"a container engine: {installed[0]} is installed, but no socket is there (start it: {start})")
    if wanted != "auto":
        raise Missing(wanted)
    raise NotApplicable("engine", "no container engine installed", "no socket, no dockerd, no podman")
