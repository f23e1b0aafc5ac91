"""Interfaces, the machine's own name, loopback and proxies: what a rendezvous of ranks depends on."""

from __future__ import annotations

import array
import fcntl
import ipaddress
import re
import socket
import struct
from typing import TYPE_CHECKING, Final

from gpucheck.facts import aside
from gpucheck.facts.fact import Json, Unknown
from gpucheck.facts.reading import Reading, group
from gpucheck.redact import redact

if TYPE_CHECKING:
    from gpucheck.facts.tree import Tree

_DEVICES: Final = "/proc/net/dev"
_IPV6: Final = "/proc/net/if_inet6"
_HOSTS: Final = "/etc/hosts"
_UP: Final = 1
_PROXIES: Final = re.compile(r"(?:https?|ftp|all|ws|wss)_proxy", re.IGNORECASE)
_ASK_IPV4: Final = 0x8912  # SIOCGIFCONF of netdevice(7)
# struct ifreq: a name of sixteen bytes, then a socket address whose last four of eight are IPv4's, then padding.
_ROW_BYTES: Final = 40
_ROWS_LIMIT: Final = 1024
_RESOLVER_DEADLINE_S: Final = 2.0


def interfaces(tree: Tree) -> list[dict[str, Json]]:
    """{name, up, ipv4, ipv6} of each; ``up`` or ``ipv4`` is None where it cannot be told. Raises OSError, Unknown."""
    return tree.once(_interfaces)


def _interfaces(tree: Tree) -> list[dict[str, Json]]:
    # /proc/net follows our network namespace; /sys shows the one in which it was mounted.
    names = re.findall(r"^\s*(\S+?):", tree.text(_DEVICES), re.MULTILINE)
    ipv4, ipv6 = _ipv4(tree), _ipv6(tree)
    return [
        {
            "name": name,
            "up": _is_up(tree, name),
            "ipv4": None if ipv4 is None else ipv4.get(name, []),
            "ipv6": ipv6.get(name, []),
        }
        for name in names
    ]


def _is_up(tree: Tree, name: str) -> bool | None:
    flags = tree.text_if_any(f"/sys/class/net/{name}/flags")
    return None if flags is None else bool(int(flags, 16) & _UP)


def _ipv4(tree: Tree) -> dict[str, list[str]] | None:
    if not tree.live:
        return None  # no pseudo file lists them by interface; only the kernel does
    rows = array.array("B", bytes(_ROW_BYTES * _ROWS_LIMIT))
    address, size_bytes = rows.buffer_info()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        answer = fcntl.ioctl(asked, _ASK_IPV4, struct.pack("iL", size_bytes, address))
    (size_bytes, _) = struct.unpack("iL", answer)
    found: dict[str, list[str]] = {}
    for start in range(0, size_bytes, _ROW_BYTES):
        row = rows[start : start + _ROW_BYTES].tobytes()
        label = row[:16].split(b"\0")[0].decode().partition(":")[0]
        found.setdefault(label, []).append(socket.inet_ntoa(row[20:24]))
    return found


def _ipv6(tree: Tree) -> dict[str, list[str]]:
    """IPv6 addresses by interface; none when the kernel has no IPv6."""
    found: dict[str, list[str]] = {}
    for line in (tree.text_if_any(_IPV6) or "").splitlines():
        digits, *_, name = line.split()
        found.setdefault(name, []).append(str(ipaddress.IPv6Address(int(digits, 16))))
    return found


def _interface_list(tree: Tree) -> Reading:
    return Reading(interfaces(tree), f"{_DEVICES}, {_IPV6}, SIOCGIFCONF")


def _loopback(tree: Tree, family: str, address: str) -> Reading:
    own = next((row for row in interfaces(tree) if row["name"] == "lo"), None)
    if own is None:
        return Reading(value=False, source=f"{_DEVICES}: no lo")
    if own[family] is None:
        raise Unknown(_DEVICES, "addresses cannot be asked of another root")
    return Reading(
        address in own[family] and own["up"] is not False, f"addresses of lo: {', '.join(own[family]) or 'none'}"
    )


def _loopback_ipv4(tree: Tree) -> Reading:
    return _loopback(tree, "ipv4", "127.0.0.1")


def _loopback_ipv6(tree: Tree) -> Reading:
    return _loopback(tree, "ipv6", "::1")


def _addresses(tree: Tree) -> Reading:
    """The addresses that the machine's own name has; in the resolver's order of asking, files first."""
    return tree.once(_resolved)


def _resolved(tree: Tree) -> Reading:
    name = tree.text("/proc/sys/kernel/hostname").strip()
    words = (line.partition("#")[0].split() for line in (tree.text_if_any(_HOSTS) or "").splitlines())
    listed = [fields[0] for fields in words if name in fields[1:]]
    if listed:
        return Reading(listed, _HOSTS)
    if not tree.live:
        raise Unknown(_HOSTS, f"does not name {name}, and the resolver of another root cannot be asked")
    return ask_resolver(tree, name)


def ask_resolver(tree: Tree, name: str) -> Reading:
    """The addresses that a program here gets for ``name``; none, and the resolver's words, when it gets an error."""
    try:
        found = aside.ask_own(tree, "resolve_name", {"name": name}, _RESOLVER_DEADLINE_S)
    except Unknown as unknown:
        raise Unknown("the resolver", unknown.why) from unknown
    return Reading(found["addresses"], f"the resolver: {found['error']}" if found["error"] else "the resolver")


def _resolves(tree: Tree) -> Reading:
    reading = _addresses(tree)
    return Reading(bool(reading.value), reading.source)


def _proxies(tree: Tree) -> Reading:
    return Reading(
        sorted(name for name in tree.environ if _PROXIES.fullmatch(name) and tree.environ[name]), "environment"
    )


def _no_proxy(tree: Tree) -> Reading:
    value = tree.environ.get("no_proxy") or tree.environ.get("NO_PROXY")
    return Reading(redact(value) if value else None, "environment")


READERS: Final = group(
    {
        "net.interfaces": _interface_list,
        "net.hostname_resolves": _resolves,
        "net.hostname_addresses": _addresses,
        "net.loopback_ipv4": _loopback_ipv4,
        "net.loopback_ipv6": _loopback_ipv6,
        "net.proxies": _proxies,
        "net.no_proxy": _no_proxy,
    }
)
