"""What the operator expects of this machine and accepts of it: options with provenance, and the profile file.

Precedence: command line, ``GPUCHECK_<OPTION>``, profile, ini, default. A wrong value is a :class:`UsageError` that
names the value, where it came from and what is allowed.
"""

from __future__ import annotations

import datetime
import os
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpucheck.verdict import Acceptance, Policy

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

LEVELS = ("quick", "default", "deep")
BUDGET_S = {"quick": 20.0, "default": 180.0, "deep": 1800.0}
SIZES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
SECTIONS = {
    "expect": ("gpus", "capabilities", "shm", "binds"),
    "require": ("probes",),
    "allow_unable": ("probes",),
    "accept": ("pitfall", "reason", "until"),
    "limits": None,
    "options": None,
}


class UsageError(Exception):
    """The operator asked for something that does not exist; the message says what, where and what does."""


@dataclass(frozen=True, slots=True)
class Setting:
    """An option's value and where it came from."""

    value: Any
    origin: str


def size_bytes(text: str) -> int:
    """Bytes of ``64m``, ``1g``, ``512k`` or a plain number. Raises ValueError."""
    match = re.fullmatch(r"(\d+)([kmg]?)b?", text.strip().lower())
    if not match or not int(match[1]):
        raise ValueError(text)
    return int(match[1]) * SIZES[match[2]]


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _choice(*allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in allowed:
            raise ValueError(text)
        return text

    return parse


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < 7 * 24 * 3600:
        raise ValueError(text)
    return seconds


def _sizes(text: str) -> tuple[str, ...]:
    words = _words(text)
    for word in words:
        if word != "host":
            size_bytes(word)
    if not words:
        raise ValueError(text)
    return words


def _flag(text: str) -> bool:
    return {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}[text.lower()]


def _acceptance(text: str) -> Acceptance:
    pitfall, _, reason = text.partition("=")
    if not pitfall.strip() or not reason.strip():
        raise ValueError(text)
    return Acceptance(pitfall.strip(), reason.strip())


def _executable(text: str) -> str:
    path = Path(text).expanduser()
    if not path.is_file() or not os.access(path, os.X_OK):
        raise ValueError(text)
    # Not resolved: a venv's python is a link, and following it leaves the venv.
    return str(path.absolute())


def _folder(text: str) -> str:
    if not Path(text).is_dir() or not any(Path(text).rglob("test_*.py")):
        raise ValueError(text)
    return str(Path(text).resolve())


def _file(text: str) -> str:
    if not Path(text).is_file():
        raise ValueError(text)
    return str(Path(text).resolve())


# The grammar of a reference (distribution/reference): registry and its port, lower-case path, tag, digest; or an id.
_PART = r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*"
_REFERENCE = re.compile(
    rf"(?:(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9a-fA-F:]+\])(?::\d+)?/)?{_PART}(?:/{_PART})*"
    r"(?::\w[\w.-]{0,127})?(?:@[a-z0-9+.]+:[0-9a-f]{32,128})?",
    re.ASCII,
)


def _reference(text: str) -> str:
    if not _REFERENCE.fullmatch(text):
        raise ValueError(text)
    return text


def _factory(text: str) -> str:
    if not re.fullmatch(r"[\w.]+:[\w.]+", text):
        raise ValueError(text)
    return text


@dataclass(frozen=True, slots=True)
class Option:
    """One option: how its text is read, what is allowed (for people), its default, whether it may be given often."""

    name: str
    parse: Callable[[str], Any]
    allowed: str
    help: str
    default: Any = None
    many: bool = False
    ini: bool = False
    flag: bool = False


OPTIONS = {
    option.name: option
    for option in (
        Option("level", _choice(*LEVELS), "quick, default or deep", "how much to look at", "default", ini=True),
        Option("budget", _seconds, "seconds, more than 0", "the whole run in seconds; by level 20, 180, 1800"),
        Option("python", _executable, "an executable Python", "judge this Python without installing into it"),
        Option(
            "engine",
            _choice("auto", "docker", "podman", "none"),
            "auto, docker, podman or none",
            "container engine",
            "auto",
            ini=True,
        ),
        Option(
            "image",
            _reference,
            "one image as the engine names it: name:tag, registry:5000/team/name@sha256:…, or its id",
            "judge this image too (repeatable)",
            (),
            many=True,
        ),
        Option(
            "shm",
            _sizes,
            "sizes such as 64m,256m,1g, or host",
            "sizes of the shm sweep",
            ("64m", "128m", "256m", "512m", "1g"),
        ),
        Option("dataset", _factory, "MODULE:FACTORY", "judge your own Dataset"),
        Option("model", _factory, "MODULE:FACTORY", "judge your own model's export"),
        Option("probes", _folder, "a folder that holds test_*.py files", "a site's own probes"),
        Option("profile", _file, "a TOML file", "what this machine is expected to be", ini=True),
        Option("require", _words, "probe ids", "probes that must be ok", ()),
        Option("allow-unable", _words, "probe ids", "probes that may be unable to look", ()),
        Option(
            "accept", _acceptance, "PITFALL=REASON", "live with a pitfall, for a reason (repeatable)", (), many=True
        ),
        Option("strict", _flag, "yes or no", "degraded counts as failed", default=False, flag=True),
        Option(
            "no-gate", _flag, "yes or no", "run the user's tests even when a probe is bad", default=False, flag=True
        ),
        Option("disturb", _choice("none", "idle", "any"), "none, idle or any", "which GPUs may be loaded", "idle"),
        Option("record", str, "a file that can be written", "where the record goes", ini=True),
        Option("lang", _choice("en", "zh"), "en or zh", "language of the findings"),
        Option("rehearse", _words, "fault ids (gpucheck list --faults)", "see the probes go red for these faults", ()),
    )
}


@dataclass(frozen=True, slots=True)
class Profile:
    """The parsed profile file; empty when there is none."""

    path: str = ""
    expect: Mapping[str, Any] = field(default_factory=dict)
    require: frozenset[str] = frozenset()
    allow_unable: frozenset[str] = frozenset()
    accept: tuple[Acceptance, ...] = ()
    limits: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


def _list(path: str, section: str, table: Mapping[str, Any]) -> frozenset[str]:
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
    except (OSError, ValueError) as error:
        raise UsageError(f"the profile {path} cannot be read: {error}") from None
    _unknown(path, "the profile", data, SECTIONS)
    for section, keys in SECTIONS.items():
        table = data.get(section, {})
        if isinstance(table, list) and section != "accept":
            raise UsageError(f"{path}: write [{section}], one table, not [[{section}]]")
        for part in table if isinstance(table, list) else [table]:
            if not isinstance(part, dict):
                raise UsageError(f"{path}: `{section}` must be a table")
            if keys is not None:
                _unknown(path, f"[{section}]", part, keys)
    _unknown(path, "[options]", data.get("options", {}), set(OPTIONS) - {"profile"})
    return Profile(
        path=path,
        expect=_expectation(path, data.get("expect", {})),
        require=_list(path, "require", data.get("require", {})),
        allow_unable=_list(path, "allow_unable", data.get("allow_unable", {})),
        accept=_acceptances(path, data.get("accept", [])),
        limits=data.get("limits", {}),
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
        _parse(OPTIONS["shm"], str(table["shm"]), f"{path} [expect] shm")
    return table


def _parse(option: Option, text: Any, origin: str) -> Any:
    try:
        if isinstance(text, bool) and option.flag:
            return text
        if isinstance(text, list):
            text = ",".join(str(part) for part in text)
        return option.parse(str(text))
    except (ValueError, KeyError):
        raise UsageError(f"{option.name} = {str(text)!r} (from {origin}): allowed is {option.allowed}") from None


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
        locale = os.environ.get("LC_ALL") or os.environ.get("LC_MESSAGES") or os.environ.get("LANG") or ""
        return self["lang"] or ("zh" if locale.lower().startswith("zh") else "en")

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
    flag = f"--gpucheck-{option.name}"
    variable = "GPUCHECK_" + option.name.upper().replace("-", "_")
    if command_line not in (None, [], False):
        texts = command_line if option.many else [command_line]
        values = [text if text is True else _parse(option, text, flag) for text in texts]
        return Setting(tuple(dict.fromkeys(values)) if option.many else values[0], flag)
    for source, origin in ((os.environ, variable), (profile, "profile")):
        name = variable if source is os.environ else option.name
        if name in source and source[name] != "":
            if option.many and isinstance(source[name], list):
                return Setting(tuple(dict.fromkeys(_parse(option, text, origin) for text in source[name])), origin)
            value = _parse(option, source[name], origin)
            return Setting((value,) if option.many else value, origin)
    if option.ini and (text := ini(f"gpucheck_{option.name}")):
        return Setting(_parse(option, text, "the ini file"), "the ini file")
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
