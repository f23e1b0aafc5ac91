"""Leave nothing behind: processes, containers, volumes, images and the folder of a run.

Called at the end of every run; and, as ``python -m gpucheck.cleanup FOLDER``, by the supervisor of a run whose
controller was killed.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gpucheck import owner, scratch
from gpucheck.payload import bounded, family
from gpucheck.process import own_argv
from gpucheck.redact import redact

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpucheck.owner import Owner

ENGINE_USED = "engine-used"
SETTLE_S = 1.0
# One look: the processes are killed, and the engine is asked twice, in children that are killed at their deadlines.
LOOK_S = (family.CLEAN_UP_S - SETTLE_S) / 2
SHM = Path("/dev/shm")


def clean(who: Owner, folder: Path) -> list[str]:
    """Remove what run ``who`` made outside ``folder``; returns what would not go."""
    stuck = family.kill(lambda: family.bearers(who.run))
    left = [family.describe(pid) for pid in stuck]
    for segment in SHM.glob(f"*{who.run}*"):
        try:
            segment.unlink(missing_ok=True)
        except OSError as error:
            left.append(f"{segment}: {error.strerror}")
    if (folder / ENGINE_USED).exists():
        from gpucheck import engine

        left += engine.remove_run(who, folder)
    return left


def conclude(who: Owner, folder: Path) -> list[str]:
    """Clean up at the end of a run: what an engine holds, in a process of its own, which goes on when we are killed."""
    if not (folder / ENGINE_USED).exists():
        return clean(who, folder)
    said = bounded.run(own_argv("gpucheck.cleanup", str(folder)), LOOK_S, leave=True)
    if said.code is None:
        return [f"unknown: the clean-up did not end in {LOOK_S:.0f} s, and goes on"]
    left = said.output.splitlines()
    if said.code != 0:
        why = redact(" ".join(said.errors.strip().splitlines()[-1:]))
        left.append(f"unknown: the clean-up ended with {said.code}: {why or 'it said nothing'}")
    return left


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
    who = owner.from_labels(json.loads((folder / "owner.json").read_text()))
    if who is None:
        raise SystemExit(f"{folder}/owner.json names no run")
    try:
        left = clean(who, folder)
        if "--settle" in argv:
            time.sleep(SETTLE_S)
            left = clean(who, folder)
    finally:
        scratch.remove(folder)
    left += [f"folder {folder}"] if folder.exists() else []
    sys.stdout.writelines(f"{line}\n" for line in left)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
