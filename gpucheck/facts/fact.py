"""A fact, and the facts of one reading.

A fact is *known* (a JSON value and where it was read) or *unknown* (why). A known value of ``None`` says "there is
none": no limit, no such package, the variable is not set. Unknown is never a value and never a default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from gpucheck.redact import is_allowed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Json: TypeAlias = Any
"""What :mod:`json` reads and writes: None, bool, int, float, str, or lists and dicts of these."""


@dataclass(frozen=True, slots=True)
class Fact:
    """``name`` is dotted (``shm.total_bytes``); ``source`` says where it was read; ``why`` is None when it is known."""

    name: str
    value: Json = field(default=None, repr=False)
    source: str = ""
    why: str | None = None

    @property
    def is_known(self) -> bool:
        """Whether the value may be used."""
        return self.why is None


class Unknown(Exception):
    """Raised by a reader that could not learn its fact: where it looked, and what was in the way."""

    def __init__(self, source: str, why: str) -> None:
        super().__init__(f"{source}: {why}")
        self.source = source
        self.why = why


class Facts(Mapping[str, Fact]):
    """The facts of one reading, by name.

    Indexing never fails: a name that nobody read is an unknown fact with the reason "not read". A family that was read
    as a whole (``package.*``, ``env.*``) answers for its missing members: known to be absent.
    ``failures`` names the readers that broke: bugs of ours, which make a run undecided.
    """

    __slots__ = ("_facts", "failures")

    def __init__(self, facts: Iterable[Fact] = (), failures: Iterable[str] = ()) -> None:
        self._facts = {fact.name: fact for fact in facts}
        self.failures = tuple(failures)

    def __getitem__(self, name: str) -> Fact:
        """The fact of that name, known or unknown."""
        fact = self._facts.get(name)
        return self._absent(name) if fact is None else fact

    def _absent(self, name: str) -> Fact:
        family, _, member = name.partition(".")
        whole = self._facts.get(f"{family}.*")
        if whole is None:
            return Fact(name, why="not read")
        if family == "env" and not is_allowed(member):
            return Fact(name, source=whole.source, why="not among the variables that may be read")
        return Fact(name, None, whole.source, whole.why)

    def __contains__(self, name: object) -> bool:
        """Whether somebody read the fact, with or without success."""
        return name in self._facts

    def __iter__(self) -> Iterator[str]:
        """The names, in the order of reading."""
        return iter(self._facts)

    def __len__(self) -> int:
        """How many facts were read or tried."""
        return len(self._facts)

    def __repr__(self) -> str:
        """Counts and the names of what is unknown; never a value."""
        unknown = [name for name, fact in self._facts.items() if not fact.is_known]
        return f"<Facts: {len(self) - len(unknown)} known, unknown: {', '.join(unknown) or 'none'}>"

    def known(self, name: str) -> Json:
        """The value, or None when it is unknown (or known to be absent: ask ``facts[name].is_known``)."""
        fact = self[name]
        return fact.value if fact.is_known else None

    def plus(self, facts: Iterable[Fact]) -> Facts:
        """These facts and more; a later fact replaces an earlier one of the same name."""
        return Facts([*self._facts.values(), *facts], self.failures)

    def to_json(self) -> dict[str, Json]:
        """``{"facts": {name: {"value", "source"} or {"why", "source"}}, "failures": [...]}``."""
        return {"facts": {name: _row(fact) for name, fact in self._facts.items()}, "failures": list(self.failures)}

    @classmethod
    def from_json(cls, document: Mapping[str, Json]) -> Facts:
        """The inverse of :meth:`to_json`. Raises ValueError for anything else."""
        try:
            rows = document["facts"].items()
            facts = [Fact(name, row.get("value"), row["source"], row.get("why")) for name, row in rows]
            return cls(facts, document["failures"])
        except (KeyError, TypeError, AttributeError) as error:
            message = f"not a document of facts: {type(error).__name__} {error}"
            raise ValueError(message) from error


def _row(fact: Fact) -> dict[str, Json]:
    if fact.why is None:
        return {"value": fact.value, "source": fact.source}
    return {"why": fact.why, "source": fact.source}
