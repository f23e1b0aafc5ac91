"""A mount namespace of one's own with a ``/dev/shm`` of the wanted size: no engine, no image.

Runs in a freshly forked, single-threaded child. As an ordinary user it needs a user namespace, which some kernels and
AppArmor profiles refuse; the refusal is raised with the step that was refused. Standard library only.
"""

import ctypes
import os

CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000
MS_NOSUID = 2
MS_NODEV = 4
MS_REC = 0x4000
MS_PRIVATE = 1 << 18


class NamespaceRefused(OSError):
    """The kernel refused a step of making the namespace."""


def _libc():
    return ctypes.CDLL(None, use_errno=True)


def _must(result, step):
    if result != 0:
        error = ctypes.get_errno()
        raise NamespaceRefused(error, "%s: %s" % (step, os.strerror(error)))


def _write(path, text):
    with open(path, "w") as stream:
        stream.write(text)


def _become_root_of_a_user_namespace(libc):
    uid, gid = os.getuid(), os.getgid()
    _must(libc.unshare(CLONE_NEWUSER | CLONE_NEWNS), "unshare of a user namespace")
    try:
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", "%d %d 1" % (uid, uid))
        _write("/proc/self/gid_map", "%d %d 1" % (gid, gid))
    except OSError as error:
        raise NamespaceRefused(error.errno, "mapping the user: %s" % error.strerror) from None


def enter(size_bytes):
    """Give the calling process, and it alone, a ``/dev/shm`` of ``size_bytes``. Raises ``NamespaceRefused``."""
    libc = _libc()
    if libc.unshare(CLONE_NEWNS) != 0:
        _become_root_of_a_user_namespace(libc)
    # Without this the tmpfs would appear on the host wherever "/" is mounted shared, as systemd does.
    _must(libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None), "making mounts private")
    options = ("size=%d,mode=1777" % size_bytes).encode()
    _must(libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", MS_NOSUID | MS_NODEV, options), "mount of a tmpfs on /dev/shm")
