"""The probe volume-persists, in real containers of a real engine: each of its findings provoked."""

from __future__ import annotations

import os
import runpy
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from gpucheck import owner, scratch
from gpucheck.engine import Bind, VolumeMount
from gpucheck.judgement.volume_seen import RECURSIVE_SINCE, Wanted, writable_below, written
from gpucheck.legs.replies import value_of
from gpucheck.process import Children, Ended, NoAnswer, Reply
from gpucheck.verdict import NotApplicable, Result, Unable

if TYPE_CHECKING:
    from collections.abc import Iterator

drive: Any = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("drive.py"))))
PROBE = drive.load("volume_persists")
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="mounts need root")


@pytest.fixture(scope="module")
def container() -> Iterator[Any]:
    """Containers of the engine that answers here; without one these tests are skipped."""
    try:
        with drive.containers() as made:
            yield made
    except (NotApplicable, Unable) as none:
        pytest.skip(f"no container engine: {none}")


def new_report() -> Any:
    """An empty report of the probe."""
    return drive.new_report(PROBE, "volume-persists", "default")


@pytest.fixture(scope="module")
def child() -> Iterator[Any]:
    """Runs payloads of this Python on the host."""
    here = owner.this_run()
    with scratch.folder(here) as folder, Children(here.run, folder) as children:
        yield children.run


def judged(child: Any, container: Any, folder: Path) -> Result:
    """The whole probe's result."""
    report = new_report()
    made: list[str] = []

    def make() -> tuple[str, str]:
        name, place = container.engine.create_volume(container.deadline)
        made.append(name)
        return name, place

    try:
        PROBE.test_volume_persists(report, drive.options_of({}, {}), child, container, make, folder)
    finally:
        for name in made:
            container.engine.remove_volume(name, container.deadline)
    result: Result = report.result()
    return result


def expected(child: Any, container: Any, *binds: str) -> Any:
    """What the probe's last leg reports of binds that a profile expects."""
    report = new_report()
    PROBE.Look(report, child, container).at_expected([Wanted.parse(bind) for bind in binds])
    return report


def pitfalls(result: Any) -> list[str]:
    """The ids of the defects; what every engine before 25 does is degraded."""
    return [found.pitfall for found in result.findings if found.weight.value == "bad"]


def text(result: Any) -> str:
    """All evidence."""
    return "\n".join([*result.evidence, *(line for found in result.findings for line in found.evidence)])


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Any]:
    """Mounts a tmpfs on the host: ``disk(name, options)`` is its folder; unmounted at the end."""
    made: list[Path] = []

    def mount(name: str, options: str) -> Path:
        folder = tmp_path / name
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=True)
        made.append(folder)
        return folder

    yield mount
    for folder in reversed(made):
        subprocess.run(["umount", str(folder)], check=True)


def test_volumes_that_persist_are_told_with_owner_room_and_file_system(
    child: Any, container: Any, tmp_path: Path
) -> None:
    """Named volume, bind mount and another uid ran; the writable layer's loss is shown and is no finding."""
    result = judged(child, container, tmp_path)
    assert pitfalls(result) == [], text(result)
    assert result.verdict.value in ("ok", "degraded")
    assert {"named-volume", "bind-mount", "other-uid", "writable-layer"} <= set(result.legs)
    seen = text(result)
    assert "named volume: 8 MiB written and synced in one container, equal in the next" in seen
    assert "bind mount: 8 MiB written and synced in one container, equal in the next" in seen
    assert "owner 0:0, mode 0755" in seen
    assert "GiB free" in seen or "MiB free" in seen
    assert "named volume: uid 20000 reads what uid 0 wrote, and may not write there (EACCES)" in seen
    assert "the file that was written there is gone with its container" in seen


def test_without_an_engine_it_does_not_apply(child: Any, tmp_path: Path) -> None:
    """The known fact is the reason, and nothing is ok."""
    result = judged(child, drive.NoEngine(), tmp_path)
    assert result.verdict.value == "not-applicable"
    assert result.because is not None
    assert result.because.value == "no container engine installed"


@needs_root
def test_a_volume_in_memory_loses_its_data_between_two_containers(child: Any, container: Any) -> None:
    """A local volume with `type=tmpfs` is unmounted with its last container: what was written is gone."""
    docker = pytest.importorskip("docker")
    client = docker.DockerClient(base_url=container.engine.url)
    options = {"type": "tmpfs", "device": "tmpfs", "o": "size=64m"}
    volume = client.volumes.create(driver_opts=options, labels=container.engine.owner.labels())
    report = new_report()
    try:
        PROBE.Look(report, child, container).at_volume(volume.name, "in memory")
    finally:
        volume.remove(force=True)
        client.close()
    assert pitfalls(report) == ["volume-lost"]
    assert "named volume: the file is not there after re-creation; there is nothing" in text(report)


@needs_root
def test_a_full_disk_is_found_and_nothing_is_left_on_it(child: Any, container: Any, disk: Any) -> None:
    """Four MiB do not hold eight; the part that was written is removed."""
    folder = disk("models", "size=4m")
    result = expected(child, container, f"{folder}:/models")
    assert pitfalls(result) == ["disk-full"]
    assert "ENOSPC" in text(result)
    assert list(folder.iterdir()) == []


@needs_root
def test_a_disk_that_was_remounted_read_only_is_not_writable(child: Any, container: Any, disk: Any) -> None:
    """As after an I/O error: the step and the file system are named."""
    folder = disk("models", "size=64m,ro")
    result = expected(child, container, f"{folder}:/models")
    assert pitfalls(result) == ["volume-not-writable"]
    assert "create: Read-only file system (EROFS)" in text(result)


