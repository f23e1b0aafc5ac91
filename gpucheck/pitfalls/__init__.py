"""The knowledge base: ``*.toml``, one table a pitfall. Words live here and nowhere else.

:func:`load` reads every file of the folder once; the entries' patterns are compiled by whoever searches with them, and
only when a line may match, so that loading stays a matter of milliseconds.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, fields
from enum import Enum
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # what pytest itself depends on there

if TYPE_CHECKING:
    from collections.abc import Mapping

HERE = Path(__file__).parent
ANYTHING = "*"


class PitfallError(ValueError):
    """An entry that the loader cannot read: which file, which entry, what is wrong, what is allowed."""


class Safety(str, Enum):
    """What the worst of an entry's commands needs or does."""

    SAFE = "safe"
    NEEDS_ROOT = "needs-root"
    DISRUPTS_JOBS = "disrupts-jobs"

    __str__ = str.__str__


class Operator(str, Enum):
    """How a condition compares a fact with its own value."""

    IS = "is"
    NOT = "not"
    BELOW = "below"
    ABOVE = "above"
    CONTAINS = "contains"
    MATCHES = "matches"

    __str__ = str.__str__


class Check(str, Enum):
    """What the numbers in a line have to show, where the words alone decide nothing."""

    HELD_BY_OTHERS = "held-by-others"
    HELD_BY_ITSELF = "held-by-itself"

    __str__ = str.__str__


@dataclass(frozen=True, slots=True)
class FactTest:
    """A condition on a fact: ``shm.total_bytes`` below 134217728."""

    fact: str
    operator: Operator
    wanted: Any
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class TextTest:
    """A condition on the log around the symptom: this pattern occurs in it, on a line whose numbers stand the check."""

    pattern: str
    weight: float = 1.0
    check: Check | None = None


@dataclass(frozen=True, slots=True)
class Words:
    """An entry's prose in one language."""

    headline: str
    wrong_guess: str
    cause: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Pitfall:
    """One known way to fail. ``symptoms`` name it, ``hints`` are texts too common to count for more than a hint.

    ``general`` are texts that name a class of failures only (an exit status, a timeout): they count as symptoms while
    nothing more specific stands anywhere in the text.

    ``shares`` are entries with the same message, ``follows`` entries of which this one is a consequence (``*``: of
    whatever else went wrong).
    """

    id: str
    area: str
    headline: str
    headline_zh: str
    wrong_guess: str
    wrong_guess_zh: str
    cause: str
    cause_zh: str
    remedy: str
    remedy_zh: str
    safety: Safety
    commands: tuple[str, ...] = ()
    symptoms: tuple[str, ...] = ()
    general: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()
    healthy: tuple[str, ...] = ()
    confirm: tuple[FactTest | TextTest, ...] = ()
    rule_out: tuple[FactTest | TextTest, ...] = ()
    ask: str = ""
    shares: tuple[str, ...] = ()
    follows: tuple[str, ...] = ()
    probe: str = ""
    causes: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()

    def words(self, language: str) -> Words:
        """The prose in ``language``, one of :data:`gpucheck.language.LANGUAGES`."""
        if language == "zh":
            return Words(self.headline_zh, self.wrong_guess_zh, self.cause_zh, self.remedy_zh)
        return Words(self.headline, self.wrong_guess, self.cause, self.remedy)

    def facts(self) -> tuple[str, ...]:
        """Names of the facts that confirm this entry or rule it out."""
        tests = (*self.confirm, *self.rule_out)
        return tuple(dict.fromkeys(test.fact for test in tests if isinstance(test, FactTest)))


_KEYS = frozenset(f.name for f in fields(Pitfall)) - {"id", "area"}
_LISTS = frozenset({"commands", "symptoms", "general", "hints", "healthy", "shares", "follows", "causes", "sources"})
_TESTS = frozenset({"confirm", "rule_out"})
_REQUIRED = ("headline", "wrong_guess", "cause", "remedy", "safety")


