"""Which GPUs CUDA should show to a process here, and what hides each of the others. Pure, a leaf.

NVML ignores ``CUDA_VISIBLE_DEVICES``; CUDA obeys it, up to the first word that names no GPU, and says nothing about the
rest. The rules are those of the CUDA programming guide ("CUDA environment variables") and of what drivers do: a word is
a number or the beginning of exactly one UUID, a GPU that is named twice hides all of them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

VARIABLE = "CUDA_VISIBLE_DEVICES"
_NUMBER = re.compile(r"\s*([+-]?\d+)")
_KINDS = ("GPU-", "MIG-")


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU as NVML lists it. ``uuid`` keeps its ``GPU-``; ``trouble`` is why NVML cannot reach it, else empty."""

    index: int
    uuid: str | None
    name: str
    capability: str | None = None
    slices: tuple[str, ...] = ()
    is_split: bool = False
    trouble: str = ""

    @classmethod
    def parse(cls, told: Mapping[str, Any]) -> Gpu:
        """A GPU as ``payload/nvml.py`` describes it."""
        unknown = told["unknown"]
        return cls(
            index=told["index"],
            uuid=told["uuid"],
            name=told["name"] or "a GPU that does not tell its name",
            capability=told["capability"],
            slices=tuple(part["uuid"] for part in told["mig_devices"] or ()),
            is_split=bool(told["mig"]),
            trouble=unknown.get("handle") or unknown.get("uuid", ""),
        )

    def __str__(self) -> str:
        return f"GPU {self.index} ({self.name}, {self.uuid or self.trouble})"


@dataclass(frozen=True, slots=True)
class Hidden:
    """A GPU that CUDA is told not to show, and what tells it."""

    gpu: Gpu
    by: str


@dataclass(frozen=True, slots=True)
class View:
    """What CUDA should show. ``fault`` says what is wrong with the variable, where it hides more than it says."""

    shown: tuple[Gpu, ...]
    hidden: tuple[Hidden, ...] = ()
    fault: str | None = None

    @property
    def slices(self) -> tuple[str, ...]:
        """The MIG slices of the GPUs shown: of those CUDA shows one to a process, and which is its own affair."""
        return tuple(uuid for gpu in self.shown for uuid in gpu.slices)


def view(gpus: Sequence[Gpu], value: str | None) -> View:
    """What CUDA should show of ``gpus`` when the variable has ``value``; None: it is not set."""
    if value is None:
        return View(tuple(gpus))
    shown: list[Gpu] = []
    fault = None if value.strip() else "is empty, which hides every GPU"
    for word in value.split(",") if fault is None else ():
        gpu = _named(word, gpus)
        if isinstance(gpu, str):
            fault = gpu
            break
        if gpu in shown and not gpu.is_split:
            shown, fault = [], f"names {word.strip()} twice, which hides every GPU"
            break
        shown.append(gpu)
    hidden = tuple(Hidden(gpu, f"{VARIABLE}={value}") for gpu in gpus if gpu not in shown)
    return View(tuple(dict.fromkeys(shown)), hidden, fault)


def bare(uuid: str) -> str:
    """A UUID as CUDA and torch give it, without the kind in front."""
    return uuid[len(_KINDS[0]) :].lower() if uuid.startswith(_KINDS) else uuid.lower()


def missing(expected: Iterable[Gpu], shown: Iterable[str | None]) -> tuple[Gpu, ...]:
    """Those of ``expected`` that are not among the UUIDs ``shown`` (of CUDA, of torch)."""
    seen = {bare(uuid) for uuid in shown if uuid}
    return tuple(gpu for gpu in expected if gpu.uuid is None or bare(gpu.uuid) not in seen)


def _named(word: str, gpus: Sequence[Gpu]) -> Gpu | str:
    """The GPU that a word names, or what is wrong with the word."""
    if word.strip().startswith(_KINDS):
        return _by_uuid(word.strip(), gpus)
    match = _NUMBER.match(word)
    if match is None:
        return f"{word.strip()!r} is neither a number nor a UUID; it and what follows is ignored"
    number = int(match[1])
    if 0 <= number < len(gpus):
        return gpus[number]
    last = f"the last is {len(gpus) - 1}" if gpus else "there is none"
    return f"there is no GPU {number} ({last}); it and what follows is ignored"


def _by_uuid(word: str, gpus: Sequence[Gpu]) -> Gpu | str:
    found = [gpu for gpu in gpus if any(uuid.startswith(word) for uuid in (gpu.uuid or "", *gpu.slices))]
    if len(found) == 1:
        return found[0]
    if found:
        return f"{word} is the beginning of {len(found)} UUIDs; it and what follows is ignored"
    return f"no GPU here has the UUID {word}; it and what follows is ignored"
