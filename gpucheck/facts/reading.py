"""From readers to facts: which reader makes which names, and what becomes of one that fails."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

from gpucheck.facts.fact import Fact, Facts, Json, Unknown

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from gpucheck.facts.tree import Tree


@dataclass(frozen=True, slots=True)
class Reading:
    """A value that was read, and where."""

    value: Json
    source: str


ReadOne: TypeAlias = "Callable[[Tree], Reading]"
ReadMany: TypeAlias = "Callable[[Tree], Iterable[Fact]]"
# A child that was killed at the tree's end is still to be collected.
_PATIENCE_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Group:
    """The readers of one noun: ``one`` makes a fact each, ``many`` the named facts together (``env.*``: a family)."""

    one: Mapping[str, ReadOne]
    many: Mapping[tuple[str, ...], ReadMany]


def group(one: Mapping[str, ReadOne], many: Mapping[tuple[str, ...], ReadMany] | None = None) -> Group:
    """A group of readers by the names that they make."""
    return Group(one, many or {})


def run(tree: Tree, groups: Iterable[Group], names: Collection[str] | None) -> Facts:
    """The facts that the readers make of ``tree``; only ``names`` when given (a member of a family names it whole).

    Returns by the tree's end and a second, whatever a reader waits for: a link that leads to a dead file server makes
    one of us wait where nobody would expect it.
    """
    readers = [pair for readers in groups for pair in _together(readers) if names is None or _wanted(pair[0], names)]
    found = _Found(dict(readers))
    worker = threading.Thread(target=found.read, args=(tree,), daemon=True)
    worker.start()
    worker.join(max(0.0, tree.ends - time.monotonic()) + _PATIENCE_S)
    return found.so_far()


@dataclass(frozen=True, slots=True)
class _Found:
    """What was read so far, by the names that each reader makes."""

    readers: Mapping[tuple[str, ...], ReadMany]
    facts: dict[tuple[str, ...], list[Fact]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def read(self, tree: Tree) -> None:
        for made, reader in self.readers.items():
            self.facts[made] = _read(tree, made, reader, self.failures)

    def so_far(self) -> Facts:
        facts = dict(self.facts)
        unread = [made for made in self.readers if made not in facts]
        lost = [Fact(name, why=f"hang: not read in time, as {unread[0][0]}") for made in unread for name in made]
        return Facts([*(fact for read in facts.values() for fact in read), *lost], tuple(self.failures))


def _together(readers: Group) -> Iterable[tuple[tuple[str, ...], ReadMany]]:
    for name, reader in readers.one.items():
        yield (name,), _singly(name, reader)
    yield from readers.many.items()


def _singly(name: str, reader: ReadOne) -> ReadMany:
    def read_one(tree: Tree) -> list[Fact]:
        reading = reader(tree)
        return [Fact(name, reading.value, reading.source)]

    return read_one


def _wanted(made: tuple[str, ...], names: Collection[str]) -> bool:
    return any(name in made or f"{name.partition('.')[0]}.*" in made for name in names)


def _read(tree: Tree, made: tuple[str, ...], reader: ReadMany, failures: list[str]) -> list[Fact]:
    try:
        return list(reader(tree))
    except Unknown as unknown:
        source, why = unknown.source, unknown.why
    except OSError as error:
        source, why = str(error.filename or ""), error.strerror or str(error)
    except ValueError as error:
        source, why = "", f"not understood: {error}"
    except Exception as error:  # noqa: BLE001 - a bug of ours must cost one fact, be named, and never look like an answer
        source, why = "", f"reader failed: {type(error).__name__}: {error}"
        failures.append(f"{', '.join(made)}: {why}")
    return [Fact(name, None, source, why) for name in made]
