"""All readers, and the one way to have them read."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpucheck.facts import (
    cgroup,
    disk,
    driver,
    engine,
    environment,
    expectation,
    fabric,
    limits,
    machine,
    mounts,
    network,
    nodes,
    nvml,
    packages,
    pci,
    scheduler,
    shm,
    system,
)
from gpucheck.facts.reading import Group, run
from gpucheck.facts.tree import Tree

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from gpucheck.facts.fact import Facts

_GROUPS: Final[tuple[Group, ...]] = tuple(
    module.READERS
    for module in (
        # First: where nobody has used the driver since the boot, NVML has the device nodes made.
        nvml,
        machine,
        pci,
        nodes,
        driver,
        fabric,
        expectation,
        environment,
        cgroup,
        limits,
        shm,
        disk,
        mounts,
        engine,
        network,
        scheduler,
        system,
        packages,
    )
)
# A driver without persistence mode starts each GPU anew, a second or two each, before NVML answers.
DEADLINE_S: Final = 30.0


def read(
    names: Collection[str] | None = None,
    root: Path = Path("/"),
    python: str | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    deadline_s: float = DEADLINE_S,
) -> Facts:
    """The facts of the machine at ``root``; only ``names`` when given (``package.torch`` reads its whole family).

    ``python`` is the interpreter whose packages are judged, by default this one. ``deadline_s`` bounds the whole: what
    hangs costs its own facts, and what was not reached by then is unknown.
    """
    ends = time.monotonic() + deadline_s
    tree = Tree(root, os.environ if environ is None else environ, python or sys.executable, ends)
    return run(tree, _GROUPS, names)


def all_names() -> list[str]:
    """Every name that some reader makes; ``family.*`` stands for the members of a family."""
    return [name for readers in _GROUPS for name in (*readers.one, *(name for made in readers.many for name in made))]