def test_a_fresh_volume_belongs_to_root_and_says_so_to_others(container: Any) -> None:
    """Another uid is refused by a named volume's owner, with the evidence that a finding needs."""
    name, _ = container.engine.create_volume(container.deadline)
    try:
        how = {"volumes": (VolumeMount(name, "/job"),), "user": "1000:1000"}
        task = {"do": "write", "folder": "/job", "name": "x", "size_bytes": 10, "seed": "s"}
        (answer,) = value_of(container("volume_io", {"tasks": [task]}, **how), "container")
    finally:
        container.engine.remove_volume(name, container.deadline)
    fault = written("named volume", answer)
    assert fault is not None
    assert fault.pitfall == "volume-not-writable"
    assert "write as uid 1000: create: Permission denied (EACCES)" in fault.evidence[0]
    assert "owner 0:0, mode 0755" in fault.evidence[1]


def test_a_bind_that_is_expected_and_healthy_is_left_as_it_was(child: Any, container: Any, tmp_path: Path) -> None:
    """The round trip leaves nothing in the user's folder, also not what a killed run left there long ago."""
    models = tmp_path / "models"
    models.mkdir()
    (models / "epoch_1.pt").write_text("weights")
    stale = models / "gpucheck-01AAAA-00000000.persist"
    stale.write_text("x")
    os.utime(stale, (1, 1))
    result = expected(child, container, f"{models}:/models")
    assert pitfalls(result) == [], text(result)
    assert f"{models}: 8 MiB written and synced in one container, equal in the next" in text(result)
    assert [path.name for path in models.iterdir()] == ["epoch_1.pt"]


def test_the_profiles_binds_reach_the_probe(child: Any, tmp_path: Path) -> None:
    """Whatever the engine, a source that does not exist is found."""
    options = drive.options_of({}, {"binds": [f"{tmp_path / 'nothing'}:/data"]})
    report = new_report()
    no_engine = drive.NoEngine()
    PROBE.test_volume_persists(report, options, child, no_engine, lambda: no_engine.engine, tmp_path)
    assert pitfalls(report) == ["bind-source-missing"]
    assert report.result().verdict.value == "bad"


def test_a_source_whose_server_is_gone_leaves_that_leg_undecided(tmp_path: Path) -> None:
    """Looking at it never comes back: it is done in a child, by a deadline, and the path is named."""
    options = drive.options_of({}, {"binds": [f"{tmp_path}:/data"]})
    report, no_engine = new_report(), drive.NoEngine()

    def hangs(_: str, args: dict[str, Any], **__: Any) -> Any:
        return Reply(NoAnswer(), Ended("abandoned", where=(f"{args['path']}: state D",)))

    PROBE.test_volume_persists(report, options, hangs, no_engine, lambda: no_engine.engine, tmp_path)
    (missed,) = [missed for missed in report.missed if missed.leg == "expected-binds"]
    assert str(tmp_path) in missed.why
    assert "did not die when killed" in missed.why
    assert report.findings == []


def test_a_source_that_does_not_exist_is_caught_before_the_engine_makes_it(
    child: Any, container: Any, tmp_path: Path
) -> None:
    """The finding names the path, and no folder that belongs to root appears there."""
    missing = tmp_path / "imagenet"
    result = expected(child, container, f"{missing}:/data:ro")
    assert pitfalls(result) == ["bind-source-missing"]
    assert str(missing) in text(result)
    assert not missing.exists()
    # Our adapter asks the engine for it in the way that fails, too.
    reply = container("volume_io", {"tasks": []}, binds=(Bind(str(missing), "/data"),))
    assert "bind source path does not exist" in (reply.refusal or "")
    assert not missing.exists()


@needs_root
@pytest.mark.skipif(not hasattr(Bind, "recursive"), reason="the adapter does not bind recursively")
def test_a_read_only_dataset_with_a_mount_below_is_held_to_its_word(
    child: Any, container: Any, tmp_path: Path, disk: Any
) -> None:
    """Before Engine 25 the mount below stays writable: found. Since then it must be refused: told."""
    dataset = tmp_path / "imagenet"
    disk("imagenet/shard", "size=4m,mode=1777")
    result = expected(child, container, f"{dataset}:/data:ro")
    if int(container.engine.hello.version.partition(".")[0]) < RECURSIVE_SINCE:
        assert pitfalls(result) == ["readonly-not-recursive"]
        assert result.findings[0].params == {"source": str(dataset), "bind_option": "bind-nonrecursive"}
        assert f"{dataset} bound :ro, shard (tmpfs): a file could be created" in text(result)
    else:
        assert pitfalls(result) == []
        assert f"{dataset} bound :ro refuses writes at its top and below" in text(result)
    assert list((dataset / "shard").iterdir()) == []


def test_a_writable_mount_below_a_read_only_one_is_seen_by_writing(container: Any, tmp_path: Path) -> None:
    """On every engine: a folder bound read-only with another bound below it, writable, is not read-only."""
    dataset, shard = tmp_path / "imagenet", tmp_path / "shard"
    (dataset / "shard").mkdir(parents=True)
    shard.mkdir()
    shard.chmod(0o777)
    binds = (Bind(str(dataset), "/data"), Bind(str(shard), "/data/shard", read_only=False))
    task = {"do": "refuse", "folder": "/data", "name": "try"}
    (answer,) = value_of(container("volume_io", {"tasks": [task]}, binds=binds), "container")
    (open_,) = writable_below(answer)
    assert open_.startswith("shard (")
    assert open_.endswith("a file could be created")
    (top,) = [mount for mount in answer["mounts"] if mount["below"] == "."]
    assert top["refused"] == "EROFS"
    assert list(shard.iterdir()) == []
