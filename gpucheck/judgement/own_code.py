"""The operator's own code, which enters only when they name it: where it is found, what it may take. Pure, a leaf."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpucheck.verdict import Unable

if TYPE_CHECKING:
    from pathlib import Path

    from gpucheck.facts import Facts

# A process that reads samples and its two workers may each have this share: together they leave a quarter.
SHARE = 4
# Below this torch itself cannot be imported.
LEAST_BYTES = 1 << 30
TIME_S = 90.0
RAISES = "own-code-raises"
_NO_MEMORY = ("MemoryError", "can't allocate memory", "Cannot allocate memory", "std::bad_alloc")


@dataclass(frozen=True, slots=True)
class OwnCode:
    """``spec`` is MODULE:FACTORY; ``folder`` is where the operator stood; ``memory_bytes`` is a process's cap."""

    spec: str
    folder: str
    memory_bytes: int

    @property
    def module(self) -> str:
        """The module to import."""
        return self.spec.partition(":")[0]

    @property
    def args(self) -> dict[str, Any]:
        """How a payload finds it: from the folder in which the operator would run it."""
        return {"path": [self.folder], "cwd": self.folder}

    @property
    def how(self) -> dict[str, Any]:
        """How a child runs it: in an interpreter of its own, up to the caps."""
        # Not `as`: CUDA reserves address space by the terabyte. `data` counts what a process can write to.
        return {"warm": False, "deadline_s": TIME_S, "limits": {"data": self.memory_bytes}}

    @property
    def params(self) -> dict[str, str]:
        """For the commands of a finding."""
        module, _, factory = self.spec.partition(":")
        return {"module": module, "factory": factory, "folder": self.folder, "call": f"{module}.{factory}()"}

    def reading(self, sample: int | None) -> str:
        """Python that reads that sample of the dataset, or all of them, as a worker does."""
        make = self.params["call"]
        return f"d = {make}; [d[i] for i in range(len(d))]" if sample is None else f"{make}[{sample}]"

    def running(self, batch: int | None) -> str:
        """Python that runs the model on its example, repeated or cut to that many samples."""
        given = f"(torch.cat([t] * {batch})[:{batch}] for t in x)" if batch else "x"
        asked = "import torch; " if batch else ""
        return f"{asked}m, x = {self.params['call']}; x = x if isinstance(x, tuple) else (x,); m(*{given})"

    def refuse_at_cap(self, told: str) -> None:
        """Raises Unable when what was told is the cap being felt: that says nothing about the code."""
        if any(words in told for words in _NO_MEMORY):
            cap = f"{self.memory_bytes / (1 << 30):.1f} GiB a process"
            raise Unable(f"memory: {self.spec} wants more than its cap of {cap}, a quarter of what is available")


def named(spec: str, folder: Path | None, facts: Facts) -> OwnCode:
    """What the operator named. Raises Unable where their folder is gone or the memory of this machine is not known."""
    if folder is None:
        raise Unable(f"the folder in which {spec} would be found: it is gone")
    return OwnCode(spec, str(folder), cap_bytes(facts))


def cap_bytes(facts: Facts) -> int:
    """What one process of the operator's code may write to, in bytes."""
    available: int | None = facts.known("memory.available_bytes")
    if available is None:
        raise Unable(f"how much memory may be taken: {facts['memory.available_bytes'].why}")
    limit: int | None = facts.known("memory.limit_bytes")
    return max(LEAST_BYTES, min(available, limit or available) // SHARE)


def not_found(spec: str, told: str) -> bool:
    """Whether the module or the factory itself is not there, as told by the import."""
    module, _, factory = spec.partition(":")
    missing = [f"No module named '{'.'.join(module.split('.')[: n + 1])}'" for n in range(module.count(".") + 1)]
    return any(words in told for words in missing) or f"has no attribute '{factory}'" in told


def at_loading(own: OwnCode, told: str) -> dict[str, str]:
    """The finding's placeholders for code that raised; raises Unable for what is not the code's fault."""
    own.refuse_at_cap(told)
    if not_found(own.spec, told):
        raise Unable(f"{own.spec}: {told.splitlines()[0]}; looked for from {own.folder}")
    return own.params
