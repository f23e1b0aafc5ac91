"""What several tests need: an engine that answers; made machines, trees with a /proc, /sys and /dev of their own."""

from __future__ import annotations

import os
import subprocess
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpucheck import facts
from tests.fakes import door as doors

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpucheck.facts import Facts
    from tests.fakes.door import Door

ENGINE = Path(__file__).parents[1] / "ci" / "engine"
ELF = "\x7fELF\x02"
BARE = {
    "/proc/self/mountinfo": "1 0 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n2 1 0:2 / /dev/shm rw - tmpfs tmpfs rw\n",
    "/proc/1/cgroup": "0::/init.scope\n",
    "/proc/modules": "overlay 151552 1 - Live 0x0\n",
    "/proc/sys/kernel/hostname": "node7\n",
    "/proc/sys/kernel/osrelease": "6.1.0-amd64\n",
    "/sys/bus/pci/devices/0000:00:00.0/vendor": "0x8086\n",
    "/sys/bus/pci/devices/0000:00:00.0/device": "0x0d57\n",
    "/sys/bus/pci/devices/0000:00:00.0/class": "0x060000\n",
}


class Plant:
    """A machine that is being made: each method plants something; :meth:`facts` reads it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name, text in BARE.items():
            self.file(name, text)

    def path(self, name: str) -> Path:
        """Where ``name`` lies, its folder made."""
        path = self.root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def file(self, name: str, text: str = "") -> None:
        """A file with this text, its common indentation removed."""
        self.path(name).write_bytes(textwrap.dedent(text).encode())

    def link(self, name: str, target: str) -> None:
        """A symbolic link; an absolute target lies in the tree."""
        path = self.path(name)
        path.symlink_to(os.path.relpath(self.root / target.lstrip("/"), path.parent) if target[0] == "/" else target)

    def device(self, name: str) -> None:
        """A character device. Making one needs root; following a link to one does not."""
        self.path(name).symlink_to("/dev/null")

    def gpu(self, number: int, driver: str = "nvidia", **changes: str) -> str:
        """GPU ``number`` on PCI (``vendor``, ``device``, ``class_`` may differ); its address."""
        address = f"0000:{0x1B + number:02x}:00.0"
        folder = f"/sys/bus/pci/devices/{address}"
        self.file(f"{folder}/vendor", changes.get("vendor", "0x10de"))
        self.file(f"{folder}/device", changes.get("device", "0x2330"))
        self.file(f"{folder}/class", changes.get("class_", "0x030200"))
        if driver != "none":
            self.link(f"{folder}/driver", f"../../../bus/pci/drivers/{driver}")
        return address

    def driven(self, count: int, version: str = "580.65.06") -> None:
        """``count`` GPUs with everything that a loaded driver shows of them."""
        self.file("/proc/modules", "nvidia_uvm 1 0 - Live 0x0\nnvidia 1 1 nvidia_uvm, Live 0x0\n")
        text = f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {version}  Release Build\n"
        self.file("/proc/driver/nvidia/version", text)
        for name in ("nvidiactl", "nvidia-uvm"):
            self.device(f"/dev/{name}")
        for number in range(count):
            address = self.gpu(number)
            information = f"Model: \t\t NVIDIA H100\nGPU UUID: \t GPU-{number}\nDevice Minor: \t {number}\n"
            self.file(f"/proc/driver/nvidia/gpus/{address}/information", information)
            self.device(f"/dev/nvidia{number}")

    def library(self, name: str, content: str = ELF) -> None:
        """A 64-bit shared object, as far as a loader looks before it maps it."""
        self.path(name).write_bytes(content.encode("latin-1"))

    def facts(self, *names: str, **environ: str) -> Facts:
        """What is read here, with ``environ`` as the whole environment."""
        return facts.read(names, root=self.root, environ=environ, deadline_s=20)


def pytest_configure(config: pytest.Config) -> None:
    """Know the mark of probes, so that a test can import one."""
    config.addinivalue_line("markers", "probe: a probe's subject, level, legs, disturbance and deadline")


@pytest.fixture
def plant(tmp_path: Path) -> Plant:
    """A bare machine without GPUs, to plant things on."""
    return Plant(tmp_path / "root")


def lacking(what: str) -> None:
    """Skip; but fail in CI (``CI``, or ``GPUCHECK_CI_ENGINE=required``), where a skip would hide a hole."""
    if os.environ.get("CI") or os.environ.get("GPUCHECK_CI_ENGINE") == "required":
        pytest.fail(what, pytrace=False)
    pytest.skip(what)


@pytest.fixture(scope="session")
def docker_host() -> str:
    """The address of an engine that answers: ``DOCKER_HOST``, the private one of ``ci/engine``, or the system's."""
    asked = subprocess.run([ENGINE, "status"], capture_output=True, text=True, timeout=30, check=False)
    if asked.returncode:
        lacking(f'{asked.stderr.strip()}; start one: eval "$(ci/engine start)"')
    return asked.stdout.partition(",")[0]


@pytest.fixture
def door(docker_host: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    """A door before that engine, where requests can be held up or refused."""
    with doors.before(docker_host, tmp_path_factory.mktemp("door")) as made:
        yield made
