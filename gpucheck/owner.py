"""Who made a thing and until when it may live: the marks on every folder, container, volume and image of a run.

Whatever a killed run leaves behind is swept by a later one, but only when its owner is *provably* gone (same machine,
same boot, same pid namespace, and no process with that pid and start time) or its time is up.
"""

from __future__ import annotations

import os
import secrets
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

PREFIX = "gpucheck."
LIFETIME_S = 6 * 3600
_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


def new_run_id() -> str:
    """A ULID: sorts by time, 26 characters, unique without a server."""
    number = int(time.time() * 1000) << 80 | secrets.randbits(80)
    return "".join(_CROCKFORD[number >> shift & 31] for shift in range(125, -1, -5))


@dataclass(frozen=True, slots=True)
class Owner:
    """One run on one machine. ``expires`` is in seconds since the epoch; ``start`` in clock ticks since boot."""

    run: str
    machine: str
    boot: str
    pidns: str
    pid: int
    start: int
    expires: int

    def labels(self) -> dict[str, str]:
        """The marks as container labels."""
        return {PREFIX + name: str(value) for name, value in asdict(self).items()}

    def abandoned(self, here: Owner, now: float | None = None) -> bool:
        """Whether the owner is provably gone, seen from ``here``; of owners elsewhere, whether their time is up."""
        if self.machine == here.machine and self.boot != here.boot:
            return True
        if (self.machine, self.pidns) == (here.machine, here.pidns):
            # Seen from here it is plain; a clock that jumps must not end a living run.
            return start_of(self.pid) != self.start
        return (time.time() if now is None else now) > self.expires


def from_labels(labels: Any) -> Owner | None:
    """The owner that those labels name, or None when they are not ours or not whole."""
    try:
        values = {name: labels[PREFIX + name] for name in Owner.__dataclass_fields__}
        return Owner(
            run=values["run"],
            machine=values["machine"],
            boot=values["boot"],
            pidns=values["pidns"],
            pid=int(values["pid"]),
            start=int(values["start"]),
            expires=int(values["expires"]),
        )
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def start_of(pid: int) -> int:
    """When ``pid`` started, in clock ticks since boot; 0 when there is no such process."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return 0


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return "unknown"


def this_run(run: str | None = None) -> Owner:
    """The owner that the calling process is."""
    try:
        pidns = os.readlink("/proc/self/ns/pid")
    except OSError:
        pidns = "unknown"
    return Owner(
        run=run or new_run_id(),
        machine=_read("/etc/machine-id"),
        boot=_read("/proc/sys/kernel/random/boot_id"),
        pidns=pidns,
        pid=os.getpid(),
        start=start_of(os.getpid()),
        expires=int(time.time()) + LIFETIME_S,
    )
