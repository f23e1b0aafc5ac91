"""A finding in words: the knowledge base's entry, its commands filled in for this machine."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from gpucheck import pitfalls
from gpucheck.verdict import Bug

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gpucheck.facts import Facts
    from gpucheck.profile import Options
    from gpucheck.verdict import Finding

# Not %{name} and ${name}: those are curl's and the shell's own.
_PLACEHOLDER = re.compile(r"(?<![%$])\{([a-z][\w.]*)\}")
# What stands for a value that nobody knows, where its name in capitals would not tell a reader what to put there.
_READABLE = {
    "shm_need": "SIZE",
    "full_folder": ". /tmp /var/lib/docker ~",
    "python.executable": "python",
    "bind_option": "bind-recursive=readonly",
}
# Values that have to be judged, or that only the log knows: without them the command says nothing here.
_NEEDED = frozenset({"index", "slurm_job"})


@dataclass(frozen=True, slots=True)
class Worded:
    """What an operator reads of one pitfall."""

    headline: str
    wrong_guess: str
    cause: str
    remedy: str
    commands: tuple[str, ...]
    safety: str

    def to_json(self) -> dict[str, Any]:
        """As fields of a finding in the record."""
        return asdict(self)


def fill(text: str, params: Mapping[str, str], facts: Facts | None) -> str:
    """``text`` with its placeholders filled from ``params``, else from facts.

    What nobody knows stays as ``NAME``: a shell that gets it pasted neither redirects nor expands anything.
    """

    def value(match: re.Match[str]) -> str:
        name = match[1]
        return _known(name, params, facts) or _READABLE.get(name, name.upper().replace(".", "_"))

    return _PLACEHOLDER.sub(value, text)


def fill_commands(texts: Iterable[str], params: Mapping[str, str], facts: Facts | None) -> tuple[str, ...]:
    """The commands that can be typed, filled as by :func:`fill`; one that lacks a value it needs is left out."""
    return tuple(
        fill(text, params, facts)
        for text in texts
        if all(_known(name, params, facts) for name in _NEEDED.intersection(_PLACEHOLDER.findall(text)))
    )


def _known(name: str, params: Mapping[str, str], facts: Facts | None) -> str:
    known = params.get(name) or (facts.known(name) if facts is not None else None)
    return str(known) if isinstance(known, (str, int, float)) else ""


def of(finding: Finding, facts: Facts | None, options: Options) -> Worded:
    """A finding's words, in the operator's language. Raises Bug for a pitfall that neither we nor the site knows."""
    try:
        entry = pitfalls.with_site(options["probes"]).get(finding.pitfall)
    except pitfalls.PitfallError as error:
        raise Bug(f"the knowledge base cannot be read: {error}") from None
    if entry is None:
        raise Bug(f"the knowledge base has no entry `{finding.pitfall}`")
    text = entry.words(options.lang)
    return Worded(
        headline=fill(text.headline, finding.params, facts),
        wrong_guess=text.wrong_guess,
        cause=fill(text.cause, finding.params, facts),
        remedy=fill(text.remedy, finding.params, facts),
        commands=fill_commands(entry.commands, finding.params, facts),
        safety=entry.safety.value,
    )
