"""SELinux and the clock."""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING, Final

from gpucheck.facts.fact import Unknown
from gpucheck.facts.reading import Reading, group

if TYPE_CHECKING:
    from gpucheck.facts.tree import Tree

_ENFORCE: Final = "/sys/fs/selinux/enforce"
_CLOCK_ERROR: Final = 5
# struct timex of adjtimex(2) is smaller; its first field, zero, asks for a reading and changes nothing.
_TIMEX_BYTES: Final = 512
_SYNCHRONISERS: Final = {
    "/run/chrony/chronyd.pid": "chrony",
    "/run/chronyd.pid": "chrony",
    "/run/systemd/timesync/synchronized": "systemd-timesyncd",
    "/run/ntpd.pid": "ntpd",
    "/run/ntpsec/ntpd.pid": "ntpsec",
    "/run/ptp4l": "ptp4l",
}


def _enforcing(tree: Tree) -> Reading:
    text = tree.text_if_any(_ENFORCE)
    return Reading(text is not None and text.strip() == "1", _ENFORCE)


def _synchronised(tree: Tree) -> Reading:
    if not tree.live:
        raise Unknown("adjtimex", "the kernel cannot be asked about another root")
    libc = ctypes.CDLL(None, use_errno=True)
    state = libc.adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
    if state < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), "adjtimex")
    return Reading(state != _CLOCK_ERROR, "adjtimex")


def _source(tree: Tree) -> Reading:
    found = [name for path, name in _SYNCHRONISERS.items() if tree.exists(path)]
    return Reading(found[0] if found else None, "the files that chrony, timesyncd, ntpd and ptp4l leave in /run")


READERS: Final = group({"selinux.enforcing": _enforcing, "clock.synchronised": _synchronised, "clock.source": _source})
