"""Container engines as their files show them: clients, sockets, configuration. Asking them is a probe's work."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final

from gpucheck.facts.mounts import may_block
from gpucheck.facts.reading import Reading, group
from gpucheck.redact import redact_url

if TYPE_CHECKING:
    from gpucheck.facts.fact import Json
    from gpucheck.facts.tree import Tree

_CLIENTS: Final = (
    "docker",
    "dockerd",
    "podman",
    "nerdctl",
    "containerd",
    "crictl",
    "apptainer",
    "singularity",
    "enroot",
)
_FOLDERS: Final = ("/usr/bin", "/usr/local/bin", "/bin", "/usr/sbin", "/usr/local/sbin", "/snap/bin", "/opt/bin")
_SOCKETS: Final = (
    "/run/docker.sock",
    "/var/run/docker.sock",
    "/run/podman/podman.sock",
    "/run/containerd/containerd.sock",
    "/run/k3s/containerd/containerd.sock",
    "/run/crio/crio.sock",
)
_USER_SOCKETS: Final = ("docker.sock", "podman/podman.sock")
DAEMON_CONFIG: Final = "/etc/docker/daemon.json"
_CDI_FOLDERS: Final = ("/etc/cdi", "/run/cdi", "/var/run/cdi")
_CDI_KIND: Final = "nvidia.com/gpu"
_CDI_DEVICE: Final = re.compile(r"""["']?name["']?\s*:\s*["']?(\d+)["']?\s*(?:,|$|\})""", re.MULTILINE)


def _clients(tree: Tree) -> Reading:
    paths = [folder for folder in tree.environ.get("PATH", "").split(":") if folder.startswith("/")]
    folders = [folder for folder in dict.fromkeys((*_FOLDERS, *paths)) if not may_block(tree, folder)]
    found = [name for name in _CLIENTS if any(_there(tree, f"{folder}/{name}") for folder in folders)]
    return Reading(found, "PATH (without network file systems) and the usual folders")


def _there(tree: Tree, path: str) -> bool:
    try:
        return tree.exists(path)
    except PermissionError:
        return False  # what may not even be looked at is no client for this user


def _sockets(tree: Tree) -> Reading:
    own = tree.environ.get("XDG_RUNTIME_DIR", "")
    paths = [*_SOCKETS, *(f"{own}/{name}" for name in _USER_SOCKETS if own)]
    host = tree.environ.get("DOCKER_HOST", "")
    if host.startswith("unix://"):
        paths.append(host.removeprefix("unix://"))
    real = {tree.real(path): path for path in reversed(paths) if _is_socket(tree, path)}
    return Reading(sorted(real), "the usual places, XDG_RUNTIME_DIR and DOCKER_HOST")


def _is_socket(tree: Tree, path: str) -> bool:
    try:
        return tree.is_socket(path)
    except PermissionError:
        return False


def _host(tree: Tree) -> Reading:
    host = tree.environ.get("DOCKER_HOST")
    return Reading(redact_url(host) if host else None, "environment: DOCKER_HOST")


def daemon_config(tree: Tree) -> dict[str, Json]:
    """What the docker daemon's file says; empty without a file. Raises OSError, ValueError."""
    text = tree.text_if_any(DAEMON_CONFIG)
    try:
        config = json.loads(text) if text and text.strip() else {}
    except ValueError as error:
        message = f"{DAEMON_CONFIG}: {error}"
        raise ValueError(message) from error
    if not isinstance(config, dict):
        message = f"{DAEMON_CONFIG}: no JSON object"
        raise ValueError(message)  # noqa: TRY004 - it is the file's content that is wrong
    return config


def has_nvidia_runtime(tree: Tree) -> bool:
    """Whether the daemon's file declares a runtime of NVIDIA's. Raises OSError, ValueError."""
    return any("nvidia" in name for name in daemon_config(tree).get("runtimes", {}))


def _nvidia_runtime(tree: Tree) -> Reading:
    return Reading(has_nvidia_runtime(tree), DAEMON_CONFIG)


def _cdi_enabled(tree: Tree) -> Reading:
    """True or false as the file says; None when it leaves it to the engine's version."""
    return Reading(daemon_config(tree).get("features", {}).get("cdi"), DAEMON_CONFIG)


def cdi_files(tree: Tree) -> dict[str, str]:
    """Path and text of each CDI file that describes NVIDIA GPUs. Raises OSError."""
    found: dict[str, str] = {}
    for folder in _CDI_FOLDERS:
        for name in tree.names(folder):
            path = tree.real(f"{folder}/{name}")
            if name.endswith((".yaml", ".yml", ".json")) and path not in found:
                text = tree.text(path)
                if _CDI_KIND in text:
                    found[path] = text
    return found


def cdi_gpu_count(text: str) -> int | None:
    """How many GPUs a CDI file lists by number; None when it lists them otherwise (by UUID, only ``all``)."""
    return len(set(_CDI_DEVICE.findall(text))) or None


def _cdi_files(tree: Tree) -> Reading:
    return Reading(sorted(cdi_files(tree)), ", ".join(_CDI_FOLDERS))


def _rootless(tree: Tree) -> Reading:
    own = tree.environ.get("XDG_RUNTIME_DIR", "")
    host = tree.environ.get("DOCKER_HOST") or ""
    if host:
        return Reading("/run/user/" in host, "environment: DOCKER_HOST")
    mine = bool(own) and _is_socket(tree, f"{own}/docker.sock")
    return Reading(mine and not _is_socket(tree, "/run/docker.sock"), "which docker socket there is")


def _snap(tree: Tree) -> Reading:
    return Reading(
        _there(tree, "/var/snap/docker") or _there(tree, "/snap/bin/docker"), "/var/snap/docker, /snap/bin/docker"
    )


def _starter(tree: Tree) -> Reading:
    """How services are started here: by systemd where it runs, by a script of the engine's, or by nothing."""
    if tree.exists("/run/systemd/system"):
        return Reading("systemd", "/run/systemd/system")
    return Reading("script" if tree.exists("/etc/init.d/docker") else "none", "/etc/init.d/docker")


READERS: Final = group(
    {
        "engine.clients": _clients,
        "engine.sockets": _sockets,
        "engine.host": _host,
        "engine.nvidia_runtime": _nvidia_runtime,
        "engine.cdi_files": _cdi_files,
        "engine.cdi_enabled": _cdi_enabled,
        "engine.rootless": _rootless,
        "engine.snap": _snap,
        "engine.starter": _starter,
    }
)
