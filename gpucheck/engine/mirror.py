"""The mirror image: an empty image over which the host's own ``/usr`` and Python are bound read-only.

So the host's torch runs in a real container, under the engine's limits, with nothing pulled and nothing built. What it
cannot find is a difference between an image's libraries and the host's driver: there is no other image in it.
"""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpucheck.engine.container import Bind
from gpucheck.payload import mountinfo
from gpucheck.payload.mountinfo import below

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

REPOSITORY = "gpucheck-mirror"
MERGED = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
FOLDERS = (
    "dev",
    "proc",
    "sys",
    "run",
    "tmp",
    "etc",
    "usr",
    "gpucheck",
    "gpucheck/answer",
    "gpucheck/envelope",
    "gpucheck/payload",
)
# Too wide to expose for the sake of one file in them: such a file is bound alone.
NEVER_WHOLE = ("/", "/home", "/root", "/etc", "/var", "/opt", "/mnt", "/tmp", "/srv", "/run", "/proc", "/sys", "/dev")


def _etc(uid: int, gid: int) -> dict[str, str]:
    user = f"user:x:{uid}:{gid}::/tmp:/bin/sh\n" if uid else ""
    group = f"user:x:{gid}:\n" if gid else ""
    return {
        "etc/passwd": f"root:x:0:0::/tmp:/bin/sh\n{user}nobody:x:65534:65534::/tmp:/bin/false\n",
        "etc/group": f"root:x:0:\n{group}nogroup:x:65534:\n",
        "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
        "etc/hosts": "127.0.0.1 localhost\n::1 localhost\n",
    }


def tar(path: Path, uid: int, gid: int) -> None:
    """Write the image's only layer: folders to bind over, the host's links such as ``/lib``, and four small files."""
    with tarfile.open(path, "w") as archive:
        for name in FOLDERS:
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            archive.addfile(folder)
        for name in MERGED:
            if os.path.islink(f"/{name}"):  # noqa: PTH114 - the link itself is wanted
                link = tarfile.TarInfo(name)
                link.type, link.linkname = tarfile.SYMTYPE, os.readlink(f"/{name}")
                archive.addfile(link)
        files = {name: text.encode() for name, text in _etc(uid, gid).items()}
        # The loader's cache, copied and not bound: a GPU hook must be able to write a new one.
        cache = Path("/etc/ld.so.cache")
        if cache.is_file():
            files["etc/ld.so.cache"] = cache.read_bytes()
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o644
            archive.addfile(entry, io.BytesIO(data))


def roots(mapped: Mapping[str, Any], scratch: str) -> list[str]:
    """The fewest host paths that hold everything a judged Python uses (``payload/mapped_paths.py`` says what that is).

    Nothing of ``scratch``, the run's own folder, where libraries keep what they make up as they go.
    """
    wanted = [
        "/usr",
        *(f"/{name}" for name in MERGED if Path(f"/{name}").is_dir() and not Path(f"/{name}").is_symlink()),
    ]
    candidates = [*mapped["prefixes"], *mapped["path"]]
    for file in (mapped["executable"], mapped["real_executable"], *mapped["mapped"]):
        folder = str(Path(file).parent)
        candidates.append(file if folder in NEVER_WHOLE else folder)
    wanted += [path for path in candidates if path not in NEVER_WHOLE and not below(path, scratch)]
    return _outermost(wanted)


def _outermost(paths: Iterable[str]) -> list[str]:
    kept: list[str] = []
    for path in sorted({os.path.normpath(p) for p in paths}):
        merged = any(below(path, f"/{name}") for name in MERGED if os.path.islink(f"/{name}"))  # noqa: PTH114
        if not merged and not any(below(path, k) for k in kept):
            kept.append(path)
    return kept


def around(path: str, engine_root: str) -> list[str]:
    """``path``; or what it holds beside the engine's own folder, which no engine binds and nobody should see."""
    if not engine_root or not below(engine_root, path):
        return [path]
    own = str(Path(engine_root).parent)
    if path in (engine_root, own):
        return []
    return [part for child in sorted(Path(path).iterdir()) for part in around(str(child), engine_root)]


def mount_points() -> list[str]:
    """Where something is mounted here."""
    return [mount.point for mount in mountinfo.here()]


def split(bind: Bind, points: Iterable[str]) -> list[Bind]:
    """A read-only bind and, each on its own, every mount below its source: read-only does not reach them by itself."""
    if not bind.read_only or bind.recursive:
        return [bind]
    source = os.path.realpath(bind.source)
    parts = sorted({p for p in points if p != source and below(p, source)})
    return [bind, *(Bind(p, bind.target.rstrip("/") + p[len(source) :], read_only=True) for p in parts)]
