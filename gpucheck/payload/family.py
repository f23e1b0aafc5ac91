"""A process and all that descends from it, found in ``/proc``: listing, dumping stacks, killing. Standard library only.

A process group is not enough: torchrun's ranks and daemons have sessions of their own. Parents lead to every descendant
because the supervisor is their subreaper.
"""

import os
import signal
import time


def _stat(pid):
    """(parent, state, start time in clock ticks) of ``pid``, or None when it is gone."""
    try:
        with open("/proc/%d/stat" % pid) as stream:
            fields = stream.read().rpartition(")")[2].split()
    except (OSError, ValueError):
        return None
    return int(fields[1]), fields[0], int(fields[19])


def descendants(root):
    """Pids of every living descendant of ``root``, children before grandchildren; zombies are not alive.

    Looked at twice: whose parent dies while we look belongs to nobody at the first look, and to the subreaper at the
    next.
    """
    first = _descendants(root)
    return first + [pid for pid in _descendants(root) if pid not in first]


def _descendants(root):
    children = {}
    dead = set()
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            stat = _stat(int(entry))
            if stat:
                children.setdefault(stat[0], []).append(int(entry))
                if stat[1] in "ZX":
                    dead.add(int(entry))
    found, queue = [], [root]
    while queue:
        for pid in children.get(queue.pop(0), ()):
            found.append(pid)
            queue.append(pid)
    return [pid for pid in found if pid not in dead]


def bearers(run):
    """Pids whose inherited environment carries ``GPUCHECK_RUN=<run>``: what a killed supervisor let go of.

    Not the caller and its ancestors, which may carry the mark themselves.
    """
    mark = b"GPUCHECK_RUN=" + run.encode()
    spared = _line_of(os.getpid())
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) not in spared:
            try:
                with open("/proc/%s/environ" % entry, "rb") as stream:
                    if mark in stream.read().split(b"\0"):
                        found.append(int(entry))
            except OSError:
                continue
    return found


def _line_of(pid):
    line = set()
    while pid > 0 and pid not in line:
        line.add(pid)
        stat = _stat(pid)
        pid = stat[0] if stat else 0
    return line


def _read(path):
    try:
        with open(path, errors="replace") as stream:
            return stream.read().strip()
    except OSError:
        return ""


def catches(pid, number):
    """Whether ``pid`` has a handler for that signal; one without would die of it."""
    for line in _read("/proc/%d/status" % pid).splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def describe(pid):
    """Where ``pid`` is, by the kernel's word: name, state, system call or wait channel, one line."""
    stat = _stat(pid)
    where = _read("/proc/%d/wchan" % pid)
    stack = _read("/proc/%d/stack" % pid).splitlines()
    parts = ["%s (pid %d)" % (_read("/proc/%d/comm" % pid) or "?", pid), "state %s" % (stat[1] if stat else "gone")]
    if where and where != "0":
        parts.append("in %s" % where)
    if stack:
        parts.append("kernel: " + " < ".join(line.split()[-1].split("+")[0] for line in stack[:4]))
    return ", ".join(parts)


def dump_stacks(pids):
    """Ask each process that can to write its Python stacks; returns a line about each, from the kernel."""
    lines = [describe(pid) for pid in pids]
    for pid in pids:
        if catches(pid, signal.SIGUSR1):
            _signal(pid, signal.SIGUSR1)
    return lines


def _signal(pid, number):
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


def kill(list_pids, patience_s=2.0):
    """SIGKILL what ``list_pids()`` lists until it lists nothing; returns what did not die (state D) in that time."""
    end = time.monotonic() + patience_s
    pids = list_pids()
    while pids:
        for pid in pids:
            _signal(pid, signal.SIGKILL)
        reap()
        pids = list_pids()
        if not pids or time.monotonic() > end:
            break
        time.sleep(0.005)
    return pids


def reap():
    """Collect every dead child of the caller."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
