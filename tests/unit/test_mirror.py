"""The mirror image: what of the host it shows, and that nothing below a read-only bind stays writable."""

from __future__ import annotations

import tarfile
from typing import TYPE_CHECKING

from gpucheck.engine import mirror
from gpucheck.engine.container import Bind, Container, create

if TYPE_CHECKING:
    from pathlib import Path

MAPPED = {
    "executable": "/opt/venv/bin/python",
    "real_executable": "/usr/bin/python3.11",
    "prefixes": ["/opt/venv", "/usr"],
    "path": ["/opt/venv/lib/python3.11/site-packages", "/home/me/project", "/"],
    "mapped": ["/usr/lib/x86_64-linux-gnu/libc.so.6", "/data/libs/libx.so", "/etc/alias.so", "/tmp/run/cache/y.so"],
}


def test_roots_are_the_fewest_and_never_a_whole_tree_of_the_users() -> None:
    """Nested paths fold into their parent; /, /home, /etc and the like are never bound whole; nor is the run's own."""
    roots = mirror.roots(MAPPED, "/tmp/run")
    assert roots == ["/data/libs", "/etc/alias.so", "/home/me/project", "/opt/venv", "/usr"]


def test_read_only_binds_are_split_at_mount_points() -> None:
    """Each mount below a read-only source is bound read-only on its own; a writable bind is left whole."""
    points = ["/", "/data", "/data/a", "/data/a/b", "/database"]
    assert mirror.split(Bind("/data", "/d"), points) == [
        Bind("/data", "/d"),
        Bind("/data/a", "/d/a"),
        Bind("/data/a/b", "/d/a/b"),
    ]
    writable = Bind("/data", "/d", read_only=False)
    assert mirror.split(writable, points) == [writable]


def test_mount_points_of_this_machine() -> None:
    """Every mount point of this process's own table is one."""
    points = mirror.mount_points()
    assert {"/", "/proc"} <= set(points)


def test_the_engines_own_folder_is_left_out(tmp_path: Path) -> None:
    """A bind that would hold the engine's data binds what lies beside it instead."""
    for name in ("a", "engine/data", "b"):
        (tmp_path / name).mkdir(parents=True)
    root = str(tmp_path / "engine" / "data")
    assert mirror.around(str(tmp_path), root) == [str(tmp_path / "a"), str(tmp_path / "b")]
    assert mirror.around("/usr", root) == ["/usr"]
    assert mirror.around(root, root) == []


def test_the_image_holds_no_file_of_the_users(tmp_path: Path) -> None:
    """The tar has folders, links and a handful of small files of ours, and the loader's cache."""
    path = tmp_path / "image.tar"
    mirror.tar(path, 1000, 1000)
    with tarfile.open(path) as archive:
        files = {m.name for m in archive.getmembers() if m.isfile()}
        passwd = archive.extractfile("etc/passwd")
        assert passwd is not None
        assert b":1000:1000:" in passwd.read()
    assert files <= {"etc/passwd", "etc/group", "etc/nsswitch.conf", "etc/hosts", "etc/ld.so.cache"}


def test_containers_are_safe_by_default() -> None:
    """No network, no capabilities, no new privileges, a read-only root, a bounded log."""
    body = create(Container(argv=("x", "y")), "image", [], {"gpucheck.run": "R"})
    assert (body["Entrypoint"], body["Cmd"], body["Healthcheck"]) == (["x"], ["y"], {"Test": ["NONE"]})
    host = body["HostConfig"]
    assert (host["NetworkMode"], host["CapDrop"], host["CapAdd"]) == ("none", ["ALL"], [])
    assert host["SecurityOpt"] == ["no-new-privileges"]
    assert host["ReadonlyRootfs"] is True
    assert host["LogConfig"] == {"Type": "json-file", "Config": {"max-size": "2m", "max-file": "1"}}
    assert body["Labels"] == {"gpucheck.run": "R"}
    assert "ShmSize" not in host
