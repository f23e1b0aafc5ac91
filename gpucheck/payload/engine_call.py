"""One question to a container engine, asked through its SDK in a child that can be killed. The only importer of docker.

``args``: ``op`` names a function below, ``url`` is the engine's address, the rest are that function's arguments. What
the engine refuses comes back as ``{"refused": text}`` in its own words; it is an answer, not a failure. That none came
comes back as ``{"unreachable": text}``.
"""

import os
import time

import docker
import envelope
import requests
from docker.errors import APIError, DockerException

LABEL = "gpucheck.run"
LOG_BYTES = 200000
STACKS_S = 0.4
POLL_S = 5.0


def hello(client):
    """Who answers: kind, version, and what of its configuration matters here."""
    version = client.version()
    info = client.info()
    components = [c.get("Name", "") for c in version.get("Components") or []]
    return {
        "kind": "podman" if any("Podman" in name for name in components) else "docker",
        "version": version.get("Version", ""),
        "runtimes": sorted(info.get("Runtimes") or {}),
        "security": info.get("SecurityOptions") or [],
        "cdi_folders": info.get("CDISpecDirs") or [],
        "devices": [d.get("ID", "") for d in info.get("DiscoveredDevices") or []],
        "root": info.get("DockerRootDir", ""),
    }


def import_image(client, tar, repository, tag, labels):
    """Make an image of a tar file; returns its id. Nothing is pulled."""
    changes = ["LABEL %s=%s" % (name, value) for name, value in labels.items()]
    client.api.import_image_from_file(tar, repository=repository, tag=tag, changes=changes)
    return client.images.get("%s:%s" % (repository, tag)).id


def image(client, name):
    """Id, digests and configuration of an image that the engine has; None when it has none of that name."""
    try:
        found = client.images.get(name)
    except docker.errors.ImageNotFound:
        return None
    config = found.attrs.get("Config") or {}
    return {
        "id": found.id,
        "digests": found.attrs.get("RepoDigests") or [],
        "architecture": found.attrs.get("Architecture", ""),
        "os": found.attrs.get("Os", ""),
        "variant": found.attrs.get("Variant") or "",
        "user": config.get("User") or "",
        "entrypoint": bool(config.get("Entrypoint")),
        "env": dict(entry.partition("=")[::2] for entry in config.get("Env") or []),
        "size_bytes": found.attrs.get("Size", 0),
    }


def run(client, create, deadline_s):
    """Create, start, wait, read the state and the logs, remove. A failed start leaves nothing, nor does a time-out."""
    began = time.monotonic()
    container = client.api.create_container_from_config(create)["Id"]
    try:
        client.api.start(container)
        timed_out = not _wait(client, container, deadline_s - (time.monotonic() - began))
        if timed_out:
            _dump_and_kill(client, container)
        state = client.api.inspect_container(container)["State"]
        return {
            "code": state.get("ExitCode"),
            "oom": bool(state.get("OOMKilled")),
            "timed_out": timed_out,
            "logs": _logs(client, container),
            "duration_s": time.monotonic() - began,
        }
    finally:
        client.api.remove_container(container, force=True, v=True)


def _wait(client, container, timeout_s):
    """Whether the container ended in time. The SDK's time-out is one per read, so short waits are added up."""
    end = time.monotonic() + timeout_s
    while True:
        left_s = end - time.monotonic()
        if left_s <= 0:
            return False
        try:
            client.api.wait(container, timeout=min(left_s, POLL_S))
        except (requests.exceptions.ConnectionError, requests.exceptions.Timeout):
            continue
        return True


def _dump_and_kill(client, container):
    for signal, pause_s in (("SIGUSR1", STACKS_S), ("SIGKILL", 0)):
        try:
            client.api.kill(container, signal)
        except APIError:
            return
        time.sleep(pause_s)
    _wait(client, container, 5)


def _logs(client, container):
    try:
        return envelope.last_part(client.api.logs(container, tail=2000), LOG_BYTES).decode(errors="replace")
    except (APIError, requests.exceptions.RequestException) as error:
        return "[no logs: %s]" % error


def create_volume(client, name, labels, options):
    """A local volume with these options of its driver; returns its mount point on the engine's host."""
    return client.volumes.create(name=name, labels=labels, driver_opts=options).attrs.get("Mountpoint", "")


def remove_volume(client, name):
    """Remove a volume."""
    client.volumes.get(name).remove(force=True)
    return True


def marked(client):
    """Everything on the engine that carries our mark: ``[{kind, id, labels}]``."""
    mark = {"label": LABEL}
    there = {
        "container": client.api.containers(all=True, filters=mark),
        "volume": client.api.volumes(filters=mark).get("Volumes") or [],
        "network": client.api.networks(filters=mark),
        "image": client.api.images(filters=mark),
    }
    return [
        {"kind": kind, "id": thing["Name" if kind == "volume" else "Id"], "labels": thing.get("Labels") or {}}
        for kind, things in there.items()
        for thing in things
    ]


REMOVERS = {
    "container": lambda client, name: client.api.remove_container(name, force=True, v=True),
    "volume": lambda client, name: client.api.remove_volume(name, force=True),
    "network": lambda client, name: client.api.remove_network(name),
    "image": lambda client, name: client.api.remove_image(name, force=True),
}


def remove(client, things):
    """Remove ``[{kind, id}]``, containers first; returns what would not go, with the engine's words."""
    stuck = []
    for kind, remover in REMOVERS.items():
        for thing in things:
            if thing["kind"] == kind:
                try:
                    remover(client, thing["id"])
                except docker.errors.NotFound:
                    continue
                except APIError as error:
                    stuck.append("%s %s: %s" % (kind, thing["id"][:24], error.explanation))
    return stuck


OPS = {f.__name__: f for f in (hello, import_image, image, run, create_volume, remove_volume, marked, remove)}


def main(args):
    """Do one thing on the engine at ``url`` and say what came of it."""
    args = dict(args)
    op = OPS[args.pop("op")]
    url = args.pop("url")
    if url.startswith("unix:"):
        os.environ.pop("DOCKER_TLS_VERIFY", None)
    try:
        client = docker.DockerClient(base_url=url, version="auto", timeout=20)
        return {"value": op(client, **args)}
    except APIError as error:
        return {"refused": str(error.explanation or error)}
    except (DockerException, requests.exceptions.RequestException, OSError) as error:
        return {"unreachable": reason(error)}


def reason(error):
    """The system's words for what went wrong, where it had any: the SDK prints exceptions within exceptions."""
    said, inner = str(error), error
    while inner is not None:
        if isinstance(inner, OSError) and inner.strerror:
            said = inner.strerror
        inner = inner.__cause__ or inner.__context__
    return said
