"""What an image says of itself before anything runs in it: platform, environment, demands on a driver. Pure, a leaf."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from gpucheck import redact
from gpucheck.verdict import Finding, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

#: Processors as ``platform.machine()`` names them, and what images for them say (GOARCH); the first is its own.
ARCHITECTURES: Mapping[str, tuple[str, ...]] = {
    "x86_64": ("amd64", "386"),
    "aarch64": ("arm64",),
    "ppc64le": ("ppc64le",),
    "riscv64": ("riscv64",),
    "s390x": ("s390x",),
}
_EMULATORS = {names[0]: machine for machine, names in ARCHITECTURES.items()} | {"386": "i386", "arm": "arm"}
_HANDLERS = "/proc/sys/fs/binfmt_misc"
VISIBLE = "NVIDIA_VISIBLE_DEVICES"
CAPABILITIES = "NVIDIA_DRIVER_CAPABILITIES"
CUDA_VISIBLE = "CUDA_VISIBLE_DEVICES"
_HIDE_ALL = ("", "-1", "none", "void", "nodevfiles")
_HIDDEN = "hidden-by-environment"
# Fingerprints and the like that official images carry: named as secrets are, and public.
_PUBLIC = re.compile(r"^GPG_KEYS?$|PUBLIC_KEY$")
_NO_SECRET = re.compile(r"^(?:|\d+|true|false|yes|no|on|off|none|null|[/~.].*|\$.*)$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Image:
    """An image that the engine has. ``env`` holds the variables that may be shown; ``secrets`` are names alone."""

    name: str
    id: str
    digests: tuple[str, ...] = ()
    os: str = "linux"
    architecture: str = ""
    variant: str = ""
    user: str = ""
    has_entrypoint: bool = False
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    secrets: tuple[str, ...] = ()

    @classmethod
    def parse(cls, name: str, told: Mapping[str, Any]) -> Image:
        """An image as ``payload/engine_call.py`` describes it. Of its environment no secret is kept."""
        env: Mapping[str, str] = told["env"]
        return cls(
            name=name,
            id=told["id"],
            digests=tuple(told["digests"]),
            os=told["os"],
            architecture=told["architecture"],
            variant=told["variant"],
            user=told["user"],
            has_entrypoint=told["entrypoint"],
            env=redact.allowed(env),
            secrets=tuple(sorted(variable for variable, value in env.items() if _is_secret(variable, value))),
        )

    @property
    def details(self) -> dict[str, Any]:
        """What a record keeps of it."""
        return {"config": self.id, "digests": list(self.digests), "platform": self.platform}

    @property
    def platform(self) -> str:
        """``linux/arm64/v8``."""
        return "/".join(part for part in (self.os, self.architecture, self.variant) if part)


def secret_values(env: Mapping[str, str]) -> list[str]:
    """What the secrets of an image's environment hold: to be masked wherever they come up."""
    return [value for name, value in env.items() if _is_secret(name, value)]


def _is_secret(name: str, value: str) -> bool:
    if _NO_SECRET.match(value):
        return False
    return (redact.is_secret_name(name) and not _PUBLIC.search(name)) or redact.redact(value) != value


def handlers(image: Image) -> list[str]:
    """The files under which the kernel would know an emulator for this image."""
    return [f"{_HANDLERS}/qemu-{_EMULATORS.get(image.architecture, image.architecture)}"]


def is_native(image: Image, machine: str) -> bool:
    """Whether the processor ``machine`` runs it as it is. An image that does not say what it is for is tried."""
    if image.os not in ("linux", ""):
        return False
    return image.architecture in ("", *ARCHITECTURES.get(machine, (machine,)))


def is_emulated(image: Image, handler: str | None) -> bool:
    """Whether the kernel has an emulator for it, by the text of its entry; None: it has none."""
    return image.os in ("linux", "") and handler is not None and handler.startswith("enabled")


def foreign(image: Image, machine: str, handler: str | None, wants_gpus: str | None) -> Finding:
    """An image of another platform; ``handler`` is the text of the kernel's entry for an emulator, None: there is none.

    Emulated it runs, slowly and without a GPU.
    """
    said = f"the image is for {image.platform}, this machine is {machine}"
    if not is_emulated(image, handler):
        return _finding("image-wrong-architecture", Verdict.BAD, image, said, f"no emulator in {_HANDLERS}")
    evidence = [said, "an emulator (qemu) is registered: it runs many times slower"]
    if wants_gpus:
        evidence.append(f"GPUs are wanted ({wants_gpus}), and under emulation there are none")
    weight = Verdict.BAD if wants_gpus else Verdict.DEGRADED
    return _finding("image-wrong-architecture", weight, image, *evidence)


