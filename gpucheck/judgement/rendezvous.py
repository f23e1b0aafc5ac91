"""Why ranks do not meet: facts and one try make a finding. Pure.

torch words most of these alike ("timed out", "connection refused", "the IPv6 network addresses … cannot be retrieved"),
so that the finding comes from where names lead and from which addresses this machine has.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpucheck.judgement.interfaces import GLOO, NCCL, Interface, gloo, judge, nccl
from gpucheck.verdict import bad

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gpucheck.facts import Facts
    from gpucheck.verdict import Finding

_HELD = re.compile(r"EADDRINUSE|[Aa]ddress already in use")
_TELLING = re.compile(
    r"Error: \S|gai error|EADDR|Connection refused|timed out|cannot be retrieved|failed to connect|Unable to"
)
_STAMP = re.compile(r"^\[[A-Z]\d{4} [\d:.]+ (?:\d+ )?")
_EVIDENCE_LINES = 2


@dataclass(frozen=True, slots=True)
class Try:
    """One torchrun of two ranks, as ``payload/ranks_gloo.py`` reports it."""

    endpoint: str
    ended: str
    code: int | None
    spent_s: float
    errors: str
    ranks: tuple[Mapping[str, Any], ...]

    @classmethod
    def parse(cls, told: Mapping[str, Any]) -> Try:
        """The payload's answer."""
        return cls(told["endpoint"], told["ended"], told["code"], told["spent_s"], told["errors"], tuple(told["ranks"]))

    @property
    def met(self) -> bool:
        """Whether both ranks met."""
        return self.ended == "exit" and self.code == 0 and len(self.ranks) == 2  # noqa: PLR2004 - two ranks

    @property
    def is_right(self) -> bool:
        """Whether they met and each had the right sum."""
        return self.met and all(rank["right"] for rank in self.ranks)

    @property
    def addresses(self) -> tuple[str, ...]:
        """The ends of the connections that the ranks held."""
        return tuple(sorted({plain(address) for rank in self.ranks for address in rank["addresses"]}))

    def lines(self) -> list[str]:
        """What it came to, and the most telling lines of its errors."""
        ending = "did not end and was stopped" if self.ended == "hang" else f"left with status {self.code}"
        told = [_STAMP.sub("[", line.strip())[:200] for line in self.errors.splitlines() if _TELLING.search(line)]
        lines = list(dict.fromkeys(told))[-_EVIDENCE_LINES:]
        return [f"torchrun at {self.endpoint} {ending} after {self.spent_s:.0f} s", *lines]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a name leads, as ``payload/endpoint.py`` reports it."""

    host: str
    port: int
    resolved: tuple[str, ...]
    error: str | None
    places: Mapping[str, str]
    answers: Mapping[str, str]

    @classmethod
    def parse(cls, host: str, port: int, told: Mapping[str, Any]) -> Place:
        """The payload's answer for ``host`` and ``port``."""
        return cls(host, port, tuple(told["resolved"]), told["error"], told["places"], told["answers"])

    def __str__(self) -> str:
        leads = ", ".join(f"{address} ({self.places[address]})" for address in self.resolved)
        return f"{self.host}:{self.port} leads to {leads or f'nothing: {self.error}'}"


def plain(address: str) -> str:
    """An IPv4 address that came through an IPv6 socket, as IPv4."""
    parsed = ipaddress.ip_address(address)
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return str(mapped or parsed)


def networks(addresses: Iterable[str], facts: Facts) -> str:
    """Addresses with the interfaces that have them, for people."""
    known = [Interface.parse(told) for told in facts.known("net.interfaces") or ()]
    owners = {address: interface.name for interface in known for address in interface.addresses}
    return ", ".join(f"{address} ({owners.get(address, _kind(address))})" for address in addresses)


