"""Give this process's mount namespace a ``/dev`` of its own: the host's harmless nodes, and a machine's NVIDIA ones.

Run by :meth:`gpucheck.fakes.machine.Machine.enter`, as root, with the machine's tree as its argument. ``/dev`` itself
is one for the whole kernel, so that nothing may be made in it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

KEPT = ("null", "zero", "full", "random", "urandom", "tty", "fd", "stdin", "stdout", "stderr", "shm", "pts", "ptmx")


def main(tree: Path) -> None:
    """Build the folder beside the tree, then mount it over ``/dev``."""
    made = tree.parent / "dev"
    made.mkdir(exist_ok=True)
    mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", str(made))
    for name in KEPT:
        keep(Path("/dev", name), made / name)
    for node in sorted((tree / "dev").iterdir()):
        os.mknod(made / node.name, 0o020666, node.stat().st_rdev)
    mount("--move", str(made), "/dev")


def keep(host: Path, here: Path) -> None:
    """The host's node, folder or link at another place."""
    if host.is_symlink():
        here.symlink_to(os.readlink(host))
    elif host.is_dir():
        here.mkdir()
        mount("--rbind", str(host), str(here))
    elif host.exists():
        here.touch()
        mount("--bind", str(host), str(here))


def mount(*arguments: str) -> None:
    """One mount; raises with the kernel's words."""
    subprocess.run(["mount", *arguments], check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
