"""Leave nothing behind: processes, containers, volumes, images and the folder of a run.

Called at the end of every run; and, as ``python -m gpucheck.cleanup FOLDER``, by the supervisor of a run whose
controller was killed.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gpucheck import owner, scratch
from gpucheck.payload import family

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gpucheck.owner import Owner

ENGINE_USED = "engine-used"
SETTLE_S = 1.0
CONCLUDE_S = 60.0
SHM = Path("/dev/shm")


def clean(who: Owner, folder: Path) -> list[str]:
    """Remove what run ``who`` made outside ``folder``; returns what would not go."""
    stuck = family.kill(lambda: family.bearers(who.run))
    left = [family.describe(pid) for pid in stuck]
    for segment in SHM.glob(f"*{who.run}*"):
        segment.unlink(missing_ok=True)
    if (folder / ENGINE_USED).exists():
        from gpucheck import engine

        left += engine.remove_run(who, folder)
    return left


def conclude(who: Owner, folder: Path, env: Mapping[str, str]) -> list[str]:
    """Clean up at the end of a run: what an engine holds, in a process of its own, which goes on when we are killed."""
    if not (folder / ENGINE_USED).exists():
        return clean(who, folder)
    argv = [sys.executable, "-B", "-m", "gpucheck.cleanup", str(folder)]
    process = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=dict(env),
        start_new_session=True,
    )
    try:
        left = process.communicate(timeout=CONCLUDE_S)[0].decode(errors="replace").splitlines()
    except subprocess.TimeoutExpired:
        return [f"unknown: the clean-up did not end in {CONCLUDE_S:.0f} s, and goes on"]
    return left if process.returncode == 0 else [*left, f"unknown: the clean-up ended with {process.returncode}"]


@contextmanager
def undisturbed() -> Iterator[None]:
    """Hold back Ctrl-C, SIGTERM and SIGHUP meanwhile: an interrupted clean-up leaves what it was to remove."""
    held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)


def main(argv: list[str]) -> int:
    """``FOLDER [--settle]``: clean up behind the run whose folder that is, remove the folder, print what would not go.

    ``--settle``: look again after a moment; what the engine was just making when its asker was killed appears late.
    """
    folder = Path(argv[0])
    try:
        who = owner.from_labels(json.loads((folder / "owner.json").read_text()))
    except (OSError, ValueError):
        return 1
    if who is None:
        return 1
    left = clean(who, folder)
    if "--settle" in argv:
        time.sleep(SETTLE_S)
        left = clean(who, folder)
    scratch.remove(folder)
    sys.stdout.writelines(f"{line}\n" for line in left)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
