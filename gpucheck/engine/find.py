"""Which container engine this run should talk to: addresses to try, from what the operator asked and what is there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from gpucheck.verdict import NotApplicable, Unable

if TYPE_CHECKING:
    from gpucheck.facts import Facts

HOSTS = {"docker": "DOCKER_HOST", "podman": "CONTAINER_HOST"}
SERVERS = {"docker": "dockerd", "podman": "podman"}
# How they are started, by the fact `engine.starter`.
STARTS = {
    "docker": {"systemd": "systemctl start docker", "script": "service docker start", "none": "dockerd"},
    "podman": {"systemd": "systemctl start podman.socket"},
}


class Missing(Unable):
    """An engine was asked for by name and is not installed."""

    def __init__(self, kind: str) -> None:
        super().__init__(f"the engine {kind}, which is not installed")
        self.kind = kind


def addresses(wanted: str, host: Facts) -> list[str]:
    """Addresses to try, best first. ``wanted``: auto, docker, podman, none.

    Raises NotApplicable when there is no engine to ask, Unable when one is installed and has no socket, Missing when
    one was asked for by name and is not installed.
    """
    if wanted == "none":
        raise NotApplicable("engine", "no container engine wanted", "--gpucheck-engine none")
    kinds = ("docker", "podman") if wanted == "auto" else (wanted,)
    for kind in kinds:
        if named := os.environ.get(HOSTS[kind]):
            return [named]
    sockets, programs = (_known(host, name) for name in ("engine.sockets", "engine.clients"))
    if found := [f"unix://{path}" for kind in kinds for path in sockets if Path(path).name == f"{kind}.sock"]:
        return found
    for kind in kinds:
        server = SERVERS[kind]
        if server in programs:
            start = STARTS[kind].get(host.known("engine.starter") or "none", f"{server} system service --time=0")
            raise Unable(f"a container engine: {server} is installed, but no socket is there (start it: {start})")
    if wanted != "auto":
        raise Missing(wanted)
    raise NotApplicable("engine", "no container engine installed", "no socket, no dockerd, no podman")


def _known(host: Facts, name: str) -> list[str]:
    fact = host[name]
    if fact.why is not None:
        raise Unable(f"whether there is a container engine: {fact.why} ({fact.source})")
    return list(fact.value)
