"""Whether the installed torch holds code for a GPU, and which published wheel would. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpucheck.architecture import Cuda, Fit, Image, best_fit, name_of, newer_is_wrong, wheels_for
from gpucheck.verdict import Unable, Verdict, bad

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpucheck.architecture import Capability
    from gpucheck.verdict import Finding


@dataclass(frozen=True, slots=True)
class Installed:
    """The installed torch: its version, the CUDA that built it, the images in it, the processor that it is for."""

    version: str
    toolkit: Cuda
    images: tuple[Image, ...]
    machine: str

    @classmethod
    def parse(cls, version: str, cuda_build: str, flags: Sequence[str], machine: str) -> Installed:
        """As torch reports it. Raises ValueError for a name of an image that is none."""
        return cls(version, Cuda.parse(cuda_build), tuple(Image.parse(flag) for flag in flags), machine)

    def __str__(self) -> str:
        return f"torch {self.version} (CUDA {self.toolkit}): {' '.join(map(str, self.images)) or 'no images'}"


def how(wheel: Installed, device: Capability, driver: Cuda | None) -> Fit:
    """How its code runs on ``device``; ``driver`` is the newest CUDA that the driver supports, None: unknown."""
    return best_fit(wheel.images, device, toolkit=wheel.toolkit, driver=driver)


def judge(wheel: Installed, device: Capability, driver: Cuda | None, *evidence: str) -> Finding | None:
    """What is wrong with ``wheel`` for ``device``; None when it holds machine code for it. Raises Unable: undecided."""
    match how(wheel, device, driver):
        case Fit.NATIVE:
            return None
        case Fit.UNDECIDED:
            lacking = "the driver's CUDA version" if driver is None else "the version of the PTX in it"
            raise Unable(f"{lacking}: {wheel} has only PTX for {name_of(device)}")
        case Fit.JIT:
            return replace(_bad("jit-only", wheel, device, driver, evidence), weight=Verdict.DEGRADED)
        case Fit.PTX_TOO_NEW:
            return _bad("ptx-too-new", wheel, device, driver, evidence)
        case _:
            wrong = newer_is_wrong(device, machine=wheel.machine, toolkit=wheel.toolkit, driver=driver)
            return _bad("wheel-newer-wrong" if wrong else "no-kernel-image", wheel, device, driver, evidence)


def advice(wheel: Installed, device: Capability, driver: Cuda | None) -> tuple[str, ...]:
    """Which published wheels fit, newest CUDA first, or what to build: lines for people."""
    fitting = wheels_for(device, machine=wheel.machine, driver=driver)
    if not fitting:
        flags = f"TORCH_CUDA_ARCH_LIST={device}"
        return (f"no published wheel for {wheel.machine} has code for {device}; build with {flags}",)
    named = f"wheels that fit: {', '.join(map(str, fitting))}"
    if any(other.cuda >= wheel.toolkit for other in fitting):
        return (named,)
    newest = fitting[0].cuda
    if wheels_for(device, machine=wheel.machine)[0].cuda > newest:
        return (named, f"a newer CUDA than {newest} does not help: the driver (CUDA {driver}) does not start it")
    return (named, f"a newer CUDA than {newest} does not help: its wheels left {device} out")


def _bad(pitfall: str, wheel: Installed, device: Capability, driver: Cuda | None, evidence: tuple[str, ...]) -> Finding:
    fitting = wheels_for(device, machine=wheel.machine, driver=driver)
    params = {
        "capability": str(device),
        "index": fitting[0].index if fitting else "",
        "releases": fitting[0].releases if fitting else "",
        "arch_list": str(device),
        "wheel_cuda": str(wheel.toolkit),
        "driver_cuda": str(driver or ""),
    }
    lines = (f"{name_of(device)}: {wheel}", *advice(wheel, device, driver), *evidence)
    return bad(pitfall, *lines, **params)
