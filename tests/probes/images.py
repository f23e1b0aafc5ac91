"""Images for tests, made of this host's own files: its Python with the libraries that it needs, and torch.

Nothing is pulled. A :class:`Bakery` removes at its end what it has made.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
from contextlib import suppress
from importlib.util import source_from_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import docker

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

PYTHON = "/usr/local/bin/python3"
SITE = "/opt/site"
PATH = "/usr/local/bin:/usr/bin:/bin"
ENV = (f"PATH={PATH}", f"PYTHONPATH={SITE}")
# What no import needs of the standard library.
LEFT_OUT = re.compile(
    r"/(?:test|tests|idlelib|lib2to3|ensurepip|turtledemo|tkinter|site-packages|dist-packages)(?:/|$)|\.a$|/config-3"
)
# Does with torch what is done with it in an image, and says which files that took.
USED = """
import sys
opened = set()
def hear(event, args):
    if event in ("open", "import"):
        opened.add(str(args[event == "import"]))
sys.addaudithook(hear)
import numpy, torch
try:
    torch.cuda.init()
except (AssertionError, RuntimeError):
    pass
left = torch.randn(4, 4, requires_grad=True)
(left @ torch.randn(4, 4)).sum().backward()
torch.from_numpy(numpy.zeros(1)).double().numpy()
print(*opened, sep=chr(10))
"""


def needed(files: Iterable[str]) -> set[str]:
    """The libraries outside of site-packages that these files need, as ldd finds them."""
    told = subprocess.run(["ldd", *files], capture_output=True, text=True, timeout=60, check=False).stdout
    found = set(re.findall(r"=> (/\S+)", told)) | set(re.findall(r"^\s+(/\S+) \(", told, re.MULTILINE))
    return {path for path in found if "-packages/" not in path}


def python_files() -> Iterator[tuple[str, str]]:
    """Source and target of this Python: program, standard library, libraries."""
    program = os.path.realpath(sys.executable)
    standard = sysconfig.get_path("stdlib")
    yield program, PYTHON
    yield standard, f"/usr/local/lib/python{sys.version_info.major}.{sys.version_info.minor}"
    modules = [str(path) for path in (Path(standard) / "lib-dynload").glob("*.so")]
    yield from libraries([program, *modules])


def torch_files() -> Iterator[tuple[str, str]]:
    """The same of the torch of this environment, as far as it is used."""
    site = Path(sysconfig.get_path("platlib"))
    told = subprocess.run([sys.executable, "-c", USED], capture_output=True, text=True, timeout=120, check=True).stdout
    used = {Path(line) for line in told.splitlines() if line.startswith(f"{site}/")}
    # Compiled modules are taken only beside their source.
    used |= {Path(source_from_cache(path)) for path in used if path.suffix == ".pyc"}
    for pattern in ("torch/lib/*.so*", "torch/bin/torch_shm*", "numpy.libs/*"):
        used |= set(site.glob(pattern))
    used = {path for path in used if path.is_file()}
    for path in used:
        yield str(path), f"{SITE}/{path.relative_to(site)}"
    yield from libraries([str(path) for path in used if ".so" in path.name])


def libraries(files: list[str]) -> Iterator[tuple[str, str]]:
    """What they need; a library from elsewhere than the system's folders goes where the loader looks."""
    for path in sorted(needed(files)):
        # As its name says, not as a link resolves: that name is what the loader asks for.
        yield path, path if path.startswith("/lib") else f"/usr/lib/{os.path.basename(path)}"


def tar(path: Path, files: Iterable[tuple[str, str]]) -> Path:
    """A root file system of these files, links followed."""

    def kept(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        entry.uid = entry.gid = 0
        return None if LEFT_OUT.search(f"/{entry.name}") else entry

    with tarfile.open(path, "w", dereference=True) as archive:
        for source, target in dict(files).items():
            archive.add(source, target.lstrip("/"), filter=kept)
    return path


class Bakery:
    """Makes images in an engine, under names of its own."""

    def __init__(self, address: str, folder: Path) -> None:
        self.client = docker.DockerClient(base_url=address, timeout=120)
        self.folder = folder
        self.name = f"gpucheck-test-{os.getpid()}"
        self.made: list[str] = []

    def close(self) -> None:
        """Remove them."""
        for name in reversed(self.made):
            with suppress(docker.errors.ImageNotFound):
                self.client.images.remove(name, force=True)
        self.client.close()

    def tagged(self, tag: str) -> str:
        """A name, which is removed at the end."""
        self.made.append(f"{self.name}:{tag}")
        return self.made[-1]

    def of_files(self, tag: str, *files: Iterable[tuple[str, str]], env: Iterable[str] = ENV) -> str:
        """An image of these files, with that environment and no command."""
        path = tar(self.folder / f"{tag}.tar", [pair for part in files for pair in part])
        changes = [f"ENV {entry}" for entry in env]
        self.client.api.import_image_from_file(str(path), repository=self.name, tag=tag, changes=changes)
        path.unlink()
        return self.tagged(tag)

    def altered(
        self, base: str, tag: str, *changes: str, script: str = "", files: Mapping[str, str | bytes] | None = None
    ) -> str:
        """``base`` with instructions of a Dockerfile, after ``script`` ran in it and with these small files."""
        command = {"entrypoint": [PYTHON, "-c", script]} if script else {"command": ["none"]}
        container = self.client.containers.create(base, network_mode="none", **command)
        try:
            if script:
                container.start()
                said = container.wait(timeout=60)
                assert said["StatusCode"] == 0, container.logs().decode()
            if files:
                container.put_archive("/", small_tar(files))
            undo = ("ENTRYPOINT []", "CMD []")
            container.commit(self.name, tag, changes="\n".join((*undo, *changes)))
        finally:
            container.remove(force=True)
        return self.tagged(tag)

    def loaded(self, tag: str, architecture: str, files: Mapping[str, str | bytes]) -> str:
        """An image that says it is for that processor."""
        layer = small_tar(files)
        layers = {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]}
        config: dict[str, Any] = {"architecture": architecture, "os": "linux", "rootfs": layers}
        config["config"] = {"Env": [f"PATH={PATH}"]}
        name = f"{self.name}:{tag}"
        manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
        parts: dict[str, str | bytes] = {"config.json": json.dumps(config), "manifest.json": json.dumps(manifest)}
        parts["layer.tar"] = layer
        self.client.images.load(small_tar(parts))
        return self.tagged(tag)


def small_tar(files: Mapping[str, str | bytes]) -> bytes:
    """A tar of files by path, each of which may be run."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, text in files.items():
            data = text.encode() if isinstance(text, str) else text
            entry = tarfile.TarInfo(name.lstrip("/"))
            entry.size, entry.mode = len(data), 0o755
            archive.addfile(entry, io.BytesIO(data))
    return stream.getvalue()
