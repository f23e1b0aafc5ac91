"""The NVIDIA driver's two halves: kernel modules, and the libraries that user space loads."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from gpucheck.facts import loader
from gpucheck.facts.dpkg import installed_packages
from gpucheck.facts.fact import Unknown
from gpucheck.facts.machine import container, kernel
from gpucheck.facts.mounts import mount_of
from gpucheck.facts.reading import Reading, group

if TYPE_CHECKING:
    from gpucheck.facts.tree import Tree

MODULES: Final = "/proc/modules"
PROC_VERSION: Final = "/proc/driver/nvidia/version"
LIBCUDA: Final = "libcuda.so.1"
_NVML: Final = "libnvidia-ml.so.1"
_OF_INTEREST: Final = re.compile(r"nvidia\w*|nouveau|nova_\w+|nvgpu|vfio\w*")
_VERSION: Final = re.compile(r"\d{3}\.\d{2,3}(?:\.\d{2,3})?")
_SMI: Final = ("/usr/bin/nvidia-smi", "/usr/local/bin/nvidia-smi", "/usr/lib/wsl/lib/nvidia-smi", "/opt/bin/nvidia-smi")
_MODPROBE_FOLDERS: Final = ("/etc/modprobe.d", "/usr/lib/modprobe.d", "/lib/modprobe.d")
_PACKAGES: Final = re.compile(
    r"(?:nvidia-driver|nvidia-headless|nvidia-dkms|nvidia-open|cuda-drivers)(?:-\d.*)?"
    r"|nvidia-kernel-(?:open-)?dkms|linux-modules-nvidia-\d.*"
)
_WSL_FOLDER: Final = "/usr/lib/wsl/"
# The toolkit's stub for linking has the whole API in some dozens of kilobytes; the driver's library has megabytes.
_STUB_LIMIT_BYTES: Final = 1 << 20
_STUB_WITNESS: Final = b"cuGraphicsUnmapResources"
_COMPAT_FOLDER: Final = re.compile(r"cuda(?:-[\d.]+)?")


def loaded_modules(tree: Tree) -> list[str]:
    """The loaded kernel modules that have to do with NVIDIA devices. Raises OSError."""
    text = tree.text_if_any(MODULES)
    if text is None and not tree.exists("/proc/self"):
        raise Unknown("/proc", "not mounted")
    # A kernel that was built without modules has no such file, and none loaded.
    names = [line.split(" ", 1)[0] for line in (text or "").splitlines()]
    return sorted(name for name in names if _OF_INTEREST.fullmatch(name))


def _modules(tree: Tree) -> Reading:
    return Reading(loaded_modules(tree), MODULES)


def _uvm_loaded(tree: Tree) -> Reading:
    return Reading("nvidia_uvm" in loaded_modules(tree), MODULES)


def _module_version(tree: Tree) -> Reading:
    text = tree.text_if_any(PROC_VERSION)
    if text is None:
        version = tree.text_if_any("/sys/module/nvidia/version")
        return Reading(version and version.strip(), "/sys/module/nvidia/version")
    found = _VERSION.search(text)
    if not found:
        message = f"no version in {PROC_VERSION}"
        raise ValueError(message)
    return Reading(found[0], PROC_VERSION)


def _module_kind(tree: Tree) -> Reading:
    text = tree.text_if_any(PROC_VERSION)
    if text is None:
        return Reading(None, PROC_VERSION)
    return Reading("open" if "Open Kernel Module" in text else "proprietary", PROC_VERSION)


def libcuda(tree: Tree) -> str | None:
    """The path of the libcuda that a program here would load; None when there is none."""
    return loader.find(tree, LIBCUDA)


def is_stub(tree: Tree, path: str) -> bool:
    """Whether that libcuda is the toolkit's stand-in for linking: by its folder or, copied elsewhere, by content."""
    real = tree.real(path)
    if "/stubs/" in path or "/stubs/" in real:
        return True
    file = tree.path(real)
    if real.startswith(_WSL_FOLDER) or file.stat().st_size > _STUB_LIMIT_BYTES:
        return False
    return _STUB_WITNESS in file.read_bytes()


