"""The kernel's table of mounts: names as they are, and which mount holds a path."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from gpucheck.payload import mountinfo
from gpucheck.process import PAYLOADS

if TYPE_CHECKING:
    from pathlib import Path

TABLE = r"""
36 35 98:0 /top /mnt/my\040disk\134040\043 rw,noatime shared:1 master:2 - ext3 /dev/my\011disk ro,errors=continue
37 35 98:0 / /mnt rw - tmpfs tmpfs rw
38 35 98:0 / /mnt ro,relatime - nfs4 server:/export rw
39 35 98:0 / /données/é\040x rw - ext4 /dev/sdb rw
"""


def test_a_line_in_all_its_fields() -> None:
    """Optional fields are passed over, and what the kernel writes as octal codes is read back."""
    assert mountinfo.parse(TABLE)[0] == mountinfo.Mount(
        point="/mnt/my disk\\040#",
        top="/top",
        filesystem="ext3",
        device="/dev/my\tdisk",
        options=("rw", "noatime"),
        super_options=("ro", "errors=continue"),
    )


def test_letters_beyond_ascii_stay_what_they_are() -> None:
    """A mount point with an accent and a space is that folder's name, not a torn one."""
    assert mountinfo.parse(TABLE)[3].point == "/données/é x"


def test_read_only_is_said_by_the_mount_or_by_its_file_system() -> None:
    """Either is enough."""
    assert [mount.read_only for mount in mountinfo.parse(TABLE)] == [True, False, True, False]


def test_the_deepest_mount_holds_a_path_and_of_two_the_later() -> None:
    """A name that only begins alike is no folder of it."""
    mounts = mountinfo.parse(TABLE)
    assert mountinfo.holding(mounts, "/mnt/a") is mounts[2]
    assert mountinfo.holding(mounts, "/mnt/my disk\\040#/x") is mounts[0]
    assert mountinfo.holding(mounts, "/mnt2") is None


def test_nonsense_is_an_error() -> None:
    """A line without its two halves is not read as a mount."""
    with pytest.raises(ValueError, match="six fields"):
        mountinfo.parse("36 35 98:0 / /mnt\n")


def test_a_real_mount_on_a_name_of_any_bytes(tmp_path: Path) -> None:
    """What is mounted on a folder whose name is no UTF-8 is found by that name."""
    folder = os.fsencode(tmp_path) + b"/caf\xe9 \xc3\xa9#\\040"
    os.mkdir(folder)
    code = "import os, sys, mountinfo; print(os.fsencode(mountinfo.here()[-1].point) == os.fsencode(sys.argv[1]))"
    script = 'mount -t tmpfs tmpfs "$1" && exec "$2" -B -c "$3" "$1"'
    argv = ["unshare", "--mount", "sh", "-c", script, "sh", os.fsdecode(folder), sys.executable, code]
    env = {**os.environ, "PYTHONPATH": str(PAYLOADS)}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=False)
    if "Operation not permitted" in done.stderr:
        pytest.skip("no mount namespace here")
    assert done.stdout == "True\n", done.stderr
