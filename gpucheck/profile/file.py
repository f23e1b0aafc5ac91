"""The profile file: what this machine is expected to be, and what the operator accepts of it."""

from __future__ import annotations

import datetime
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpucheck.profile.options import OPTIONS
from gpucheck.usage import UsageError
from gpucheck.verdict import Acceptance

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from collections.abc import Mapping

SECTIONS = {
    "expect": ("gpus", "capabilities", "shm", "binds"),
    "require": ("probes",),
    "allow_unable": ("probes",),
    "accept": ("pitfall", "reason", "until"),
    "options": tuple(name for name in OPTIONS if name != "profile"),
}


@dataclass(frozen=True, slots=True)
class Profile:
    """The parsed profile file; empty when there is none."""

    path: str = ""
    expect: Mapping[str, Any] = field(default_factory=dict)
    require: frozenset[str] = frozenset()
    allow_unable: frozenset[str] = frozenset()
    accept: tuple[Acceptance, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


def _probes(path: str, section: str, table: Mapping[str, Any]) -> frozenset[str]:
    probes = table.get("probes", [])
    if not isinstance(probes, list) or not all(isinstance(p, str) for p in probes):
        raise UsageError(f"{path}: [{section}] probes = {probes!r}: a list of probe ids is allowed")
    return frozenset(probes)


def _acceptances(path: str, tables: Any) -> tuple[Acceptance, ...]:
    if not isinstance(tables, list):
        raise UsageError(f"{path}: write [[accept]], a list of tables, not [accept]")
    found = []
    for table in tables:
        until = str(table.get("until", ""))
        if not table.get("pitfall") or not table.get("reason"):
            raise UsageError(f"{path}: [[accept]] needs `pitfall` and `reason`; got {dict(table)!r}")
        try:
            if until:
                until = datetime.date.fromisoformat(until).isoformat()
        except ValueError:
            raise UsageError(f"{path}: [[accept]] until = {until!r}: a date such as 2027-01-31 is allowed") from None
        found.append(Acceptance(str(table["pitfall"]), str(table["reason"]), until))
    return tuple(found)


def _unknown(path: str, where: str, keys: Any, allowed: Any) -> None:
    for key in keys:
        if key not in allowed:
            raise UsageError(f"{path}: unknown key `{key}` in {where}; allowed: {', '.join(sorted(allowed))}")


def read_profile(path: str) -> Profile:
    """Parse and check a profile file. Raises :class:`UsageError`."""
    try:
        data = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"the profile {path} cannot be read: {error}") from None
    _unknown(path, "the profile", data, SECTIONS)
    for section, keys in SECTIONS.items():
        table = data.get(section, {})
        if isinstance(table, list) and section != "accept":
            raise UsageError(f"{path}: write [{section}], one table, not [[{section}]]")
        for part in table if isinstance(table, list) else [table]:
            if not isinstance(part, dict):
                raise UsageError(f"{path}: `{section}` must be a table")
            _unknown(path, f"[{section}]", part, keys)
    return Profile(
        path=path,
        expect=_expectation(path, data.get("expect", {})),
        require=_probes(path, "require", data.get("require", {})),
        allow_unable=_probes(path, "allow_unable", data.get("allow_unable", {})),
        accept=_acceptances(path, data.get("accept", [])),
        options=data.get("options", {}),
    )


def _expectation(path: str, table: Mapping[str, Any]) -> Mapping[str, Any]:
    gpus = table.get("gpus")
    if gpus is not None and (not isinstance(gpus, int) or isinstance(gpus, bool) or gpus < 0):
        raise UsageError(f"{path}: [expect] gpus = {gpus!r}: a number of GPUs, 0 or more, is allowed")
    for name in ("capabilities", "binds"):
        if not isinstance(table.get(name, []), list):
            raise UsageError(f"{path}: [expect] {name} = {table[name]!r}: a list is allowed")
    for capability in table.get("capabilities", []):
        if not re.fullmatch(r"\d+\.\d+", str(capability)):
            raise UsageError(f'{path}: [expect] capabilities: {capability!r} is not a capability such as "9.0"')
    for bind in table.get("binds", []):
        if not str(bind).startswith("/"):
            raise UsageError(f'{path}: [expect] binds: {bind!r} is not a bind such as "/data:/data:ro"')
    if "shm" in table:
        OPTIONS["shm"].read(table["shm"], f"{path} [expect] shm")
    return table