def is_compat(tree: Tree, path: str) -> bool:
    """Whether that libcuda comes from a forward-compatibility package (``cuda-compat``), not from the driver."""
    return "/compat/" in path or "/compat/" in tree.real(path)


def _libcuda_path(tree: Tree) -> Reading:
    return Reading(libcuda(tree), f"LD_LIBRARY_PATH, {loader.CACHE} and the default folders")


def _libcuda_is_stub(tree: Tree) -> Reading:
    path = libcuda(tree)
    return Reading(path and is_stub(tree, path), path or f"no {LIBCUDA}")


def _library_version(tree: Tree) -> Reading:
    """The version that the driver's library carries in its file name; None for WSL's, which carries none."""
    for library in (LIBCUDA, _NVML):
        for path in loader.candidates(tree, library):
            found = _VERSION.search(tree.real(path).rpartition("/")[2])
            if found and not is_compat(tree, path):
                return Reading(found[0], tree.real(path))
    return Reading(None, f"no {LIBCUDA} or {_NVML} whose file name holds a version")


def _compat_path(tree: Tree) -> Reading:
    folders = [f"/usr/local/{name}/compat" for name in tree.names("/usr/local") if _COMPAT_FOLDER.fullmatch(name)]
    known = [path for path in loader.candidates(tree, LIBCUDA) if is_compat(tree, path)]
    paths = [*known, *(f"{folder}/{LIBCUDA}" for folder in folders)]
    return Reading(
        next((path for path in paths if tree.exists(path)), None), "/usr/local/cuda*/compat and the loader's path"
    )


def installed(tree: Tree) -> list[str]:
    """What shows that somebody installed the driver here, one phrase each; nothing: nobody did.

    CUDA libraries are not the driver. Nor, in a container, are files of the image: there a library counts only when it
    was mounted in, which is what the container toolkit does.
    """
    return tree.once(_installed)


def _installed(tree: Tree) -> list[str]:
    inside = container(tree).value != "none"
    libraries = [
        path for path in loader.candidates(tree, LIBCUDA) if not is_stub(tree, path) and not is_compat(tree, path)
    ]
    files = [
        path for path in (*libraries[:1], *_SMI) if tree.exists(path) and not (inside and not _mounted(tree, path))
    ]
    if inside:
        return files
    return [*files, *_module_files(tree), *_modprobe_files(tree), *_packages(tree)]


def _mounted(tree: Tree, path: str) -> bool:
    mount = mount_of(tree, tree.real(path))
    return mount is not None and mount.point != "/"


def _module_files(tree: Tree) -> list[str]:
    path = f"/lib/modules/{kernel(tree).value}/modules.dep"
    found = re.search(r"^(\S*/nvidia\.ko\S*):", tree.text_if_any(path) or "", re.MULTILINE)
    return [f"{path}: {found[1]}"] if found else []


def _modprobe_files(tree: Tree) -> list[str]:
    """Configuration that loads or tunes the driver; what only keeps nouveau away may be left of a removed one."""
    paths = [
        f"{folder}/{name}" for folder in _MODPROBE_FOLDERS for name in tree.names(folder) if name.endswith(".conf")
    ]
    wanted = re.compile(r"^\s*(?:options|install|softdep)\s+nvidia\b(?!.*/bin/(?:true|false))", re.MULTILINE)
    return [path for path in paths if wanted.search(tree.text(path))]


def _packages(tree: Tree) -> list[str]:
    return [
        f"package {name} {version}" for name, version in installed_packages(tree).items() if _PACKAGES.fullmatch(name)
    ]


def _is_installed(tree: Tree) -> Reading:
    found = installed(tree)
    return Reading(
        bool(found), ", ".join(found) or "libraries, nvidia-smi, kernel modules, modprobe.d, packages: nothing"
    )


READERS: Final = group(
    {
        "driver.installed": _is_installed,
        "driver.module_version": _module_version,
        "driver.module_kind": _module_kind,
        "driver.library_version": _library_version,
        "driver.modules": _modules,
        "driver.libcuda_path": _libcuda_path,
        "driver.libcuda_is_stub": _libcuda_is_stub,
        "driver.compat_path": _compat_path,
        "uvm.loaded": _uvm_loaded,
    }
)
