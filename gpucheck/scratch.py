"""The run's own folder: every file that a run or its children write lies below it, and goes with it."""

from __future__ import annotations

import json
import os
import shutil
import site
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from gpucheck import owner, regular

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpucheck.owner import Owner

PREFIX = "gpucheck-run-"
_MARKS = "owner.json"
_MARKS_BYTES = 1 << 12
# A socket's path may have 107 characters. multiprocessing puts one 46 below TMPDIR: pymp-…/listener-PID-N-….
_LONGEST_FOLDER = 60
_SHORT_ROOT = Path("/tmp")
# Libraries leave caches where these point; a read-only or shared home would also change what they do.
_CACHES = (
    "XDG_CACHE_HOME",
    "TORCHINDUCTOR_CACHE_DIR",
    "TRITON_CACHE_DIR",
    "CUDA_CACHE_PATH",
    "MPLCONFIGDIR",
    "TORCH_HOME",
)


def _root() -> Path:
    """Where runs have their folders: as the user says, but not where children could make no sockets below it."""
    root = Path(tempfile.gettempdir())
    # mkdtemp adds eight characters of its own.
    fits = len(os.fsencode(root / f"{PREFIX}12345678")) <= _LONGEST_FOLDER
    return root if fits or not os.access(_SHORT_ROOT, os.W_OK | os.X_OK) else _SHORT_ROOT


def sweep(here: Owner) -> list[Path]:
    """Remove the folders of runs that died here or outlived their time; returns what was removed."""
    removed = []
    for folder in _root().glob(PREFIX + "*"):
        try:
            marks = json.loads(regular.read(folder / _MARKS, _MARKS_BYTES, ours=True))
        except (OSError, ValueError, RecursionError):
            continue  # anybody can lay anything there
        left_by = owner.from_labels(marks)
        if left_by and left_by.abandoned(here):
            remove(folder)
            removed += [] if folder.exists() else [folder]
    return removed


def remove(folder: Path) -> None:
    """Remove a tree, also where a payload took its own write permission away. What will not go stays, and is no error.

    A folder in it may be another user's (a container's), or go while we look (a dying process').
    """
    for path, names, _ in os.walk(folder):
        for name in names:
            child = Path(path, name)
            with suppress(OSError):
                if not child.is_symlink():
                    child.chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def folder(here: Owner) -> Iterator[Path]:
    """A private folder for this run, removed at the end. Raises OSError when the disk takes nothing."""
    made = Path(tempfile.mkdtemp(prefix=PREFIX, dir=_root()))
    try:
        (made / _MARKS).write_text(json.dumps(here.labels()))
        for name in ("tmp", "home", "cache", "answers", "stacks"):
            (made / name).mkdir()
        yield made
    finally:
        remove(made)


def environment(run: str, folder: Path) -> dict[str, str]:
    """The environment of a child: the user's own, with every cache and temporary file kept inside ``folder``."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_CORE_"))}
    env.update({name: str(folder / "cache") for name in _CACHES})
    env.setdefault("PYTHONUSERBASE", site.getuserbase())  # derived from HOME, which is about to change
    env.update(
        GPUCHECK_RUN=run,
        GPUCHECK_STACKS=str(folder / "stacks"),
        HOME=str(folder / "home"),
        TMPDIR=str(folder / "tmp"),
        PYTHONDONTWRITEBYTECODE="1",
        PYTHONUNBUFFERED="1",
        PYTHONFAULTHANDLER="1",
        ORT_DISABLE_TELEMETRY="1",  # it would report to its maker and write a device id
        OPENBLAS_NUM_THREADS="1",  # its thread pool would forbid the warm server to fork
    )
    return env
