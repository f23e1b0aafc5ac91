"""Which machine this is, and what kind of place: bare, virtual, a container."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Final

from gpucheck.facts.fact import Unknown
from gpucheck.facts.mounts import mount_of
from gpucheck.facts.reading import Reading, group

if TYPE_CHECKING:
    from gpucheck.facts.tree import Tree

_MACHINE_ID: Final = "/etc/machine-id"
_DMI: Final = "/sys/class/dmi/id"
_OS_RELEASE: Final = ("/etc/os-release", "/usr/lib/os-release")
_PLACEHOLDERS: Final = re.compile(
    r"(?:0*|none|n/?a|not (?:specified|applicable|available)|default string|to be filled.*|system serial number"
    r"|unknown)",
    re.IGNORECASE,
)
_SECURE_BOOT: Final = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
# A whole disk at /: a machine, even where its root was once made from an image and still holds /.dockerenv.
_DISK: Final = re.compile(r"/dev/(?:[hsv]d[a-z]|xvd[a-z]|nvme\d|mmcblk\d|md\d|root$|mapper/(?!docker-))")
# What its path, its files or its variables call each kind of container.
_CGROUP_NAMES: Final = {
    "kubepods": "kubernetes",
    "libpod": "podman",
    "docker": "docker",
    "lxc": "lxc",
    "containerd": "containerd",
}
_MARKER_FILES: Final = {
    "/var/run/secrets/kubernetes.io": "kubernetes",
    "/run/.containerenv": "podman",
    "/.dockerenv": "docker",
    "/.singularity.d": "singularity",
}


def _identity(tree: Tree) -> Reading:
    """A hash, so that a record can name the machine without giving its identifiers away."""
    machine = tree.text_if_any(_MACHINE_ID)
    try:
        board = tree.text_if_any(f"{_DMI}/product_uuid")
    except PermissionError:
        board = None
    parts = {_MACHINE_ID: machine, f"{_DMI}/product_uuid": board}
    found = {path: text.strip().lower() for path, text in parts.items() if text and text.strip()}
    if not found:
        raise Unknown(_MACHINE_ID, "neither a machine id nor a readable DMI uuid")
    return Reading(hashlib.sha256("\n".join(found.values()).encode()).hexdigest()[:16], " and ".join(found))


def _serial(tree: Tree) -> Reading:
    for path in (f"{_DMI}/product_serial", "/proc/device-tree/serial-number"):
        text = tree.text_if_any(path)
        if text is not None:
            serial = text.strip("\0 ")
            return Reading(None if _PLACEHOLDERS.fullmatch(serial) else serial, path)
    return Reading(None, "neither DMI nor a device tree")


def _os(tree: Tree) -> Reading:
    for path in _OS_RELEASE:
        text = tree.text_if_any(path) or ""
        found = re.search(r'^PRETTY_NAME="?([^"\n]*)', text, re.MULTILINE)
        if found:
            return Reading(found[1], path)
    raise Unknown(_OS_RELEASE[0], "no PRETTY_NAME")


def _hostname(tree: Tree) -> Reading:
    path = "/proc/sys/kernel/hostname"
    return Reading(tree.text(path).strip(), path)


def _boot_id(tree: Tree) -> Reading:
    path = "/proc/sys/kernel/random/boot_id"
    return Reading(tree.text(path).strip(), path)


def kernel(tree: Tree) -> Reading:
    """The running kernel's release."""
    path = "/proc/sys/kernel/osrelease"
    return Reading(tree.text(path).strip(), path)


def wsl(tree: Tree) -> Reading:
    """Whether this is Linux under Windows: there the driver is Windows' own, and PCI shows no NVIDIA device."""
    release = kernel(tree)
    return Reading("microsoft" in release.value.lower(), release.source)


def container(tree: Tree) -> Reading:
    """The kind of container that this runs in; ``none``; ``other`` when only its root file system gives it away."""
    return tree.once(_container)


def _container(tree: Tree) -> Reading:
    looks = (_by_kubernetes, _by_disk, _by_marks, _by_name, _by_cgroup, _by_overlay)
    none = Reading("none", "/proc/1/cgroup, /proc/self/mountinfo and the marks that engines leave")
    return next((found for look in looks if (found := look(tree))), none)


def _by_kubernetes(tree: Tree) -> Reading | None:
    name = "KUBERNETES_SERVICE_HOST"
    return Reading("kubernetes", f"environment: {name}") if name in tree.environ else None


def _by_disk(tree: Tree) -> Reading | None:
    root = mount_of(tree, "/")
    whole = root is not None and root.top == "/" and _DISK.match(root.device)
    return Reading("none", f"/proc/self/mountinfo: {root.device} is mounted at /") if root and whole else None


def _by_marks(tree: Tree) -> Reading | None:
    return next((Reading(kind, path) for path, kind in _MARKER_FILES.items() if tree.exists(path)), None)


def _by_name(tree: Tree) -> Reading | None:
    name = tree.text_if_any("/run/systemd/container") or tree.environ.get("container")
    return Reading(name.strip(), "/run/systemd/container or the variable container") if name else None


def _by_cgroup(tree: Tree) -> Reading | None:
    cgroup = tree.text("/proc/1/cgroup")
    for word, kind in _CGROUP_NAMES.items():
        # As a part of the path: the cgroup of a *service* called docker holds no container.
        if re.search(rf"/{word}(?:[-/][0-9a-z]|\b(?!\.service|\.socket))", cgroup):
            return Reading(kind, "/proc/1/cgroup")
    return None


def _by_overlay(tree: Tree) -> Reading | None:
    root = mount_of(tree, "/")
    overlay = root is not None and root.filesystem == "overlay" and not tree.exists("/run/systemd/system")
    return Reading("other", "/proc/self/mountinfo: an overlay at /, and no systemd") if overlay else None


def _secure_boot(tree: Tree) -> Reading:
    if tree.exists(_SECURE_BOOT):
        # Four bytes of attributes, then the value.
        return Reading(tree.path(_SECURE_BOOT).read_bytes()[4:5] == b"\x01", _SECURE_BOOT)
    if container(tree).value != "none":
        raise Unknown("/sys/firmware", "hidden in a container")
    if tree.exists("/sys/firmware/efi/efivars") and not tree.names("/sys/firmware/efi/efivars"):
        raise Unknown("/sys/firmware/efi/efivars", "not mounted")
    if not tree.exists("/sys"):
        raise Unknown("/sys", "not there")
    return Reading(value=False, source="/sys/firmware/efi: no such variable")


READERS: Final = group(
    {
        "machine.id": _identity,
        "machine.hostname": _hostname,
        "machine.boot_id": _boot_id,
        "machine.serial": _serial,
        "machine.kernel": kernel,
        "machine.os": _os,
        "machine.container": container,
        "machine.wsl": wsl,
        "machine.secure_boot": _secure_boot,
    }
)
