"""Machines that are not here: from ``machines/*.toml``; written: libraries, and trees of ``/proc``, ``/sys``, ``/dev``.

A machine's libraries are C stand-ins for ``libcuda.so.1`` and ``libnvidia-ml.so.1``, compiled once; each copy reads the
description beside it. Its tree holds what the kernel would show. Both are put where a process finds them: the libraries
by ``LD_LIBRARY_PATH``, the tree by bind mounts in a mount namespace (:meth:`Machine.enter`).
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from gpucheck.payload import bounded

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

HERE = Path(__file__).parent
MACHINES = HERE / "machines"
LIBRARIES = {"libcuda.so.1": "libcuda.c", "libnvidia-ml.so.1": "libnvidia_ml.c"}
#: Put in front of the real CUDA runtime, which refuses to go on with a driver that is not NVIDIA's own.
RUNTIME = "libcudart-played.so"
NVIDIA_MAJOR = 195
_GIB = 1 << 30
GCC_S = 60.0
_NODES = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")


@dataclass(frozen=True, slots=True)
class Card:
    """One GPU of a machine. ``extra`` are further answers of the stand-ins, by their names in the C source."""

    index: int
    name: str
    capability: str
    memory_bytes: int
    uuid: str
    pci: str
    pci_device: str
    driver: str
    extra: Mapping[str, Any] = field(default_factory=dict)

    def lines(self) -> Iterator[str]:
        """The card as lines of ``machine.txt``."""
        major, _, minor = self.capability.partition(".")
        values = {
            "name": self.name,
            "board": self.name,
            "uuid": self.uuid,
            "board_uuid": self.uuid,
            "capability_major": major,
            "capability_minor": minor,
            "memory_bytes": self.memory_bytes,
            "pci": self.pci,
            "pci_device": f"0x{self.pci_device}",
            "minor": self.index,
            **self.extra,
        }
        return (f"gpu.{self.index}.{name}={value}" for name, value in values.items())


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine that is not here: what its driver answers, what its kernel shows, and what gpucheck should say."""

    name: str
    data: Mapping[str, Any]
    cards: tuple[Card, ...]

    @property
    def title(self) -> str:
        """The machine in words."""
        return str(self.data["title"])

    @property
    def driver(self) -> Mapping[str, Any]:
        """The ``[driver]`` table; empty where no driver is installed."""
        driver: Mapping[str, Any] = self.data.get("driver", {})
        return driver

    @property
    def expected(self) -> Mapping[str, Any]:
        """The ``[expect]`` table: the worst ``verdict`` of all rows, and ``pitfalls``, what is found (or none)."""
        expected: Mapping[str, Any] = self.data["expect"]
        return expected

    def environment(self, home: Path) -> dict[str, str]:
        """The variables that a process on this machine has, given where :meth:`write` wrote it."""
        libraries = [str(home / folder) for folder in self.data.get("library_path", ["lib"])]
        played = home / "lib" / RUNTIME
        preload = {"LD_PRELOAD": str(played)} if played.exists() else {}
        return {"LD_LIBRARY_PATH": ":".join(libraries), **preload, **self.data.get("environment", {})}

    def write(self, home: Path, built: Path) -> None:
        """Write the libraries (from ``built``, see :func:`build`) and the tree below ``home``.

        Where the stand-in for the CUDA runtime was built, machines whose driver starts get it.
        """
        self.write_libraries(home, built)
        _Tree(self, home / "root").write()

    def write_libraries(self, home: Path, built: Path) -> None:
        """Write the libraries alone; making the nodes of the tree needs root."""
        for folder, kinds in self.data.get("libraries", {"lib": list(LIBRARIES)}).items():
            self._write_libraries(home / folder, kinds, built)
        if (built / RUNTIME).exists() and self.starts:
            shutil.copy(built / RUNTIME, home / "lib" / RUNTIME)

    @property
    def starts(self) -> bool:
        """Whether the driver of this machine starts."""
        return "init" not in self.data.get("cuda", {}) and "cuda_in" not in self.data

    def _write_libraries(self, folder: Path, kinds: list[str], built: Path) -> None:
        folder.mkdir(parents=True)
        (folder / "machine.txt").write_text("\n".join(self._description(folder.name)) + "\n")
        for kind in kinds:
            real = folder / kind.replace(".so.1", f".so.{self.driver.get('library', '0')}")
            shutil.copy(built / kind, real)
            (folder / kind).symlink_to(real.name)

    def _description(self, folder: str) -> Iterator[str]:
        cuda = self.data.get("cuda", {}) | self.data.get("cuda_in", {}).get(folder, {})
        major, _, minor = str(cuda.get("version", self.driver.get("cuda", "0.0"))).partition(".")
        yield f"gpus={len(self.cards)}"
        yield f"cuda.version={int(major) * 1000 + int(minor) * 10}"
        yield from (f"cuda.{name}={value}" for name, value in cuda.items() if name != "version")
        yield from (f"nvml.{name}={value}" for name, value in self.data.get("nvml", {}).items())
        yield f"driver.module_version={self.driver.get('module', '')}"
        yield f"driver.library_version={self.driver.get('library', '')}"
        for card in self.cards:
            yield from card.lines()

    def enter(self, home: Path, argv: list[str]) -> list[str]:
        """The command that runs ``argv`` on this machine: in a mount namespace, with its kernel's view. Needs root."""
        root = home / "root"
        steps = [
            "mount --make-rprivate /",
            *(
                f"mount --bind {shlex.quote(str(root / below))} /{below}"
                for below in ("proc/driver", "proc/modules", "proc/devices", "sys/module", "sys/bus/pci/devices")
                if (root / below).exists() and Path("/", below).exists()
            ),
            shlex.join([sys.executable, str(HERE / "nodes.py"), str(root)]),
            f"exec {shlex.join(argv)}",
        ]
        return ["unshare", "--mount", "sh", "-ec", "\n".join(steps)]