@cache
def load(folder: Path = HERE) -> Mapping[str, Pitfall]:
    """Every entry of ``folder``, by id, in the order of the files' names.

    Raises :class:`PitfallError` for a file that is not TOML, an entry with an unknown or missing key, an id met twice.
    """
    found: dict[str, Pitfall] = {}
    for path in sorted(folder.glob("*.toml")):
        for pitfall_id, table in _tables(path).items():
            if pitfall_id in found:
                first = found[pitfall_id].area
                raise PitfallError(f"{path.name}: [{pitfall_id}] is already an entry of {first}.toml")
            found[pitfall_id] = _pitfall(path, pitfall_id, table)
    return MappingProxyType(found)


@cache
def with_site(site: str | None) -> Mapping[str, Pitfall]:
    """Our own entries and those of a site's folder, if there is one.

    Raises :class:`PitfallError` as :func:`load` does, and for an entry of the site's that has the id of one of ours.
    """
    ours = load()
    theirs = load(Path(site)) if site else {}
    for pitfall_id in theirs:
        if pitfall_id in ours:
            where = f"{theirs[pitfall_id].area}.toml: [{pitfall_id}]"
            raise PitfallError(f"{where} is an entry of gpucheck's own; give it another id")
    return MappingProxyType({**ours, **theirs})


def _tables(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise PitfallError(f"{path.name}: not TOML: {error}") from error


def _pitfall(path: Path, pitfall_id: str, table: object) -> Pitfall:
    where = f"{path.name}: [{pitfall_id}]"
    if not isinstance(table, dict):
        raise PitfallError(f"{where} is not a table")
    if unknown := sorted(set(table) - _KEYS):
        raise PitfallError(f"{where} has the unknown key {unknown[0]!r}; allowed: {', '.join(sorted(_KEYS))}")
    if missing := [key for key in _REQUIRED if not table.get(key)]:
        raise PitfallError(f"{where} lacks {missing[0]!r}")
    values: dict[str, Any] = {key: _value(where, key, value) for key, value in table.items()}
    for key in ("headline", "wrong_guess", "cause", "remedy"):
        values.setdefault(f"{key}_zh", values[key])
    return Pitfall(id=pitfall_id, area=path.stem, **values)


def _value(where: str, key: str, value: object) -> object:
    if key in _TESTS:
        return tuple(_test(f"{where} {key}", test) for test in _list(where, key, value))
    if key in _LISTS:
        return tuple(str(item) for item in _list(where, key, value))
    if key == "safety":
        return _member(Safety, f"{where} safety", value)
    return str(value)


def _list(where: str, key: str, value: object) -> list[Any]:
    if not isinstance(value, list):
        raise PitfallError(f"{where} {key} = {value!r} is not a list")
    return value


def _member(kind: type[Enum], where: str, value: object) -> Any:
    try:
        return kind(value)
    except ValueError:
        allowed = ", ".join(str(member.value) for member in kind)
        raise PitfallError(f"{where} = {value!r}; allowed: {allowed}") from None


def _test(where: str, test: object) -> FactTest | TextTest:
    if not isinstance(test, dict):
        raise PitfallError(f"{where} holds {test!r}, which is not a table")
    rest = {key: value for key, value in test.items() if key not in {"fact", "text", "weight"}}
    weight = float(test.get("weight", 1.0))
    if "text" in test and not rest.keys() - {"check"} and "fact" not in test:
        check = _member(Check, f"{where} check", rest["check"]) if rest else None
        return TextTest(str(test["text"]), weight, check)
    if "fact" not in test or "text" in test or len(rest) != 1:
        allowed = ", ".join(operator.value for operator in Operator)
        raise PitfallError(f"{where} holds {test!r}; allowed: one `text`, or one `fact` with one of {allowed}")
    ((operator, wanted),) = rest.items()
    return FactTest(str(test["fact"]), _member(Operator, f"{where} operator", operator), wanted, weight)
