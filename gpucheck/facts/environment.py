"""The environment, by its allow-list of names, each value redacted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpucheck.facts.fact import Fact
from gpucheck.facts.reading import group
from gpucheck.redact import allowed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpucheck.facts.tree import Tree


def _environment(tree: Tree) -> Iterator[Fact]:
    values = allowed(tree.environ)
    yield Fact("env.*", len(values), "environment")
    for name, value in values.items():
        yield Fact(f"env.{name}", value, "environment")


READERS: Final = group({}, {("env.*",): _environment})
