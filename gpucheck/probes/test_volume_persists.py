"""What a job writes to a volume outlives its container.

Looks at: a named volume and a bind mount, each written in one container (checksum, fsync of file and folder), and, when
that is removed, read in another, as the same user and as another one; a read-only bind of a folder with mounts below,
tried at its top and in each of them; a file in the writable layer, which must be gone; owner, free space, file system.
And the same for each of the profile's `[expect] binds`.
Why it matters: checkpoints of a night are gone when they lay in the container's own layer, on a full disk, or where the
job's user may not write; and `:ro` on a dataset does not protect what is mounted below it before Docker Engine 25.
Does not apply when: no container engine is installed.
Cost and disturbance: six short containers, three to five seconds; 8 MiB a volume, removed again.
If it is bad: mount a volume on exactly the path that the job writes, with an owner and the room that the job needs.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from gpucheck.engine import Bind, VolumeMount
from gpucheck.judgement import volume_seen as seen
from gpucheck.legs.replies import value_of
from gpucheck.verdict import Bug, Unable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from gpucheck.fixtures import Child, Containers
    from gpucheck.judgement.volume_seen import Wanted
    from gpucheck.profile import Options
    from gpucheck.report import Report

pytestmark = pytest.mark.probe(
    subject="engine",
    essential=("named-volume", "bind-mount", "other-uid"),
    extra=("read-only", "writable-layer", "expected-binds"),
    disturbs="none",
    deadline_s=90,
    cost_s=6.0,
)
SIZE_BYTES = 8 << 20
VOLUME, BIND, DATASET = "/job/volume", "/job/bind", "/job/dataset"
LAYER = "/tmp"
ROOT = "0:0"
# A job's root may write into folders of others unless capabilities were dropped on purpose; other users are not helped.
AS_ROOT_MAY = ("DAC_OVERRIDE", "FOWNER")
OTHER = "20000:20000"
# Every Linux host has mounts below this folder, and in one of them anybody may create files.
WITH_MOUNTS_BELOW = "/dev"
SUFFIX = ".persist"
STALE_S = 6 * 3600
LOOK_S = 10.0
NOT_THERE = ("ENOENT", "ENOTDIR")


def test_volume_persists(
    report: Report,
    options: Options,
    child: Child,
    container: Containers,
    volume: Callable[[], tuple[str, str]],
    scratch_folder: Path,
) -> None:
    """The probe."""
    look = Look(report, child, container)
    wanted = [seen.Wanted.parse(text) for text in options.profile.expect.get("binds", ())]
    with report.leg("named-volume"):
        look.at_volume(*volume())
    with report.leg("bind-mount"):
        look.at_bind(scratch_folder)
    with report.leg("other-uid"):
        look.at_other_uid()
    with report.leg("writable-layer"):
        look.at_layer()
    with report.leg("read-only"):
        look.at_read_only()
    if wanted:
        with report.leg("expected-binds"):
            look.at_expected(wanted)


@dataclass(frozen=True, slots=True)
class Kept:
    """A file that was written in one container and found again in another."""

    what: str
    how: Mapping[str, Any]
    folder: str
    name: str
    wrote: Mapping[str, Any]


class Look:
    """What was seen so far, and the ways to see more."""

    def __init__(self, report: Report, child: Child, container: Containers) -> None:
        self.report, self.child, self.container = report, child, container
        self.kept: list[Kept] = []
        self.layer: list[Mapping[str, Any]] = []

    def ask(self, *tasks: Mapping[str, Any], **how: Any) -> list[dict[str, Any]]:
        """Do the tasks in one container, which is gone when this returns."""
        reply = self.container("volume_io", {"tasks": tasks}, **how)
        answers: list[dict[str, Any]] = value_of(reply, f"a container of {self.container.engine.label}")
        return answers

    def new_name(self) -> str:
        """A file name that says whose it is."""
        return f"gpucheck-{self.container.engine.owner.run}-{secrets.token_hex(4)}{SUFFIX}"

    def user(self) -> str | None:
        """Who writes to the invoking user's folders: that user, who is root in the namespace of a rootless engine."""
        return ROOT if self.container.engine.hello.rootless else None

    # Legs

    def at_volume(self, name: str, place: str) -> None:
        """A named volume, by root, whom the engine makes its owner; beside it, a file in the writable layer."""
        self.report.saw(f"{self.container.engine.label}: a named volume, on the host at {place}")
        how = {"volumes": (VolumeMount(name, VOLUME),), "user": ROOT, "read_only": False}
        self.round_trip("named volume", VOLUME, how, beside=LAYER)

    def at_bind(self, scratch_folder: Path) -> None:
        """A folder of the invoking user, by that user."""
        scratch_folder.chmod(0o755)
        how = {"binds": (Bind(str(scratch_folder), BIND, read_only=False),), "user": self.user()}
        self.round_trip("bind mount", BIND, how)

    def round_trip(
        self, what: str, folder: str, how: Mapping[str, Any], beside: str = "", *, remove: bool = False
    ) -> None:
        """Write in one container, read in the next; a fault is a finding."""
        name, seed = self.new_name(), secrets.token_hex(8)
        write = {"do": "write", "name": name, "size_bytes": SIZE_BYTES, "seed": seed}
        read = {"do": "read", "name": name}
        folders = [folder, *([beside] if beside else [])]
        wrote = self.ask(*({**write, "folder": place} for place in folders), **how)
        if fault := seen.written(what, wrote[0]):
            self.report.take(fault)
            return
        tasks = [{**read, "folder": place} for place in folders]
        answers = self.ask(*tasks, *([{"do": "remove", "name": name, "folder": folder}] if remove else []), **how)
        self.layer = [wrote[1], answers[1]] if beside else self.layer
        if fault := seen.read_back(what, wrote[0], answers[0]):
            self.report.take(fault)
            return
        self.kept.append(Kept(what, how, folder, name, wrote[0]))
        size = f"{SIZE_BYTES >> 20} MiB"
        self.report.saw(f"{what}: {size} written and synced in one container, equal in the next")
        self.report.saw(f"{what}: {seen.place_text(answers[0]['place'])}")

    def at_other_uid(self) -> None:
        """All again, read by a user to whom they do not belong; whether that user may write is told, not judged."""
        label = self.container.engine.label
        if not self.kept:
            raise Unable(f"a volume of {label} that could be read by the user who wrote it")
        how: dict[str, Any] = {"volumes": (), "binds": ()}
        for name in how:
            how[name] = tuple(mount for kept in self.kept for mount in kept.how.get(name, ()))
        tasks = [task for kept in self.kept for task in self.tasks_of_another(kept)]
        answers = self.ask(*tasks, **how, user=OTHER)
        for kept, read, attempt in zip(self.kept, answers[::2], answers[1::2], strict=True):
            if fault := seen.read_back(f"{kept.what}, another uid", kept.wrote, read):
                self.report.take(fault)
                continue
            top = attempt["mounts"][0]
            may = "may write there too" if top["wrote"] else f"may not write there ({top['refused']})"
            uid = OTHER.partition(":")[0]
            self.report.saw(f"{kept.what}: uid {uid} reads what uid {read['uid']} wrote, and {may}")

    def tasks_of_another(self, kept: Kept) -> tuple[dict[str, Any], dict[str, Any]]:
        """Read what was written, try to write."""
        read = {"do": "read", "name": kept.name, "folder": kept.folder}
        return read, {"do": "refuse", "name": self.new_name(), "folder": kept.folder}

    def at_layer(self) -> None:
        """What was written beside the volumes is gone, as it must be: shown, not judged."""
        label = self.container.engine.label
        if not self.layer:
            raise Unable(f"a container of {label} that could be asked about its own layer")
        wrote, read = self.layer
        if "refused" in wrote:
            raise Unable(f"a writable layer: {seen.refusal_text(wrote)}")
        if read["found"]:
            raise Bug("a file in the writable layer of one container was found in another")
        where = wrote["place"]["filesystem"]
        self.report.saw(f"writable layer ({where}): the file that was written there is gone with its container")

    def at_read_only(self) -> None:
        """How the engine binds a folder with mounts below it when a job says ``:ro``."""
        answer = self.tried(WITH_MOUNTS_BELOW)
        below = ", ".join(seen.refused_below(answer))
        if not below:
            raise Unable(f"a folder with mounts below it: {WITH_MOUNTS_BELOW} has none in a container")
        if open_ := seen.writable_below(answer):
            lines = [f"{WITH_MOUNTS_BELOW} bound :ro by {self.container.engine.label}, {line}" for line in open_]
            self.report.degraded("readonly-not-recursive", *lines, **self.names(WITH_MOUNTS_BELOW))
        else:
            self.report.saw(f"{WITH_MOUNTS_BELOW} bound :ro refuses writes at its top and below ({below})")

    def names(self, source: str) -> dict[str, str]:
        """What fills the commands: the folder, and how this engine is told not to leave what lies below it writable."""
        return {"source": source, "bind_option": seen.bind_option(self.container.engine.hello)}

    def tried(self, source: str) -> dict[str, Any]:
        """What happens to files that are created in a folder bound as ``-v source:target:ro`` binds it."""
        bind = Bind(source, DATASET, read_only=True, recursive=True)
        answer = self.ask({"do": "refuse", "name": self.new_name(), "folder": DATASET}, binds=(bind,), user=OTHER)[0]
        if "refused" in answer:
            raise Unable(f"{source} in a container: {seen.refusal_text(answer)}")
        return answer

    # What the profile expects

    def at_expected(self, wanted: list[Wanted]) -> None:
        """Each bind as jobs will use it."""
        for bind in wanted:
            if not self.is_there(bind):
                continue
            if bind.read_only:
                if open_ := seen.writable_below(self.tried(bind.source)):
                    lines = [f"{bind.source} bound :ro, {line}" for line in open_]
                    self.report.bad("readonly-not-recursive", *lines, **self.names(bind.source))
                else:
                    self.report.saw(f"{bind.source} bound :ro refuses writes at its top and below")
                continue
            how = {"binds": (Bind(bind.source, BIND, read_only=False),), "user": self.user(), "cap_add": AS_ROOT_MAY}
            self.round_trip(bind.source, BIND, how, remove=True)

    def is_there(self, bind: Wanted) -> bool:
        """Whether its source exists: of another one the engine would make an empty folder that belongs to root.

        Looked at in a child, because a server that is gone would never answer. What killed runs left in a folder that
        jobs write to is removed, once it is certainly nobody's.
        """
        left = None if bind.read_only else f"gpucheck-*{SUFFIX}*"
        args = {"path": bind.source, "left": left, "older_s": STALE_S}
        reply = self.child("bind_source", args, warm=False, deadline_s=LOOK_S)
        error = value_of(reply, f"{bind.source} (profile, [expect] binds)")["error"]
        if error in NOT_THERE:
            said = f"{bind.source} (profile, [expect] binds): no such file or folder ({error})"
            self.report.bad("bind-source-missing", said, source=bind.source)
        return error not in NOT_THERE
