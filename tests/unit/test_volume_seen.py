"""What the answers of containers about their mounts mean."""

from __future__ import annotations

from typing import Any

import pytest

from gpucheck.judgement import volume_seen as seen
from gpucheck.judgement.hello import Hello

PLACE = {
    "filesystem": "ext4",
    "uid": 1000,
    "gid": 1000,
    "mode": "0755",
    "as_uid": 0,
    "free_bytes": 3 << 30,
    "free_inodes": 1000,
}


def refused(symbol: str, step: str = "write") -> dict[str, Any]:
    """An answer of a step that was refused."""
    return {"place": PLACE, "step": step, "refused": symbol, "error": "no"}


@pytest.mark.parametrize(
    ("symbol", "pitfall"),
    [
        ("ENOSPC", "disk-full"),
        ("EDQUOT", "disk-full"),
        ("EACCES", "volume-not-writable"),
        ("EPERM", "volume-not-writable"),
        ("EROFS", "volume-not-writable"),
    ],
)
def test_a_full_disk_is_told_from_one_that_may_not_be_written(symbol: str, pitfall: str) -> None:
    """By the system's word; the evidence has the step, the owner, the room and who tried."""
    fault = seen.written("/models", refused(symbol))
    assert fault is not None
    assert fault.pitfall == pitfall
    text = "\n".join(fault.evidence)
    assert f"/models: write as uid 0: write: no ({symbol})" in text
    assert "ext4, owner 1000:1000, mode 0755, 3.0 GiB free" in text


def test_what_was_taken_has_no_fault() -> None:
    """A checksum is the whole answer."""
    assert seen.written("/models", {"place": PLACE, "sha256": "a"}) is None


def test_a_folder_that_cannot_be_reached_is_a_fault_too() -> None:
    """Without a place there is still the step and its error."""
    fault = seen.written("/models", {**refused("EACCES", "look"), "place": None})
    assert fault is not None
    assert "not reachable" in fault.evidence[1]


def test_data_is_lost_when_the_file_is_gone_or_holds_something_else() -> None:
    """Both are `volume-lost`; what is there instead is told."""
    wrote = {"sha256": "a"}
    gone = seen.read_back("volume", wrote, {"place": PLACE, "found": False, "listed": ["lost+found"]})
    other = seen.read_back("volume", wrote, {"place": PLACE, "found": True, "sha256": "b"})
    assert gone is not None
    assert other is not None
    assert gone.pitfall == other.pitfall == "volume-lost"
    assert "lost+found" in gone.evidence[0]
    assert seen.read_back("volume", wrote, {"place": PLACE, "found": True, "sha256": "a"}) is None


def test_a_file_that_may_not_be_read_is_a_matter_of_its_owner() -> None:
    """It is there; the user may not."""
    fault = seen.read_back("volume", {"sha256": "a"}, refused("EACCES", "read"))
    assert fault is not None
    assert fault.pitfall == "volume-not-writable"


def mount(below: str, *, read_only: bool, wrote: bool, symbol: str | None = None) -> dict[str, Any]:
    """One mount of a read-only folder, as it was tried."""
    return {"below": below, "filesystem": "tmpfs", "read_only": read_only, "wrote": wrote, "refused": symbol}


def test_a_read_only_folder_must_refuse_at_its_top_and_in_every_mount_below() -> None:
    """A mount that is not read-only counts, also where permissions happened to refuse this user."""
    top = mount(".", read_only=True, wrote=False, symbol="EROFS")
    good = mount("a", read_only=True, wrote=False, symbol="EROFS")
    assert seen.writable_below({"mounts": [top, good]}) == []
    assert seen.refused_below({"mounts": [top, good]}) == ["a"]
    lucky = mount("b", read_only=False, wrote=False, symbol="EACCES")
    written = mount("c", read_only=False, wrote=True)
    open_ = seen.writable_below({"mounts": [top, good, lucky, written]})
    assert open_ == ["b (tmpfs): mounted rw (EACCES for this user)", "c (tmpfs): a file could be created"]
    assert seen.writable_below({"mounts": [mount(".", read_only=False, wrote=True)]}) == [
        "its top: a file could be created"
    ]


def test_few_inodes_are_told() -> None:
    """A disk can be full of names."""
    assert "3 inodes free" in seen.place_text({**PLACE, "free_inodes": 3})
    assert "inodes" not in seen.place_text(PLACE)


@pytest.mark.parametrize(
    ("text", "source", "read_only"),
    [
        ("/data:/data:ro", "/data", True),
        ("/data:/data:z,ro", "/data", True),
        ("/models:/workspace/models", "/models", False),
        ("/models", "/models", False),
    ],
)
def test_a_bind_is_read_as_docker_reads_it(text: str, source: str, read_only: bool) -> None:
    """Source, target, options."""
    assert seen.Wanted.parse(text) == seen.Wanted(source, read_only)


def test_a_relative_source_is_refused() -> None:
    """The engine would take it for the name of a volume."""
    with pytest.raises(ValueError, match="data"):
        seen.Wanted.parse("data:/data")


@pytest.mark.parametrize(
    ("kind", "version", "option"),
    [
        ("docker", "20.10.24+dfsg1", "bind-nonrecursive"),
        ("docker", "25.0.0", "bind-recursive=readonly"),
        ("docker", "dev", "bind-nonrecursive"),
        ("podman", "5.4.0", "bind-nonrecursive"),
    ],
)
def test_a_command_says_what_its_engine_knows(kind: str, version: str, option: str) -> None:
    """``bind-recursive`` came with Docker 25 and is refused before."""
    assert seen.bind_option(Hello(kind, version)) == option
