"""What was asked of a mounted folder and what its answer means. Pure: answers of ``payload/volume_io.py`` in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpucheck.judgement.shm_need import bytes_text
from gpucheck.verdict import bad

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpucheck.judgement.hello import Hello
    from gpucheck.verdict import Finding

FULL = ("ENOSPC", "EDQUOT")
NO_INODES = 8
#: Docker's release that makes mounts below a read-only one read-only, and knows ``bind-recursive``.
RECURSIVE_SINCE = 25


def place_text(place: Mapping[str, Any] | None) -> str:
    """File system, owner and room, for people."""
    if place is None:
        return "not reachable"
    owner = f"owner {place['uid']}:{place['gid']}, mode {place['mode']}"
    inodes = "" if place["free_inodes"] > NO_INODES else f", {place['free_inodes']} inodes free"
    return f"{place['filesystem']}, {owner}, {bytes_text(place['free_bytes'])} free{inodes}"


def refusal_text(answer: Mapping[str, Any]) -> str:
    """The step that was refused, and the system's word for it."""
    return f"{answer['step']}: {answer['error']} ({answer['refused']})"


def written(what: str, answer: Mapping[str, Any]) -> Finding | None:
    """Why ``what`` did not take the data; None when it did."""
    if "refused" not in answer:
        return None
    place = answer["place"]
    as_uid = f" as uid {place['as_uid']}" if place else ""
    evidence = (f"{what}: write{as_uid}: {refusal_text(answer)}", f"{what}: {place_text(place)}")
    return bad("disk-full" if answer["refused"] in FULL else "volume-not-writable", *evidence)


def read_back(what: str, wrote: Mapping[str, Any], answer: Mapping[str, Any]) -> Finding | None:
    """Why the data is not what was written; None when it is, to the last byte."""
    if "refused" in answer:
        as_uid = f" as uid {answer['place']['as_uid']}" if answer["place"] else ""
        evidence = (f"{what}: read{as_uid}: {refusal_text(answer)}", f"{what}: {place_text(answer['place'])}")
        return bad("volume-not-writable", *evidence)
    if not answer["found"]:
        listed = ", ".join(answer["listed"]) or "nothing"
        return bad("volume-lost", f"{what}: the file is not there after re-creation; there is {listed}")
    if answer["sha256"] != wrote["sha256"]:
        return bad("volume-lost", f"{what}: other bytes came back: {answer['sha256']}, not {wrote['sha256']}")
    return None


def writable_below(answer: Mapping[str, Any]) -> list[str]:
    """The mounts of a read-only folder that are not read-only, each with what happened there."""
    found = []
    for mount in answer["mounts"]:
        where = "its top" if mount["below"] == "." else f"{mount['below']} ({mount['filesystem']})"
        if mount["wrote"]:
            found.append(f"{where}: a file could be created")
        elif mount["below"] != "." and not mount["read_only"]:
            # Permissions refused it, not the mount: another user would have written.
            found.append(f"{where}: mounted rw ({mount['refused']} for this user)")
    return found


def bind_option(engine: Hello) -> str:
    """The option of a read-only ``--mount`` that this engine knows: before Docker 25 what lies below stays away."""
    major = engine.version.partition(".")[0]
    recursive = engine.kind == "docker" and major.isdigit() and int(major) >= RECURSIVE_SINCE
    return "bind-recursive=readonly" if recursive else "bind-nonrecursive"


def refused_below(answer: Mapping[str, Any]) -> list[str]:
    """The mounts below a read-only folder, without its top."""
    return [mount["below"] for mount in answer["mounts"] if mount["below"] != "."]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A bind that the operator's jobs use, as ``docker run -v`` takes it."""

    source: str
    read_only: bool

    @classmethod
    def parse(cls, text: str) -> Wanted:
        """``/host/path:/in/container[:ro]``. Raises ValueError for a source that is no absolute path."""
        source, _, rest = text.partition(":")
        if not source.startswith("/"):
            raise ValueError(text)
        return cls(source, "ro" in rest.partition(":")[2].split(","))