def variables(facts: Facts) -> list[Finding]:
    """The findings of the two variables that name interfaces."""
    told = facts.known("net.interfaces")
    interfaces = [Interface.parse(one) for one in told or ()]
    found = []
    for name, meaning in ((NCCL, nccl), (GLOO, gloo)):
        value = facts.known(f"env.{name}")
        if value and told is not None and (finding := judge(meaning(value, interfaces), interfaces)):
            found.append(finding)
    return found


def stray(name: str, value: str) -> Finding | None:
    """A rendezvous address with characters that belong to the file it came from: blanks, quotes, a scheme."""
    if value == value.strip().strip("\"'") and "://" not in value:
        return None
    return bad("master-addr-whitespace", f"{name} is [{value}]", variable=name, value=value)


def of_place(place: Place, is_first_node: bool) -> Finding | None:  # noqa: FBT001 - a fact about this node
    """What is wrong with the endpoint of the environment. ``is_first_node``: it must be this machine's own."""
    where = {"host": place.host, "port": str(place.port)}
    if not place.resolved:
        return bad("hostname-unresolvable", str(place), **where)
    kinds = set(place.places.values())
    if "held" in kinds:
        return bad("rendezvous-port-held", str(place), **where)
    if kinds != {"elsewhere"}:
        return None
    if is_first_node:
        return bad("rendezvous-unreachable", f"{place}: rank 0 is here, and its address is not", **where)
    if "open" not in place.answers.values():
        said = ", ".join(f"{address}: {answer}" for address, answer in place.answers.items())
        return bad("rendezvous-unreachable", f"{place}; {said}", confidence="medium", **where)
    return None


def is_doubtful(facts: Facts) -> bool:
    """Whether it is known beforehand that ranks will wait for each other: a try need not be long to show it."""
    return False in (facts.known("net.hostname_resolves"), facts.known("net.loopback_ipv4"))


def cause(facts: Facts, tried: Try) -> Finding | None:
    """Why the ranks did not meet on this machine's own network; None when nothing that is known explains it."""
    for rule in (_held, _no_ipv4_loopback, _own_name, _name_elsewhere, _interface):
        if (finding := rule(facts, tried)) is not None:
            return finding
    return None


def _held(facts: Facts, tried: Try) -> Finding | None:
    del facts
    if not _HELD.search(tried.errors):
        return None
    return bad("rendezvous-port-held", *tried.lines(), port=tried.endpoint.rpartition(":")[2])


def _no_ipv4_loopback(facts: Facts, tried: Try) -> Finding | None:
    if facts.known("net.loopback_ipv4") is not False or not facts.known("net.loopback_ipv6"):
        return None
    return bad("loopback-ipv6-only", f"lo: {facts['net.loopback_ipv4'].source}", *tried.lines())


def _own_name(facts: Facts, tried: Try) -> Finding | None:
    if facts.known("net.hostname_resolves") is not False:
        return None
    name = facts.known("machine.hostname")
    return bad(
        "hostname-unresolvable", f"this machine's own name, {name}, has no address", *tried.lines(), host=name or ""
    )


def _name_elsewhere(facts: Facts, tried: Try) -> Finding | None:
    own = {address for told in facts.known("net.interfaces") or () for address in Interface.parse(told).addresses}
    leads = facts.known("net.hostname_addresses") or ()
    foreign = [address for address in leads if address not in own and not ipaddress.ip_address(address).is_loopback]
    if not own or not leads or len(foreign) < len(leads):
        return None
    name = facts.known("machine.hostname")
    line = f"this machine's own name, {name}, leads to {', '.join(foreign)}, which no interface here has"
    return bad("rendezvous-unreachable", line, *tried.lines(), host=name or "", port="")


def _interface(facts: Facts, tried: Try) -> Finding | None:
    """No loopback at all: a network namespace whose lo was never brought up."""
    if facts.known("net.loopback_ipv4") is not False or facts.known("net.loopback_ipv6") is not False:
        return None
    return bad("interface-missing", "lo is down or has no address", *tried.lines())


def _kind(address: str) -> str:
    return "loopback" if ipaddress.ip_address(address).is_loopback else "no interface that was read"
