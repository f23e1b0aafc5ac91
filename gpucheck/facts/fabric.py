"""The fabric manager, without which GPUs behind NVSwitches do not start CUDA (error 802)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from gpucheck.facts import aside
from gpucheck.facts.dpkg import STATUS, installed_packages
from gpucheck.facts.fact import Unknown
from gpucheck.facts.machine import container
from gpucheck.facts.reading import Reading, group
from gpucheck.payload import bounded

if TYPE_CHECKING:
    from gpucheck.facts.tree import Tree

_BINARY: Final = "/usr/bin/nv-fabricmanager"
_PID_FILE: Final = "/run/nvidia-fabricmanager/nv-fabricmanager.pid"
# The kernel keeps fifteen characters of a process's name.
_COMMAND_NAME: Final = "nv-fabricmanager"[:15]
_PACKAGE: Final = re.compile(r"nvidia-fabricmanager(?:-\d+)?|nvlink5-\d+")
_VERSION: Final = re.compile(r"\d{3}\.\d{2,3}(?:\.\d{2,3})?")
_ASK_S: Final = 2.0


def _manager(tree: Tree) -> Reading:
    """``running``, ``stopped`` or ``absent``."""
    inside = container(tree)
    if inside.value != "none":
        raise Unknown(inside.source, "a container does not see the host's services")
    pid = (tree.text_if_any(_PID_FILE) or "").strip()
    if pid.isdecimal() and (tree.text_if_any(f"/proc/{pid}/comm") or "").startswith(_COMMAND_NAME):
        return Reading("running", _PID_FILE)
    return Reading("stopped" if tree.exists(_BINARY) else "absent", _BINARY)


def _manager_version(tree: Tree) -> Reading:
    for name, version in installed_packages(tree).items():
        found = _VERSION.search(version)
        if found and _PACKAGE.fullmatch(name):
            return Reading(found[0], f"{STATUS}: {name}")
    if not tree.exists(_BINARY):
        return Reading(None, _BINARY)
    if not tree.live:
        raise Unknown(_BINARY, "of another root, not run")
    said = bounded.run([_BINARY, "--version"], tree.left_s(_ASK_S), dict(tree.environ))
    found = _VERSION.search(said.output)
    if not found:
        raise Unknown(f"{_BINARY} --version", aside.ending(said))
    return Reading(found[0], f"{_BINARY} --version")


READERS: Final = group({"fabric.manager": _manager, "fabric.manager_version": _manager_version})
