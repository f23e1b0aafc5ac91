"""Who made a thing, and whether its maker is provably gone."""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import replace

from gpucheck import owner


def test_labels_round_trip() -> None:
    """An owner survives the way through container labels; labels that are not whole are nobody's."""
    who = owner.this_run()
    assert owner.from_labels(who.labels()) == who
    assert owner.from_labels({}) is None
    assert owner.from_labels(who.labels() | {"gpucheck.pid": "many"}) is None


def test_living_owner_is_not_abandoned() -> None:
    """What a living run owns is not swept."""
    who = owner.this_run()
    assert not who.abandoned(owner.this_run())


def test_dead_owner_is_abandoned() -> None:
    """An owner whose process is gone, or whose pid belongs to another process now, is abandoned."""
    here = owner.this_run()
    process = subprocess.Popen(["true"])
    dead = replace(here, pid=process.pid, start=owner.start_of(process.pid) or 1)
    process.wait()
    assert dead.abandoned(here)
    assert replace(here, start=here.start - 1).abandoned(here)


def test_another_boot_is_abandoned_and_another_machine_is_not() -> None:
    """A reboot ended every owner on this machine; of other machines and pid namespaces nothing is known."""
    here = owner.this_run()
    assert replace(here, boot="another").abandoned(here)
    gone = replace(here, pid=2**22 - 1, start=1)
    assert gone.abandoned(here)
    assert not replace(gone, machine="another").abandoned(here)
    assert not replace(gone, pidns="pid:[1]").abandoned(here)


def test_time_is_up() -> None:
    """Past its time everything may go, whoever made it."""
    here = owner.this_run()
    assert replace(here, machine="another", expires=int(time.time()) - 1).abandoned(here)


def test_run_ids_sort_by_time() -> None:
    """A run id is a ULID: 26 characters that sort by when they were made."""
    first = owner.new_run_id()
    time.sleep(0.002)
    second = owner.new_run_id()
    assert len(first) == 26
    assert first < second
    assert owner.start_of(os.getpid()) > 0
