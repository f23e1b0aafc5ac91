"""Does a fact meet a condition of an entry? Yes, no, or unknown: an unknown fact decides nothing."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from gpucheck.pitfalls import Operator

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpucheck.facts.fact import Facts
    from gpucheck.pitfalls import FactTest


class Origin(str, Enum):
    """Whose the facts are: of the very machine or container that the text comes from, or only of this host."""

    JOB = "job"
    HOST = "host"

    __str__ = str.__str__


class Truth(str, Enum):
    """Whether a condition holds."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"

    __str__ = str.__str__


@dataclass(frozen=True, slots=True)
class Reason:
    """A condition as it was met or not: ``subject`` names the fact, or the line, that was looked at.

    ``origin`` is HOST for a fact of this host, which is true of the text only if the job ran right here.
    """

    truth: Truth
    subject: str
    text: str
    weight: float = 1.0
    origin: Origin = Origin.JOB


_SHOWN_CHARACTERS = 60


def judge_fact(test: FactTest, facts: Facts | None, origin: Origin = Origin.JOB) -> Reason:
    """Whether ``test`` holds, with the words that say so: ``shm.total_bytes = 64 MiB (below 128 MiB)``."""
    if facts is None:
        return Reason(Truth.UNKNOWN, test.fact, f"{test.fact} was not read", test.weight)
    fact = facts[test.fact]
    if not fact.is_known:
        return Reason(Truth.UNKNOWN, test.fact, f"{test.fact} is unknown: {fact.why}", test.weight)
    value = fact.value
    truth = _absent(test.operator) if value is None else _TESTS[test.operator](value, test.wanted)
    return Reason(
        truth, test.fact, f"{test.fact} = {_short(test.fact, value)}{_wording(test, truth)}", test.weight, origin
    )


def _wording(test: FactTest, truth: Truth) -> str:
    """How the value stands to the wanted one: `` (below 1 GiB)``, `` (not tmpfs)``; equality goes without saying."""
    wanted = _short(test.fact, test.wanted)
    if test.operator in {Operator.IS, Operator.NOT}:
        return f" (not {wanted})" if (test.operator is Operator.NOT) is (truth is Truth.YES) else ""
    return f" ({'' if truth is Truth.YES else 'not '}{test.operator.value} {wanted})"


def _short(fact: str, value: object) -> str:
    """A fact's value for people: sizes in binary units, the rest as JSON has it, cut where it is long."""
    if fact.endswith("_bytes") and isinstance(value, int):
        return _size(value)
    text = "absent" if value is None else value if isinstance(value, str) and value else json.dumps(value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…"


def _size(size_bytes: int) -> str:
    for unit, unit_bytes in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size_bytes >= unit_bytes:
            return f"{size_bytes / unit_bytes:.1f}".removesuffix(".0") + f" {unit}"
    return f"{size_bytes} bytes"


def _absent(operator: Operator) -> Truth:
    """A fact known to be absent (no such package, no limit) differs from every value and is neither small nor large."""
    return _truth(operator is Operator.NOT)


def _truth(holds: bool) -> Truth:  # noqa: FBT001 - a truth value is all there is to say
    return Truth.YES if holds else Truth.NO


def _same(value: Any, wanted: Any) -> bool:
    # 1 == True in Python, not in a fact.
    return value == wanted and isinstance(value, bool) == isinstance(wanted, bool)


def _ordered(value: Any, wanted: Any, holds: Callable[[Any, Any], bool]) -> Truth:
    """Compares two numbers, or two versions ("580.95", "12.10"); anything else cannot be compared."""
    left, right = _comparable(value), _comparable(wanted)
    return Truth.UNKNOWN if left is None or right is None else _truth(holds(left, right))


def _comparable(value: Any) -> tuple[float, ...] | None:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return (float(value),)
    numbers = re.match(r"\s*\d+(?:\.\d+)*", value) if isinstance(value, str) else None
    return tuple(float(part) for part in numbers.group().strip().split(".")) if numbers else None


def _holds_item(value: Any, wanted: Any) -> Truth:
    if isinstance(value, str):
        return _truth(str(wanted) in value)
    if isinstance(value, dict):
        return _truth(wanted in value)
    if not isinstance(value, list):
        return Truth.UNKNOWN
    items = [list(item.values()) if isinstance(item, dict) else [item] for item in value]
    return _truth(any(_same(part, wanted) for item in items for part in item))


def _matches(value: Any, wanted: Any) -> Truth:
    items = value if isinstance(value, list) else [value]
    return _truth(any(re.search(str(wanted), str(item)) for item in items))


_TESTS: dict[Operator, Callable[[Any, Any], Truth]] = {
    Operator.IS: lambda value, wanted: _truth(_same(value, wanted)),
    Operator.NOT: lambda value, wanted: _truth(not _same(value, wanted)),
    Operator.BELOW: lambda value, wanted: _ordered(value, wanted, lambda a, b: a < b),
    Operator.ABOVE: lambda value, wanted: _ordered(value, wanted, lambda a, b: a > b),
    Operator.CONTAINS: _holds_item,
    Operator.MATCHES: _matches,
}