@dataclass(frozen=True, slots=True)
class _Tree:
    """What the kernel of a machine shows, written below ``root``."""

    machine: Machine
    root: Path

    def write(self) -> None:
        for name in ("proc/driver", "sys/module", "sys/bus/pci/devices", "sys/bus/pci/drivers", "dev"):
            (self.root / name).mkdir(parents=True)
        for address, card in self._devices():
            self._device(address, card)
        self._modules()
        if self.machine.driver.get("module"):
            self._loaded()
        for number, name in enumerate(self._nodes()):
            os.mknod(self.root / "dev" / name, 0o020666, os.makedev(NVIDIA_MAJOR, number))

    def _devices(self) -> Iterator[tuple[str, Mapping[str, str]]]:
        for card in self.machine.cards:
            yield card.pci, {"device": card.pci_device, "class": "030200", "driver": card.driver}
        for number in range(self.machine.data.get("fabric", {}).get("switches", 0)):
            yield f"0000:{0xE0 + number:02x}:00.0", {"device": "22a3", "class": "068000", "driver": "nvidia-nvswitch"}

    def _device(self, address: str, device: Mapping[str, str]) -> None:
        folder = f"sys/bus/pci/devices/{address}"
        self._file(f"{folder}/vendor", "0x10de\n")
        self._file(f"{folder}/device", f"0x{device['device']}\n")
        self._file(f"{folder}/class", f"0x{device['class']}\n")
        if device["driver"] != "none":
            driver = self.root / "sys/bus/pci/drivers" / device["driver"]
            driver.mkdir(exist_ok=True)
            (self.root / folder / "driver").symlink_to(os.path.relpath(driver, self.root / folder))

    def _modules(self) -> None:
        loaded = self.machine.data.get("modules", ["nvidia", "nvidia_uvm"] if self.machine.driver.get("module") else [])
        lines = [f"{name} 1000000 1 - Live 0x0000000000000000 (OE)" for name in loaded]
        self._file("proc/modules", "".join(f"{line}\n" for line in [*lines, "overlay 151552 1 - Live 0x0"]))
        for name in loaded:
            (self.root / "sys/module" / name).mkdir()

    def _loaded(self) -> None:
        driver = self.machine.driver
        version = driver["module"]
        words = "Open Kernel Module for x86_64" if driver["kind"] == "open" else "x86_64 Kernel Module"
        text = (
            f"NVRM version: NVIDIA UNIX {words}  {version}  Release Build  (builder@host)\nGCC version:  gcc 12.3.0\n"
        )
        self._file("proc/driver/nvidia/version", text)
        self._file("sys/module/nvidia/version", f"{version}\n")
        self._file("proc/devices", "Character devices:\n195 nvidia\n195 nvidiactl\n511 nvidia-uvm\n\nBlock devices:\n")
        for card in self.machine.cards:
            if card.driver == "nvidia":
                lines = f"Model: \t\t {card.name}\nGPU UUID: \t {card.uuid}\nDevice Minor: \t {card.index}\n"
                self._file(f"proc/driver/nvidia/gpus/{card.pci}/information", lines)

    def _nodes(self) -> Iterator[str]:
        if not self.machine.driver.get("module"):
            return
        missing = self.machine.data.get("nodes_missing", [])
        names = [*_NODES, *(f"nvidia{card.index}" for card in self.machine.cards if card.driver == "nvidia")]
        yield from (name for name in names if name not in missing)

    def _file(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def build(into: Path, site_packages: Path | None = None) -> Path:
    """Compile the stand-ins into ``into`` with gcc and return it. Raises RuntimeError with gcc's words.

    With the ``site_packages`` of a CUDA build of torch, whose wheels bring the headers, that for the CUDA runtime too.
    """
    into.mkdir(parents=True, exist_ok=True)
    for library, source in LIBRARIES.items():
        _compile(into / library, source, f"-Wl,-soname,{library}")
    if site_packages is not None:
        headers = [site_packages / "nvidia/cu13/include", site_packages / "triton/backends/nvidia/include"]
        _compile(into / RUNTIME, "libcudart.c", f"-I{headers[0]}", "-idirafter", str(headers[1]))
    return into


def _compile(library: Path, source: str, *flags: str) -> None:
    argv = [
        "gcc",
        "-shared",
        "-fPIC",
        "-O1",
        "-w",
        "-fvisibility=hidden",
        *flags,
        "-o",
        str(library),
        str(HERE / source),
        "-ldl",
    ]
    said = bounded.run(argv, GCC_S)
    if said.code is None:
        raise RuntimeError(f"gcc did not end within {GCC_S:g} s")
    if said.code != 0:
        raise RuntimeError(said.errors)


def load(name: str) -> Machine:
    """The machine of ``machines/<name>.toml``."""
    data = tomllib.loads((MACHINES / f"{name}.toml").read_text(encoding="utf-8"))
    return Machine(name, data, tuple(_cards(name, data.get("gpus", []))))


def names() -> list[str]:
    """All machines, sorted."""
    return sorted(path.stem for path in MACHINES.glob("*.toml"))


def _cards(machine: str, groups: list[dict[str, Any]]) -> Iterator[Card]:
    index = 0
    for group in groups:
        given = dict(group)
        for _ in range(given.pop("count", 1)):
            yield _card(machine, index, dict(given))
            index += 1


def _card(machine: str, index: int, given: dict[str, Any]) -> Card:
    board = f"GPU-{uuid.uuid5(uuid.NAMESPACE_DNS, f'{machine}-{index}')}"
    return Card(
        index=index,
        name=given.pop("name"),
        capability=given.pop("capability"),
        memory_bytes=int(given.pop("memory_gib") * _GIB),
        uuid=given.pop("uuid", board),
        pci=f"0000:{0x1B + index * 8:02x}:00.0",
        pci_device=given.pop("pci_device"),
        driver=given.pop("driver", "nvidia"),
        extra=given,
    )
