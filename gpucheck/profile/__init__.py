"""What the operator expects of this machine and accepts of it: options with provenance, and the profile file.

Precedence: command line, ``GPUCHECK_<OPTION>``, profile, ini, default. A wrong value is a :class:`UsageError` that
names the value, where it came from and what is allowed.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpucheck.language import of_locale
from gpucheck.levels import BUDGET_S
from gpucheck.profile.file import Profile, read_profile
from gpucheck.profile.options import OPTIONS, Option
from gpucheck.profile.values import size_bytes
from gpucheck.usage import UsageError
from gpucheck.verdict import Acceptance, Policy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["OPTIONS", "Option", "Options", "Profile", "Setting", "UsageError", "read_profile", "resolve", "size_bytes"]


@dataclass(frozen=True, slots=True)
class Setting:
    """An option's value and where it came from."""

    value: Any
    origin: str


@dataclass(frozen=True, slots=True)
class Options:
    """Every option by name, resolved; and the profile."""

    settings: Mapping[str, Setting]
    profile: Profile

    def __getitem__(self, name: str) -> Any:
        return self.settings[name].value

    @property
    def budget_s(self) -> float:
        """The budget of the whole run in seconds: as given, else by level."""
        return self["budget"] or BUDGET_S[self["level"]]

    @property
    def lang(self) -> str:
        """``en`` or ``zh``: as given, else by the locale."""
        return self["lang"] or of_locale()

    @property
    def policy(self) -> Policy:
        """What these options make of verdicts."""
        accept = {a.pitfall: a for a in (*self.profile.accept, *self["accept"])}
        return Policy(
            strict=self["strict"],
            require=frozenset(self["require"]) | self.profile.require,
            allow_unable=frozenset(self["allow-unable"]) | self.profile.allow_unable,
            accept=accept,
        )

    def to_json(self) -> dict[str, Any]:
        """For the record: ``{name: {value, from}}``, defaults included."""
        shown = {name: {"value": _plain(s.value), "from": s.origin} for name, s in self.settings.items()}
        shown["budget"] = {"value": self.budget_s, "from": self.settings["budget"].origin}
        return shown


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [f"{v.pitfall}={v.reason}" if isinstance(v, Acceptance) else v for v in value]
    return value


def _setting(option: Option, command_line: Any, profile: Mapping[str, Any], ini: Callable[[str], str]) -> Setting:
    variable = "GPUCHECK_" + option.name.upper().replace("-", "_")
    sources = (
        (f"--gpucheck-{option.name}", None if command_line in (None, [], False) else command_line),
        (variable, os.environ.get(variable) or None),
        ("profile", profile.get(option.name)),
        ("the ini file", (option.ini and ini(f"gpucheck_{option.name}")) or None),
    )
    for origin, given in sources:
        if given is not None:
            return Setting(option.read(given, origin), origin)
    return Setting(option.default, "default")


def resolve(command_line: Mapping[str, Any], ini: Callable[[str], str] = lambda _: "") -> Options:
    """All options from every source. ``command_line`` holds texts by option name. Raises :class:`UsageError`."""
    chosen = _setting(OPTIONS["profile"], command_line.get("profile"), {}, ini)
    profile = read_profile(chosen.value) if chosen.value else Profile()
    settings = {
        name: chosen if name == "profile" else _setting(option, command_line.get(name), profile.options, ini)
        for name, option in OPTIONS.items()
    }
    return Options(settings, profile)
