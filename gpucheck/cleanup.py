"""Leave nothing behind: processes, containers, volumes, images and the folder of a run.

Called at the end of every run; and, as ``python -m gpucheck.cleanup FOLDER``, by the supervisor of a run whose
controller was killed.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from gpucheck import owner, scratch
from gpucheck.payload import family

if TYPE_CHECKING:
    from gpucheck.owner import Owner

ENGINE_USED = "engine-used"
SETTLE_S = 1.0
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


def main(argv: list[str]) -> int:
    """``FOLDER``: clean up behind the run whose folder that is, and remove the folder."""
    folder = Path(argv[0])
    try:
        who = owner.from_labels(json.loads((folder / "owner.json").read_text()))
    except (OSError, ValueError):
        return 1
    if who is None:
        return 1
    clean(who, folder)
    # What the engine was just making when its asker was killed appears after the first look.
    time.sleep(SETTLE_S)
    clean(who, folder)
    scratch.remove(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
