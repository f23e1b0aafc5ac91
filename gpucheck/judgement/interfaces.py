"""Which interfaces ``NCCL_SOCKET_IFNAME`` and ``GLOO_SOCKET_IFNAME`` mean on this machine. Pure, a leaf.

NCCL (environment variables, "NCCL_SOCKET_IFNAME"): a list of beginnings of names; ``=`` in front makes them whole
names, ``^`` makes it a list of what is left out, ``^=`` both. Gloo, through torch: a list of whole names and nothing
else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpucheck.verdict import bad

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpucheck.verdict import Finding

NCCL = "NCCL_SOCKET_IFNAME"
GLOO = "GLOO_SOCKET_IFNAME"
#: What NCCL takes by itself only when nothing else is there (src/misc/socket.cc).
_LAST_RESORT = ("docker", "lo", "virbr")


@dataclass(frozen=True, slots=True)
class Interface:
    """A network interface; ``is_up`` and ``addresses`` as far as they are known."""

    name: str
    is_up: bool | None
    addresses: tuple[str, ...]

    @classmethod
    def parse(cls, told: Mapping[str, Any]) -> Interface:
        """One of the fact ``net.interfaces``."""
        return cls(told["name"], told["up"], (*(told["ipv4"] or ()), *told["ipv6"]))

    @property
    def trouble(self) -> str | None:
        """Why nobody can meet over it, or None."""
        if self.is_up is False:
            return "is down"
        return None if self.addresses else "has no address"


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a value of a variable means here."""

    variable: str
    value: str
    words: str
    found: tuple[Interface, ...]

    @property
    def usable(self) -> tuple[Interface, ...]:
        """Those over which ranks can meet."""
        return tuple(interface for interface in self.found if interface.trouble is None)


def nccl(value: str, interfaces: Sequence[Interface]) -> Meaning:
    """What NCCL takes for this value."""
    rest = value.removeprefix("^")
    exact = rest.startswith("=")
    names = [name.partition(":")[0] for name in rest.removeprefix("=").split(",") if name]
    matches = [i for i in interfaces if any(i.name == name if exact else i.name.startswith(name) for name in names)]
    if value.startswith("^"):
        left = tuple(i for i in interfaces if i not in matches and not i.name.startswith(_LAST_RESORT))
        return Meaning(NCCL, value, "all but those " + _words(exact), left)
    return Meaning(NCCL, value, "those " + _words(exact), tuple(matches))


def gloo(value: str, interfaces: Sequence[Interface]) -> Meaning:
    """What torch's gloo takes for this value: each name must be there, so that one that is not leaves nothing."""
    by_name = {interface.name: interface for interface in interfaces}
    names = value.split(",")
    found = tuple(by_name[name] for name in names if name in by_name)
    syntax = "; gloo knows no = and ^" if value.startswith(("=", "^")) else ""
    return Meaning(GLOO, value, f"those called so{syntax}", found if len(found) == len(names) else ())


def judge(meaning: Meaning, interfaces: Sequence[Interface]) -> Finding | None:
    """A variable that leaves no interface over which ranks could meet."""
    if meaning.usable:
        return None
    here = ", ".join(f"{interface.name}{_note(interface)}" for interface in interfaces) or "none"
    taken = ", ".join(f"{interface.name} {interface.trouble}" for interface in meaning.found)
    lines = (
        f"{meaning.variable}={meaning.value!r} ({meaning.words}) means {taken or 'no interface here'}",
        f"here: {here}",
    )
    return bad("interface-missing", *lines, variable=meaning.variable, value=meaning.value)


def _words(exact: bool) -> str:  # noqa: FBT001 - one of two wordings
    return "called so" if exact else "whose names begin so"


def _note(interface: Interface) -> str:
    return f" ({interface.trouble})" if interface.trouble else ""
