"""Whether the packages that a probe needs are installed in the Python that is judged. A leaf."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from gpucheck.verdict import NotApplicable, Unable

if TYPE_CHECKING:
    from gpucheck.facts import Facts


def without(host: Facts, *names: str, extra: str = "torch") -> NotApplicable | None:
    """The reason not to judge where none of ``names``, of which one is needed, is installed; else None.

    None as well where that could not be read: whoever goes on will see. ``extra`` is gpucheck's, which brings it.
    """
    facts = [host[f"package.{name}"] for name in names]
    if not all(fact.is_known and fact.value is None for fact in facts):
        return None
    return NotApplicable(f"package.{names[0]}", f"{names[0]} is not installed{hint(host, extra)}", facts[0].source)


def hint(host: Facts, extra: str) -> str:
    """What to type for what ``extra`` brings, behind a colon; "" where another Python than gpucheck's own is judged."""
    ours = host.known("python.executable") in (None, sys.executable)
    return f": {install(extra)}" if extra and ours else ""


def install(extra: str) -> str:
    """The command that installs an extra of gpucheck's."""
    return f"pip install 'pytest-gpucheck[{extra}]'"


def need(host: Facts, *names: str, extra: str = "torch") -> None:
    """Raises NotApplicable where :func:`without` has a reason."""
    if (absent := without(host, *names, extra=extra)) is not None:
        raise absent


def must_know(host: Facts, name: str) -> None:
    """Raises Unable where it could not be read whether ``name`` is installed."""
    fact = host[f"package.{name}"]
    if not fact.is_known:
        raise Unable(f"whether {name} is installed: {fact.why}")
