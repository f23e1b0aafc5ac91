"""Which file the dynamic loader would take for a library's name, found without loading it (ld.so(8))."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from gpucheck.facts import aside
from gpucheck.facts.mounts import may_block

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpucheck.facts.tree import Tree

CACHE: Final = "/etc/ld.so.cache"
_DEFAULT_FOLDERS: Final = (
    "/lib64",
    "/usr/lib64",
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/lib",
    "/usr/lib",
)
# glibc's own layout of the cache: magic, count, size of the strings, padding to 48 bytes; then 24 bytes an entry.
_MAGIC: Final = b"glibc-ld.so.cache1.1"
_HEADER_BYTES: Final = 48
_ENTRY: Final = struct.Struct("<iIIIQ")
_ELF64: Final = b"\x7fELF\x02"


def find(tree: Tree, library: str) -> str | None:
    """The path of ``library`` (``libcuda.so.1``) that would be loaded, links not followed; None when there is none.

    In the loader's order: LD_LIBRARY_PATH, the cache, the default folders. Files of another word size are passed over.
    """
    return next(candidates(tree, library), None)


def candidates(tree: Tree, library: str) -> Iterator[str]:
    """Every path that the loader knows for ``library``, the one that it takes first."""
    seen: set[str] = set()
    for path in (*_from_environment(tree, library), *_from_cache(tree, library), *_from_defaults(library)):
        if path not in seen and _loadable(tree, path):
            seen.add(path)
            yield path


def _from_environment(tree: Tree, library: str) -> Iterator[str]:
    for folder in tree.environ.get("LD_LIBRARY_PATH", "").replace(";", ":").split(":"):
        if folder.startswith("/"):
            yield f"{folder.rstrip('/')}/{library}"


def _from_cache(tree: Tree, library: str) -> Iterator[str]:
    try:
        data = tree.path(CACHE).read_bytes()
    except OSError:
        return  # the loader, too, goes on without its cache
    start = data.find(_MAGIC)
    if start < 0 or library.encode() + b"\0" not in data:
        return
    (count,) = struct.unpack_from("<I", data, start + len(_MAGIC))
    end = start + _HEADER_BYTES + count * _ENTRY.size
    for _, key, value, _, _ in _ENTRY.iter_unpack(data[start + _HEADER_BYTES : end]):
        if _string(data, start + key) == library:
            yield _string(data, start + value)


def _string(data: bytes, start: int) -> str:
    return data[start : data.find(b"\0", start)].decode(errors="replace")


def _from_defaults(library: str) -> Iterator[str]:
    for folder in _DEFAULT_FOLDERS:
        yield f"{folder}/{library}"


def _loadable(tree: Tree, path: str) -> bool:
    """Whether it is a 64-bit ELF file: an empty one is left by an image that was made from a GPU container."""
    if may_block(tree, path):
        return (aside.files(tree, [path])[path] or "").startswith(_ELF64.decode())
    try:
        with tree.path(path).open("rb") as stream:
            return stream.read(len(_ELF64)) == _ELF64
    except OSError:
        return False
