"""What torch's answers mean: what it counted, what it could not start, and what each GPU computed. Pure.

``is_available()`` is evidence at best: with ``PYTORCH_NVML_BASED_CUDA_CHECK`` it asks NVML alone and says True on a
machine where no operation works. A GPU is right when a kernel ran on it and its numbers are.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gpucheck.architecture import OLDEST_DRIVER, driver_runs
from gpucheck.judgement.driver_words import NO_KERNEL_IMAGE, NOT_SUPPORTED, UNKNOWN_PTX
from gpucheck.judgement.initialisation import cause
from gpucheck.judgement.visibility import Gpu, bare
from gpucheck.verdict import Unable, Unexplained, bad

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gpucheck.architecture import Cuda, Wheel
    from gpucheck.facts import Facts
    from gpucheck.judgement.initialisation import Start
    from gpucheck.verdict import Finding

IN_THE_WAY = (2, 46)
#: torch's own words for statuses that it gives without a number (c10/cuda/CUDAFunctions.cpp, cudaGetErrorString).
_WORDS = (
    ("driver on your system is too old", 35),
    ("Found no NVIDIA driver", 35),
    ("CUDA driver initialization failed", 3),
    ("No CUDA GPUs are available", 100),
    ("CUDA unknown error", 999),
    ("busy or unavailable", 46),
    ("out of memory", 2),
    ("no kernel image is available", NO_KERNEL_IMAGE),
    ("compiled with an unsupported toolchain", UNKNOWN_PTX),
    ("uncorrectable ECC error", 214),
    ("an illegal memory access", 700),
    ("unspecified launch failure", 719),
    ("CUBLAS_STATUS_NOT_INITIALIZED", -1),
    ("CUBLAS_STATUS_ALLOC_FAILED", -1),
)
_NUMBER = re.compile(r"Error (\d+): ")
_PITFALLS = {
    NO_KERNEL_IMAGE: "no-kernel-image",
    UNKNOWN_PTX: "ptx-too-new",
    214: "ecc-uncorrectable",
    700: "illegal-memory-access",
    719: "launch-failure",
    -1: "cublas-init-failed",
}


@dataclass(frozen=True, slots=True)
class Kernel:
    """What one device computed, as ``payload/cuda_torch.py`` reports it. ``worst`` up to 1 is right."""

    ordinal: int
    ended: str
    step: str = ""
    text: str = ""
    worst: float | None = None
    free_bytes: int | None = None
    kernel_s: float | None = None

    @classmethod
    def parse(cls, told: Mapping[str, Any]) -> Kernel:
        """One entry of the payload's ``kernels``."""
        said = " ".join(str(told[name]) for name in ("type", "text", "signal") if told.get(name))
        known = {name: told.get(name) for name in ("worst", "free_bytes", "kernel_s")}
        return cls(told["ordinal"], told["ended"], told.get("step") or "", said, **known)

    @property
    def is_right(self) -> bool:
        """Whether the kernel ran and its numbers are right."""
        return self.ended == "value" and self.worst is not None and self.worst <= 1


@dataclass(frozen=True, slots=True)
class Seen:
    """What torch saw. UUIDs are bare; ``error`` is how its own initialisation ended, None when well."""

    version: str
    cuda_build: str | None
    hip_build: str | None
    arch_flags: tuple[str, ...]
    is_available: bool | None
    error: str | None
    devices: tuple[Mapping[str, Any], ...]
    kernels: Mapping[int, Kernel]

    @classmethod
    def parse(cls, told: Mapping[str, Any]) -> Seen:
        """The payload's answer."""
        error = told["error"]
        return cls(
            version=told["version"],
            cuda_build=told["cuda_build"],
            hip_build=told["hip_build"],
            arch_flags=tuple(told["arch_flags"] or ()),
            is_available=told["is_available"],
            error=f"{error['type']}: {error['text']}" if error else None,
            devices=tuple(told["devices"]),
            kernels={kernel["ordinal"]: Kernel.parse(kernel) for kernel in told["kernels"]},
        )

    @property
    def build(self) -> str:
        """The wheel for people."""
        kind = (
            f"CUDA {self.cuda_build}" if self.cuda_build else f"ROCm {self.hip_build}" if self.hip_build else "CPU only"
        )
        return f"torch {self.version} ({kind})"

    @property
    def line(self) -> str:
        """What it saw as a line of evidence."""
        claim = f"is_available() claims {self.is_available}"
        return f"{self.build}: {len(self.devices)} GPU(s); {claim}{f'; {self.error}' if self.error else ''}"

    def ordinals(self, uuids: Iterable[str]) -> tuple[int, ...]:
        """The devices of those bare UUIDs, in torch's order."""
        wanted = set(uuids)
        return tuple(device["ordinal"] for device in self.devices if device["uuid"] in wanted)


def in_use(gpu: Mapping[str, Any], disturb: str) -> str | None:
    """Why a GPU (as ``payload/nvml.py`` describes it) is not to be loaded under ``--gpucheck-disturb``, or None.

    A GPU of which nobody knows who uses it may be in use.
    """
    if disturb == "none":
        return "--gpucheck-disturb=none: no GPU may be loaded"
    if gpu["compute_mode"] == "prohibited":
        return "its compute mode is prohibited"
    if disturb == "any":
        return None
    if gpu["processes"] is None:
        return _users_untold(gpu["unknown"])
    if running := gpu["processes"]:
        return f"{len(running)} process(es) on it (pid {', '.join(str(process['pid']) for process in running[:4])})"
    return None


