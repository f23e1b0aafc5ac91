"""CPUs, memory and resource limits of this process, which its children inherit."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from gpucheck.facts.reading import Reading, ReadOne, group

if TYPE_CHECKING:
    from gpucheck.facts.tree import Tree

_LIMITS: Final = "/proc/self/limits"
_STATUS: Final = "/proc/self/status"
_MEMINFO: Final = "/proc/meminfo"
_ONLINE: Final = "/sys/devices/system/cpu/online"
_KIBIBYTE: Final = 1024


def _count_of_list(text: str) -> int:
    """How many numbers a list of the kernel's names: ``0-3,8`` names five."""
    spans = (span.partition("-") for span in text.strip().split(","))
    return sum(int(last or first) - int(first) + 1 for first, _, last in spans)


def _cpu_count(tree: Tree) -> Reading:
    online = tree.text_if_any(_ONLINE)
    if online:
        return Reading(_count_of_list(online), _ONLINE)
    count = len(re.findall(r"^processor\s*:", tree.text("/proc/cpuinfo"), re.MULTILINE))
    return Reading(count, "/proc/cpuinfo")


def _affinity(tree: Tree) -> Reading:
    """How many CPUs this process may run on."""
    return Reading(_count_of_list(_field(tree, _STATUS, r"Cpus_allowed_list:\s*(\S+)")), _STATUS)


def _field(tree: Tree, path: str, pattern: str) -> str:
    found = re.search(pattern, tree.text(path))
    if not found:
        message = f"no {pattern.partition(':')[0]} in {path}"
        raise ValueError(message)
    return found[1]


def _memory(field: str) -> ReadOne:
    def read(tree: Tree) -> Reading:
        return Reading(int(_field(tree, _MEMINFO, rf"{field}:\s*(\d+) kB")) * _KIBIBYTE, _MEMINFO)

    return read


def _limit(title: str) -> ReadOne:
    def read(tree: Tree) -> Reading:
        soft = _field(tree, _LIMITS, rf"{title} {{2,}}(\S+)")
        return Reading(None if soft == "unlimited" else int(soft), f"{_LIMITS}, soft")

    return read


READERS: Final = group(
    {
        "cpu.count": _cpu_count,
        "cpu.affinity": _affinity,
        "memory.total_bytes": _memory("MemTotal"),
        "memory.available_bytes": _memory("MemAvailable"),
        "limits.nofile": _limit("Max open files"),
        "limits.memlock_bytes": _limit("Max locked memory"),
        "limits.nproc": _limit("Max processes"),
        "limits.address_space_bytes": _limit("Max address space"),
    }
)
