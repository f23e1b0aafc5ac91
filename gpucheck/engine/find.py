"""Which container engine this run should talk to: addresses to try, from what the operator asked and what is there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from gpucheck.redact import redact_url
from gpucheck.verdict import NotApplicable, Unable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpucheck.facts import Facts

HOSTS = {"docker": "DOCKER_HOST", "podman": "CONTAINER_HOST"}
SERVERS = {"docker": "dockerd", "podman": "podman"}
# How they are started, by the fact `engine.starter`.
STARTS = {
    "docker": {"systemd": "systemctl start docker", "script": "service docker start", "none": "dockerd"},
    "podman": {"systemd": "systemctl start podman.socket"},
}
PACKAGES = {"docker": "docker.io", "podman": "podman"}


class Missing(Unable):
    """An engine was asked for by name and is not installed; ``others`` are those that are, and where."""

    def __init__(self, kind: str, others: Mapping[str, str]) -> None:
        super().__init__(f"the engine {kind}, which is not installed")
        self.kind = kind
        here = [f"{other} is at {where}: --gpucheck-engine {other}" for other, where in others.items()]
        self.lines = (f"{kind} was asked for and is not installed", *(here or ["no other engine is here"]))


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
    programs = _known(host, "engine.clients")
    if found := [address for kind in kinds for address in _listening(kind, host)]:
        return found
    for kind in kinds:
        server = SERVERS[kind]
        if server in programs:
            start = STARTS[kind].get(host.known("engine.starter") or "none", f"{server} system service --time=0")
            raise Unable(f"a container engine: {server} is installed, but no socket is there (start it: {start})")
    if wanted != "auto":
        raise Missing(wanted, _others(wanted, host))
    raise NotApplicable("engine", "no container engine installed", "no socket, no dockerd, no podman")


def _listening(kind: str, host: Facts) -> list[str]:
    """The addresses at which that engine has a socket."""
    return [f"unix://{path}" for path in _known(host, "engine.sockets") if Path(path).name == f"{kind}.sock"]


def _others(wanted: str, host: Facts) -> dict[str, str]:
    """The engines that could be asked instead, each with its address, which may carry a name to log in with."""
    named = {kind: redact_url(url) for kind, name in HOSTS.items() if (url := os.environ.get(name))}
    listening = {kind: found[0] for kind in HOSTS if (found := _listening(kind, host))}
    return {kind: where for kind, where in {**listening, **named}.items() if kind != wanted}


def _known(host: Facts, name: str) -> list[str]:
    fact = host[name]
    if fact.why is not None:
        raise Unable(f"whether there is a container engine: {fact.why} ({fact.source})")
    return list(fact.value)