def _users_untold(unknown: Mapping[str, str]) -> str | None:
    """Why NVML does not tell who uses a GPU, or None where that is no reason to leave it alone."""
    if "handle" in unknown:
        return None  # CUDA cannot reach it either; what is wrong with it is said by another
    why = unknown.get("processes", "no reason given")
    # Under WSL and on Jetson NVML never lists anybody. There the question would never be answered, and the load of a
    # single user's GPU with a small product for a second is the lesser harm.
    return None if why == NOT_SUPPORTED else f"who uses it is unknown: NVML: {why}"


def spared(host: Facts, disturb: str) -> list[str]:
    """The bare UUIDs of this host's GPUs that are not to be loaded, and of their MIG slices."""
    gpus = [gpu for gpu in host.known("nvml.gpus") or () if in_use(gpu, disturb)]
    cards = [Gpu.parse(gpu) for gpu in gpus]
    return [bare(uuid) for card in cards for uuid in (card.uuid, *card.slices) if uuid]


def cpu_only(build: str | None, version: str, wheels: Iterable[Wheel], hip: str | None = None) -> Finding | None:
    """Whether the installed torch has no CUDA in it at all (``build`` is its CUDA version, None or "none": without)."""
    if build not in (None, "none"):
        return None
    fitting = [str(wheel) for wheel in wheels]
    kind = f"for ROCm {hip}" if hip else "for the CPU alone"
    index = fitting[0].partition(" ")[0] if fitting else ""
    advice = f"wheels that fit: {', '.join(fitting) or 'none is published'}"
    return bad("cpu-only-wheel", f"torch {version} was built {kind}", advice, version=version, index=index)


def too_old(driver: Cuda, toolkit: Cuda, wheels: Iterable[Wheel], version: str | None) -> Finding | None:
    """Whether a driver for CUDA ``driver`` is too old for programs of ``toolkit``; ``wheels``: what would fit."""
    if driver_runs(toolkit, driver):
        return None
    needed = OLDEST_DRIVER.get(toolkit.major, f"for CUDA {toolkit.major}")
    fitting = [str(wheel) for wheel in wheels]
    evidence = [
        f"the driver {version or 'of unknown version'} supports CUDA {driver}, torch was built with CUDA {toolkit}",
        f"CUDA {toolkit.major} needs a driver {needed} or later",
        f"torch wheels that this driver starts: {', '.join(fitting) or 'none is published'}",
    ]
    index = fitting[0].partition(" ")[0] if fitting else ""
    return bad("driver-too-old", *evidence, driver_cuda=driver, wheel_cuda=toolkit, driver_needed=needed, index=index)


def status_of(text: str) -> int | None:
    """The status behind what torch says; None when its words name none."""
    if match := _NUMBER.search(text):
        return int(match[1])
    return next((code for words, code in _WORDS if words in text), None)


def start_cause(facts: Facts, start: Start, error: str) -> Finding | None:
    """Why torch did not start CUDA where the driver alone did: the same rules, by the status behind torch's words."""
    code = status_of(error)
    return cause(facts, replace(start, code=code, words=error)) if code is not None else None


def judge(kernel: Kernel, name: str) -> Finding | None:
    """What a kernel on the GPU ``name`` showed: None when it is right.

    Raises Unable when the GPU was taken by somebody else, or when what it said has no known cause.
    """
    if kernel.is_right:
        return None
    if kernel.ended == "value":
        share = "not a number" if kernel.worst is None else f"{kernel.worst:.3g} times what float32 may be off by"
        return bad("wrong-numbers", f"{name}: a product differs from float64 on the CPU by {share}", gpu=name)
    if kernel.ended == "busy":
        raise Unable(f"{name}: 256 MB of memory, {(kernel.free_bytes or 0) >> 20} MB are free")
    if kernel.ended == "hang":
        pitfall = "cuda-init-hangs" if kernel.step in ("", "initialise") else "launch-failure"
        return bad(pitfall, f"{name}: did not come back ({kernel.step or 'initialise'})", gpu=name)
    if kernel.ended == "signal":
        return bad("native-crash", f"{name}: the process died ({kernel.step}): {kernel.text}", gpu=name)
    return _failed(kernel, name)


def _failed(kernel: Kernel, name: str) -> Finding:
    code = status_of(kernel.text)
    said = f"{name}: {kernel.step}: {kernel.text.strip().partition(chr(10))[0]}"
    if code in IN_THE_WAY:
        raise Unable(said)
    if code not in _PITFALLS:
        raise Unexplained(f"a kernel on {said}", kernel.text)
    return bad(_PITFALLS[code], said, gpu=name)


def import_fault(told: Mapping[str, Any]) -> Finding | None:
    """Why ``import torch`` does not work, as ``payload/import_probe.py`` saw it; None when it works."""
    if told["ended"] == "works":
        return None
    ending = {"signal": f"died of {told['code']}", "hang": "did not end", "exits": f"left with status {told['code']}"}
    lines = [f"import torch {ending.get(told['ended'], 'raised')}: {told['text']}", *_import_details(told)]
    params = {name: told[name] or "" for name in ("library", "symbol", "module", "culprit")}
    if told["ended"] == "raises" and told["module"] == "torch":
        return bad("torch-missing", *lines)
    return bad("torch-import-failed", *lines, **params)


def _import_details(told: Mapping[str, Any]) -> list[str]:
    damage = {"library": f" {told['damage']}"} if told["damage"] else {}
    lines = [f"{n}: {told[n]}{damage.get(n, '')}" for n in ("module", "library", "symbol") if told[n]]
    for name, words in (("needed_by", "needed by"), ("shadow", "imported instead"), ("culprit", "works without")):
        if told[name]:
            lines.append(f"{words}: {told[name]}")
    for name, words in (("found_in", "also in"), ("where", "at")):
        if told[name]:
            lines.append(f"{words}: {', '.join(told[name])}")
    return lines
