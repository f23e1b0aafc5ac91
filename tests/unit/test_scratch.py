"""The run's own folder: where it lies, that it goes, and that sockets can be made below it."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from dataclasses import replace
from multiprocessing.connection import Listener
from pathlib import Path

import pytest

from gpucheck import owner, scratch

LONG = "a-long-folder-of-a-scheduler" * 3


@pytest.fixture
def long_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary folder of the user's whose path leaves no room for sockets."""
    root = tmp_path / LONG
    root.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(root))
    return root


def test_a_short_temporary_folder_is_the_users_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the user set is used as long as children can make sockets below it."""
    with tempfile.TemporaryDirectory(dir="/tmp") as root:
        monkeypatch.setattr(tempfile, "tempdir", root)
        with scratch.folder(owner.this_run()) as folder:
            assert folder.parent == Path(root)


@pytest.mark.usefixtures("long_root")
def test_below_a_long_temporary_folder_children_still_have_sockets() -> None:
    """The run's folder lies in a short place then, where multiprocessing's longest socket can be made."""
    with scratch.folder(owner.this_run()) as folder:
        place = folder / "tmp" / "pymp-12345678"
        place.mkdir()
        with Listener(str(place / "listener-4194304-99-12345678"), "AF_UNIX"):
            pass
    assert not folder.exists()


def test_without_a_short_place_the_long_one_is_used(long_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where /tmp takes nothing, the user's folder is the only one there is."""
    monkeypatch.setattr(scratch, "_SHORT_ROOT", Path("/proc/nothing"))
    with scratch.folder(owner.this_run()) as folder:
        assert folder.parent == long_root


@pytest.mark.usefixtures("long_root")
def test_what_a_dead_run_left_in_the_short_place_is_swept() -> None:
    """The folder of a run that died is removed by the next one with the same temporary folder."""
    here = owner.this_run()
    dead = replace(here, pid=1 << 22, start=1)
    with scratch.folder(dead) as folder:
        assert folder.parent == Path("/tmp")
        assert folder in scratch.sweep(here)
        assert not folder.exists()


def test_what_may_not_be_changed_is_left_and_nothing_is_raised() -> None:
    """A folder whose mode nobody may change, as a container's other user makes them, does not end the clean-up."""
    scratch.remove(Path("/proc/self/task"))  # the kernel refuses chmod, rmdir and unlink there, root's too


STUCK = """
import subprocess
from dataclasses import replace
from gpucheck import owner, scratch

here = owner.this_run()
with scratch.folder(replace(here, pid=1 << 22, start=1)) as folder:
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", folder / "tmp"], check=True)
    print(folder in scratch.sweep(here), folder.exists())
    subprocess.run(["umount", folder / "tmp"], check=True)
"""


def test_a_dead_runs_folder_that_will_not_go_is_not_called_removed() -> None:
    """The next run begins all the same, and does not say of what is still there (here: a mount) that it was removed."""
    argv = ["unshare", "--mount", sys.executable, "-B", "-c", STUCK]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    if "Operation not permitted" in done.stderr:
        pytest.skip("no mount namespace here")
    assert done.stdout == "False True\n", done.stderr
