"""A container as a frozen description, and that description in the engine's own terms."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

RUNC = "runc"


@dataclass(frozen=True, slots=True)
class Bind:
    """A path of the host in the container. Read-only ones are split at its mount points, see ``mirror.split``.

    ``recursive``: bound instead as ``docker run -v`` binds it, with the engine's own treatment of the mounts below.
    """

    source: str
    target: str
    read_only: bool = True
    recursive: bool = False


@dataclass(frozen=True, slots=True)
class VolumeMount:
    """A named volume in the container."""

    name: str
    target: str
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class Container:
    """What to run and in what surroundings. Safe by default: no network, no capabilities, nothing writable but /tmp.

    ``image`` None means the mirror image; ``user`` ``uid:gid``, None: the invoking one; ``shm_bytes`` None: the
    engine's default; ``ipc`` "private" or "host"; ``gpus`` is the engine's own device request, ``devices`` are device
    nodes. An image of somebody's runs as it would in a job, but for its entry point: with its own environment and user,
    in its own folder, a payload by the ``python`` that its own PATH has.
    """

    argv: tuple[str, ...] = ()
    image: str | None = None
    python: str = "python3"
    workdir: str = "/tmp"
    shm_bytes: int | None = None
    ipc: str = "private"
    binds: tuple[Bind, ...] = ()
    volumes: tuple[VolumeMount, ...] = ()
    user: str | None = None
    network: str = "none"
    hostname: str = "localhost"
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    memory_bytes: int | None = None
    cap_add: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    gpus: Mapping[str, Any] | None = None
    read_only: bool = True
    runtime: str | None = RUNC


def mount(bind: Bind) -> dict[str, Any]:
    """A bind in the engine's terms. Not recursive unasked: before Engine 25 ``ro`` does not reach mounts below."""
    options = {"NonRecursive": not bind.recursive, "Propagation": "rprivate"}
    return {
        "Type": "bind",
        "Source": bind.source,
        "Target": bind.target,
        "ReadOnly": bind.read_only,
        "BindOptions": options,
    }


def _volume(volume: VolumeMount) -> dict[str, Any]:
    return {"Type": "volume", "Source": volume.name, "Target": volume.target, "ReadOnly": volume.read_only}


def _device(node: str) -> dict[str, str]:
    return {"PathOnHost": node, "PathInContainer": node, "CgroupPermissions": "rwm"}


def _optional(container: Container) -> dict[str, Any]:
    wanted = {
        "ShmSize": container.shm_bytes,
        "Memory": container.memory_bytes,
        "MemorySwap": container.memory_bytes,
        "DeviceRequests": [dict(container.gpus)] if container.gpus else None,
        "Runtime": container.runtime,
    }
    return {name: value for name, value in wanted.items() if value is not None}


def create(container: Container, image: str, mounts: Sequence[Mapping[str, Any]], labels: Mapping[str, str]) -> Any:
    """The body of the engine's ``/containers/create``."""
    host = {
        "NetworkMode": container.network,
        "IpcMode": container.ipc,
        "CapDrop": ["ALL"],
        "CapAdd": list(container.cap_add),
        "SecurityOpt": ["no-new-privileges"],
        "ReadonlyRootfs": container.read_only,
        "Tmpfs": {"/tmp": "rw,size=512m,mode=1777"} if container.read_only else {},
        "Mounts": [*mounts, *(_volume(v) for v in container.volumes)],
        "Devices": [_device(node) for node in container.devices],
        "LogConfig": {"Type": "json-file", "Config": {"max-size": "2m", "max-file": "1"}},
        **_optional(container),
    }
    body = {
        "Image": image,
        # The program is the entry point, in place of an image's own: [] there does not mean that to every engine.
        "Entrypoint": list(container.argv[:1]),
        "Cmd": list(container.argv[1:]),
        "Healthcheck": {"Test": ["NONE"]},
        "User": container.user or "",
        "Env": [f"{name}={value}" for name, value in container.env.items()],
        "Labels": dict(labels),
        "WorkingDir": container.workdir,
        "HostConfig": host,
    }
    # With the host's network the engine refuses a host name of one's own.
    return body if container.network == "host" else body | {"Hostname": container.hostname}