def environment(image: Image, wants_gpus: str | None) -> Iterator[Finding]:
    """What the variables of the image do to every job in it; ``wants_gpus``: who wants GPUs, None: nobody."""
    serious = Verdict.BAD if wants_gpus else Verdict.DEGRADED
    env = image.env
    if env.get(VISIBLE, "all").strip().lower() in ("void", "none"):
        # --gpus and the device plugin of Kubernetes set it anew; a default runtime nvidia obeys it.
        said = f"the image sets {VISIBLE}={env[VISIBLE]}: no GPU where only the runtime nvidia hands them out"
        yield _finding(_HIDDEN, Verdict.DEGRADED, image, said, variable=VISIBLE, value=env[VISIBLE])
    if (value := env.get(CUDA_VISIBLE)) is not None:
        hides_all = value.strip().lower() in _HIDE_ALL
        said = f"the image sets {CUDA_VISIBLE}={value!r}: {'no GPU' if hides_all else 'no other GPU'} in any job"
        weight = serious if hides_all else Verdict.DEGRADED
        yield _finding(_HIDDEN, weight, image, said, variable=CUDA_VISIBLE, value=value)
    if CAPABILITIES in env:
        has = {word.strip() for word in env[CAPABILITIES].lower().split(",")}
        for word, lost, weight in (("compute", "libcuda", serious), ("utility", "NVML", Verdict.DEGRADED)):
            if word not in has and "all" not in has:
                said = f"the image sets {CAPABILITIES}={env[CAPABILITIES]}: without {word} no {lost}"
                yield _finding("driver-capability-missing", weight, image, said)
                break
    if image.secrets:
        names = ", ".join(image.secrets)
        yield _finding("secret-in-image", Verdict.DEGRADED, image, f"variables with a value: {names}", variable=names)


class Met(Enum):
    """Whether a demand is met; UNKNOWN: this machine does not tell what it asks about."""

    YES = "met"
    NO = "not met"
    UNKNOWN = "cannot be decided here"


@dataclass(frozen=True, slots=True)
class Driver:
    """What images ask of a driver: the newest CUDA that it supports, its version (empty: unknown), its capabilities."""

    cuda: str = ""
    version: str = ""
    capabilities: tuple[str, ...] = ()


_CONDITION = re.compile(r"(\w+)\s*(>=|<=|!=|=|>|<)\s*(\S+)")
_COMPARE: Mapping[str, Callable[[tuple[int, ...], tuple[int, ...]], bool]] = {
    ">=": lambda a, b: a >= b,
    "<=": lambda a, b: a <= b,
    "!=": lambda a, b: a != b,
    "=": lambda a, b: a == b,
    ">": lambda a, b: a > b,
    "<": lambda a, b: a < b,
}


def demands(image: Image) -> dict[str, str]:
    """The variables by which the image makes demands; NVIDIA's hook does not start it where one is not met."""
    if image.env.get("NVIDIA_DISABLE_REQUIRE", "").lower() in ("1", "t", "true"):
        return {}
    found = {name: value for name, value in image.env.items() if name.startswith("NVIDIA_REQUIRE_") and value.strip()}
    version = re.match(r"\d+\.\d+", image.env.get("CUDA_VERSION", ""))
    if "NVIDIA_REQUIRE_CUDA" not in image.env and version:
        # NVIDIA's toolkit takes an image with this alone for one of 2017, whose demand it is.
        found["CUDA_VERSION"] = f"cuda>={version[0]}"
    return found


def meets(demand: str, driver: Driver) -> Met:
    """Whether ``driver`` meets a demand: alternatives between blanks, and in each all that stands between commas."""
    said = [_all(alternative, driver) for alternative in demand.split()]
    return next((met for met in (Met.YES, Met.UNKNOWN) if met in said), Met.NO if said else Met.YES)


def _all(alternative: str, driver: Driver) -> Met:
    said = [_one(condition, driver) for condition in alternative.split(",") if condition]
    return next((met for met in (Met.NO, Met.UNKNOWN) if met in said), Met.YES)


def _one(condition: str, driver: Driver) -> Met:
    match = _CONDITION.fullmatch(condition)
    if match is None:
        return Met.UNKNOWN
    subject, sign, wanted = match.groups()
    have: Sequence[str] = {"cuda": [driver.cuda], "driver": [driver.version], "arch": driver.capabilities}.get(
        subject, ()
    )
    numbers = [tuple(map(int, text.split("."))) for text in (wanted, *have) if re.fullmatch(r"\d+(\.\d+)*", text)]
    if len(numbers) < len(have) + 1 or not have:
        return Met.UNKNOWN
    target, *found = numbers
    return Met.YES if all(_COMPARE[sign](*_alike(number, target)) for number in found) else Met.NO


def _alike(have: tuple[int, ...], wanted: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    places = max(len(have), len(wanted))
    return (*have, *(0,) * (places - len(have))), (*wanted, *(0,) * (places - len(wanted)))


def unmet(image: Image, driver: Driver) -> Iterator[Finding]:
    """The demands that this driver does not meet."""
    for name, demand in demands(image).items():
        if meets(demand, driver) is Met.NO:
            newest = f"CUDA {driver.cuda}" if driver.cuda else "an unknown CUDA"
            here = f"the driver {driver.version or 'of unknown version'} supports {newest}"
            first = demand.split()[0]
            yield _finding("driver-requirement-unmet", Verdict.BAD, image, f"the image sets {name}={first}", here)


def _finding(pitfall: str, weight: Verdict, image: Image, *evidence: str, **params: str) -> Finding:
    return Finding(pitfall, weight, evidence, {"image": image.name, **params})
