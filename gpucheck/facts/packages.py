"""The judged Python: its version, every installed distribution, and what torch was built for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpucheck.facts import aside
from gpucheck.facts.fact import Fact
from gpucheck.facts.reading import Reading, group

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpucheck.facts.tree import Tree

# Ten times what a cold start from a network file system takes; the rest of the run's time is for what else hangs.
_DEADLINE_S: Final = 8.0


def _executable(tree: Tree) -> Reading:
    return Reading(tree.python, "the judged Python")


def _packages(tree: Tree) -> Iterator[Fact]:
    found = aside.ask_payload(tree, tree.python, "packages", {}, _DEADLINE_S)
    yield Fact("python.version", found["version"], tree.python)
    yield Fact("torch.cuda_build", found["cuda_build"], found["cuda_build_source"])
    yield Fact("package.*", len(found["packages"]), tree.python)
    for name, (version, folder) in found["packages"].items():
        yield Fact(f"package.{name}", version, folder)


READERS: Final = group(
    {"python.executable": _executable}, {("python.version", "torch.cuda_build", "package.*"): _packages}
)
