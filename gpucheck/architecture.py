"""May this GPU code run on that GPU? Compute capabilities, SASS and PTX, and the published torch wheels that fit.

Pure: names in, judgement out, no GPU and no library needed. The rules are NVIDIA's (CUDA programming guide, "binary
and PTX compatibility"; CUDA 12.9 release notes for family-specific targets) and, for integrated GPUs, those that torch
2.14.1 encodes in ``torch/cuda/__init__.py``. An unknown future number is judged by the general rule, never refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable


class Capability(NamedTuple):
    """A compute capability, ``9.0`` for an H100. As a code target it is written without the dot, ``sm_90``."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"

    @classmethod
    def parse(cls, text: str) -> Capability:
        """Read ``"9.0"`` or ``"12.1"``; anything else is a ValueError that holds the text."""
        return cls(*_two_numbers(text, "a compute capability"))


class Cuda(NamedTuple):
    """A CUDA version: of a toolkit (what a wheel was built with) or of a driver (the newest that it supports)."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"

    @classmethod
    def parse(cls, text: str) -> Cuda:
        """Read ``"13.0"``; anything else is a ValueError that holds the text."""
        return cls(*_two_numbers(text, "a CUDA version"))

    @classmethod
    def of_driver(cls, number: int) -> Cuda:
        """Decode what ``cuDriverGetVersion`` returns: 12040 is 12.4."""
        return cls(number // 1000, number % 1000 // 10)


class Code(Enum):
    """What an image holds: machine code for one generation, or PTX that the driver compiles on the first run."""

    SASS = "sm"
    PTX = "compute"


class Reach(Enum):
    """How far the target reaches: the general rule, this very capability (``a``), or its family (``f``)."""

    GENERAL = ""
    EXACT = "a"
    FAMILY = "f"


class Fit(Enum):
    """How an image, or the best of several, runs on a device. Ordered from the best to the worst."""

    NATIVE = "runs as it is"
    JIT = "is compiled by the driver on the first run"
    UNDECIDED = "cannot be decided from what is known"
    PTX_TOO_NEW = "holds only PTX that the driver does not understand"
    NONE = "has no image for the device"


@dataclass(frozen=True, slots=True)
class Image:
    """One device-code image. ``isa`` is the version of a PTX image, when it is known (9.0 came with CUDA 13.0)."""

    code: Code
    target: Capability
    reach: Reach = Reach.GENERAL
    isa: tuple[int, int] | None = None

    def __str__(self) -> str:
        return f"{self.code.value}_{self.target.major}{self.target.minor}{self.reach.value}"

    @classmethod
    def parse(cls, name: str, isa: tuple[int, int] | None = None) -> Image:
        """Read ``sm_90a``, ``compute_120``; anything else is a ValueError that holds the name."""
        if not (match := re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", name)):
            message = f"not the name of a GPU code target: {name!r}"
            raise ValueError(message)
        kind, major, minor, suffix = match.groups()
        return cls(Code(kind), Capability(int(major), int(minor)), Reach(suffix), isa)


@dataclass(frozen=True, slots=True)
class Wheel:
    """A published series of torch wheels: its CUDA version, the processor, the code in it, and its torch releases."""

    cuda: Cuda
    machine: str
    images: tuple[Image, ...]
    releases: str

    @property
    def index(self) -> str:
        """The folder of the package index of PyTorch that holds the series, as in ``cu126``."""
        return f"cu{self.cuda.major}{self.cuda.minor}"

    def __str__(self) -> str:
        return f"{self.index} (torch {self.releases})"


#: The first CUDA toolkit that writes each PTX ISA version, for the versions where the two are numbered apart
#: (NVIDIA, "PTX ISA release history"). Elsewhere 7.x came with 11.x, 8.x with 12.x and 9.x with 13.x.
_ISA_TOOLKITS = {(8, 6): Cuda(12, 7), (8, 7): Cuda(12, 8), (8, 8): Cuda(12, 9)}
_ISA_LINES = {7: (11, 8), 8: (12, 5), 9: (13, 5)}  # ISA major: toolkit major, last minor known to keep step

#: Integrated GPUs: code for discrete GPUs of the same major number does not run on them (Tegra TX1, TX2, Xavier, Orin).
_INTEGRATED = frozenset({Capability(5, 3), Capability(6, 2), Capability(7, 2), Capability(8, 7)})
#: From this toolkit on, code for discrete GPUs runs on those of Xavier and Orin too ("SBSA binaries run on Jetson").
_UNIFIED_SINCE = Cuda(13, 2)
_UNIFIED = frozenset({Capability(7, 2), Capability(8, 7)})
#: Thor was capability 10.1 up to CUDA 12.9, and is 11.0 since.
_RENAMED = {Capability(10, 1): Capability(11, 0)}

#: The oldest driver of each CUDA line ("minor version compatibility", docs.nvidia.com/deploy/cuda-compatibility).
OLDEST_DRIVER = {11: "450.80.02", 12: "525.60.13", 13: "580.65.06"}

#: Products by capability (developer.nvidia.com/cuda-gpus), to name a number for people; never used to judge.
PRODUCTS = {
    Capability(6, 0): "P100",
    Capability(6, 1): "GTX 10, P40",
    Capability(7, 0): "V100",
    Capability(7, 2): "Jetson Xavier",
    Capability(7, 5): "T4, RTX 20",
    Capability(8, 0): "A100, A30",
    Capability(8, 6): "A40, A10, RTX 30",
    Capability(8, 7): "Jetson Orin",
    Capability(8, 9): "L4, L40S, RTX 40",
    Capability(9, 0): "H100, H200, GH200",
    Capability(10, 0): "B200, GB200",
    Capability(10, 3): "B300, GB300",
    Capability(11, 0): "Jetson Thor",
    Capability(12, 0): "RTX 50, RTX PRO Blackwell",
    Capability(12, 1): "GB10 (DGX Spark)",
}


def _sass(*numbers: int) -> tuple[Image, ...]:
    return tuple(Image.parse(f"sm_{number}") for number in numbers)


#: Published series, oldest CUDA first: the lists of torch 2.14.1 (``PYTORCH_RELEASES_CODE_CC``), and for cu128 those of
#: its build script, confirmed on the 2.9.1 and 2.10.0 wheels. Series of earlier torch releases are left out.
WHEELS = (
    Wheel(Cuda(12, 6), "x86_64", _sass(50, 60, 70, 75, 80, 86, 90), "2.6 and later"),
    Wheel(Cuda(12, 8), "x86_64", _sass(70, 75, 80, 86, 90, 100, 120), "2.8 to 2.10"),
    Wheel(Cuda(13, 0), "x86_64", _sass(75, 80, 86, 90, 100, 120), "2.9 and later"),
    Wheel(Cuda(13, 2), "x86_64", _sass(75, 80, 86, 90, 100, 120), "2.14 and later"),
    Wheel(Cuda(13, 4), "x86_64", _sass(75, 80, 86, 90, 100, 120), "2.14 and later"),
    Wheel(Cuda(12, 6), "aarch64", _sass(80, 90), "2.6 and later"),
    Wheel(Cuda(13, 0), "aarch64", _sass(80, 90, 100, 110, 120), "2.9 and later"),
    Wheel(Cuda(13, 2), "aarch64", _sass(80, 90, 100, 110, 120), "2.14 and later"),
    Wheel(Cuda(13, 4), "aarch64", _sass(80, 90, 100, 110, 120), "2.14 and later"),
)


def fit(image: Image, device: Capability, *, toolkit: Cuda | None = None, driver: Cuda | None = None) -> Fit:
    """How ``image`` runs on ``device``. ``toolkit`` built it; ``driver``: the newest CUDA that the driver supports."""
    if image.code is Code.SASS:
        return _fit_sass(image, device, toolkit)
    return _fit_ptx(image, device, toolkit, driver)


def best_fit(
    images: Iterable[Image], device: Capability, *, toolkit: Cuda | None = None, driver: Cuda | None = None
) -> Fit:
    """How the best of ``images`` runs on ``device``; no image at all is :attr:`Fit.NONE`."""
    fits = {fit(image, device, toolkit=toolkit, driver=driver) for image in images}
    return next((rung for rung in Fit if rung in fits), Fit.NONE)


def driver_runs(toolkit: Cuda, driver: Cuda) -> bool:
    """Whether a driver for CUDA ``driver`` starts programs of ``toolkit``: any of its own line and of earlier lines."""
    # Minor-version compatibility began with CUDA 11; before, a driver had to be at least as new as the toolkit.
    return driver.major >= toolkit.major if toolkit.major >= min(OLDEST_DRIVER) else driver >= toolkit


def toolkit_of_isa(isa: tuple[int, int]) -> Cuda | None:
    """The first CUDA toolkit that writes PTX of version ``isa``; None for a version that we do not know."""
    if isa in _ISA_TOOLKITS:
        return _ISA_TOOLKITS[isa]
    major, minor = isa
    toolkit_major, last_minor = _ISA_LINES.get(major, (0, -1))
    return Cuda(toolkit_major, minor) if minor <= last_minor else None


def wheels_for(*devices: Capability, machine: str, driver: Cuda | None = None) -> tuple[Wheel, ...]:
    """The published series that run on all of ``devices`` (none: on some) without compiling, the newest CUDA first.

    ``machine`` is the processor, as ``platform.machine()`` names it; ``driver`` leaves out series that it cannot start.
    """
    return tuple(
        wheel
        for wheel in reversed(WHEELS)
        if wheel.machine == machine
        and all(best_fit(wheel.images, device, toolkit=wheel.cuda) is Fit.NATIVE for device in devices)
        and (driver is None or driver_runs(wheel.cuda, driver))
    )


def newer_is_wrong(device: Capability, *, machine: str, toolkit: Cuda, driver: Cuda | None = None) -> bool:
    """Whether the wheels that fit are all of an older CUDA than ``toolkit``, so that an upgrade cannot help."""
    fitting = wheels_for(device, machine=machine, driver=driver)
    return bool(fitting) and all(wheel.cuda < toolkit for wheel in fitting)


def name_of(device: Capability) -> str:
    """A capability for people: ``9.0 (H100, H200, GH200)``, or the bare number when no product is known."""
    product = PRODUCTS.get(device)
    return f"{device} ({product})" if product else str(device)


def _fit_sass(image: Image, device: Capability, toolkit: Cuda | None) -> Fit:
    target, device = _today(image.target), _today(device)
    if target == device:
        return Fit.NATIVE
    if image.reach is Reach.EXACT or target.major != device.major or target.minor > device.minor:
        return Fit.NONE
    if target in _INTEGRATED:
        return Fit.NONE
    return _fit_integrated(device, toolkit) if device in _INTEGRATED else Fit.NATIVE


def _fit_integrated(device: Capability, toolkit: Cuda | None) -> Fit:
    if device not in _UNIFIED:
        return Fit.NONE
    if toolkit is None:
        return Fit.UNDECIDED
    return Fit.NATIVE if toolkit >= _UNIFIED_SINCE else Fit.NONE


def _fit_ptx(image: Image, device: Capability, toolkit: Cuda | None, driver: Cuda | None) -> Fit:
    if not _ptx_reaches(image, device):
        return Fit.NONE
    needed = toolkit_of_isa(image.isa) if image.isa else toolkit
    if needed is None or driver is None:
        return Fit.UNDECIDED
    return Fit.JIT if driver >= needed else Fit.PTX_TOO_NEW


def _ptx_reaches(image: Image, device: Capability) -> bool:
    target, today = _today(image.target), _today(device)
    if target == today:
        return True
    if image.reach is Reach.GENERAL:
        return device >= image.target
    return image.reach is Reach.FAMILY and target.major == today.major and target.minor <= today.minor


def _today(capability: Capability) -> Capability:
    return _RENAMED.get(capability, capability)


def _two_numbers(text: str, what: str) -> tuple[int, int]:
    if not (match := re.fullmatch(r"(\d+)\.(\d+)", text)):
        message = f"not {what}: {text!r}"
        raise ValueError(message)
    return int(match[1]), int(match[2])
