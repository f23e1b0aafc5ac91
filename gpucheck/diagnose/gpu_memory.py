"""Who holds a GPU's memory, by the numbers in torch's own line about running out of it.

torch names the processes as NVML does, by their pid on the host. In a container its own pid is another one, and then it
prints itself as "Process N" too. Only the numbers tell: what is held twice would be more than what is in use.
"""

from __future__ import annotations

import re

from gpucheck.diagnose.conditions import Truth
from gpucheck.pitfalls import Check

_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_SIZE = r"([\d.]{1,20}) (bytes|[KMG]iB)"
_CAPACITY = re.compile(rf"total capac\w{{1,4}} of {_SIZE} of which {_SIZE} is free")
_PROCESS = re.compile(rf"\bProcess \d{{1,10}} has {_SIZE} memory in use")
_ITSELF = re.compile(rf"this process has {_SIZE} memory in use")
_ALLOCATED = re.compile(rf"{_SIZE} is allocated by PyTorch")
_RESERVED = re.compile(rf"{_SIZE} is reserved by PyTorch")
# A neighbour counts from this part of the capacity on: a desktop or a monitor holds less.
_LEAST_PART = 0.1
# Each number is rounded to two digits after the point, and read at another moment.
_ROUNDING_BYTES = 0.1 * (1 << 30)


def stands(check: Check, line: str) -> Truth:
    """Whether ``line`` shows by its numbers who holds a good part of the GPU: its writer alone, or others."""
    capacity, others = _CAPACITY.search(line), others_bytes(line)
    if capacity is None or others is None:
        return Truth.UNKNOWN
    by_others = others >= _LEAST_PART * _bytes(capacity)
    return Truth.YES if by_others is (check is Check.HELD_BY_OTHERS) else Truth.NO


def others_bytes(line: str) -> float | None:
    """How much the other processes hold; None where the numbers do not tell them from the writer of ``line``."""
    held = sorted(_bytes(match) for match in _PROCESS.finditer(line))
    if _ITSELF.search(line):
        return sum(held)
    capacity, allocated, reserved = _CAPACITY.search(line), _ALLOCATED.search(line), _RESERVED.search(line)
    if not (held and capacity and allocated):
        return None
    own = _bytes(allocated) + (_bytes(reserved) if reserved else 0)
    in_use = _bytes(capacity) - _bytes(capacity, 3)
    if own + sum(held) <= in_use + _ROUNDING_BYTES:
        return sum(held)
    # Together they are more than there is: one of them is the writer, and it holds somewhat more than torch allocated.
    itself = next((size for size in held if size >= own - _ROUNDING_BYTES), None)
    return None if itself is None else sum(held) - itself


def _bytes(match: re.Match[str], first: int = 1) -> float:
    try:
        return float(match[first]) * _UNITS[match[first + 1]]
    except ValueError:  # several points in a torn number
        return 0.0
