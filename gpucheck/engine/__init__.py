"""A container engine, seen through one adapter: every call runs in a killable child, every thing made is marked.

The envelope of a payload in a container comes back through a file in a bound folder of the run; logs are for people.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpucheck import cleanup, owner, redact
from gpucheck.engine import mirror
from gpucheck.engine.calls import Refused, call, why
from gpucheck.engine.container import Bind, Container, VolumeMount, create, mount
from gpucheck.judgement.hello import Hello
from gpucheck.judgement.image_config import Image, secret_values
from gpucheck.process import (
    PAYLOADS,
    Children,
    Deadline,
    Ended,
    Failure,
    NoAnswer,
    Once,
    Reply,
    Value,
    frames,
    read_answer,
    signal_name,
)
from gpucheck.verdict import Bug, Unable, Unexplained

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gpucheck.owner import Owner

CALL_S = 25.0
OPEN_S = 60.0
HELLO_S = 10.0
MARGIN_S = 10.0
ANSWER = "/gpucheck/answer"
OURS = "/gpucheck/envelope"
THEIRS = "/gpucheck/payload"
SIGNALLED = range(129, 160)
# docker's words and podman's for a bind whose source is not there.
NOT_THERE = re.compile(r"bind source path does not exist: (.+)|statfs (.+): no such file or directory")
__all__ = ["Bind", "Container", "Engine", "Refused", "VolumeMount", "open_engine", "remove_run"]


@dataclass(frozen=True, slots=True)
class Base:
    """What a container begins with: an image, how a Python is started in it, and what is bound over it."""

    image: str
    python: str
    binds: tuple[Bind, ...] = ()


@dataclass
class Engine:
    """An engine that answered on this host."""

    url: str
    hello: Hello
    calls: Children = field(repr=False)
    judged: Children = field(repr=False)
    owner: Owner
    _mirror: Once[Base] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._mirror = Once(self._make_mirror)

    @property
    def label(self) -> str:
        """For people: ``docker 26.1.5``."""
        return self.hello.label

    def call(self, op: str, deadline: Deadline, within_s: float = CALL_S, **args: Any) -> Any:
        """Ask the engine one thing. Raises Refused with its words, Unable when it did not answer in time."""
        return call(self.calls, self.url, op, deadline.left_s(within_s), args)

    def image(self, name: str, deadline: Deadline) -> Image | None:
        """What the engine knows of an image; None when it does not have it. Nothing is ever pulled."""
        found: dict[str, Any] | None = self.call("image", deadline, name=name)
        if found is None:
            return None
        redact.hide(secret_values(found["env"]))
        return Image.parse(name, found)

    def create_volume(self, deadline: Deadline, options: Mapping[str, str] | None = None) -> tuple[str, str]:
        """A new marked volume: its name, and its mount point on the host. ``options`` are the local driver's."""
        name = f"gpucheck-{secrets.token_hex(6)}"
        wanted: dict[str, Any] = {"name": name, "labels": self.owner.labels(), "options": dict(options or {})}
        return name, self.call("create_volume", deadline, **wanted)

    def remove_volume(self, name: str, deadline: Deadline) -> None:
        """Remove a volume that this run made."""
        self.call("remove_volume", deadline, name=name)

    def run(
        self,
        payload: str,
        args: Mapping[str, Any],
        container: Container,
        deadline: Deadline,
        within_s: float | None = None,
    ) -> Reply:
        """Run a payload in a container and return its reply. The engine's refusal is an ``Ended("refused")``.

        The container has ``within_s`` of what ``deadline`` leaves; to be killed and removed, at most MARGIN_S more.
        """
        base = self._base(container, deadline)
        return self._run(payload, args, container, base, deadline.left_s(within_s))

    def _run(self, payload: str, args: Mapping[str, Any], container: Container, base: Base, deadline_s: float) -> Reply:
        nonce = secrets.token_hex(8)
        folder = self.judged.folder / "answers" / nonce
        folder.mkdir()
        folder.chmod(0o777)  # the payload may run as another user
        (folder / "args").write_text(json.dumps(dict(args)))
        (folder / "args").chmod(0o644)
        path = Path(payload if "/" in payload else PAYLOADS / f"{payload}.py")
        binds = [Bind(str(folder), ANSWER, read_only=False), Bind(str(PAYLOADS), OURS), Bind(str(path.parent), THEIRS)]
        python, binds = base.python, [*base.binds, *binds]
        sent = (f"{OURS}/envelope.py", f"{THEIRS}/{path.name}", f"@{ANSWER}/args", nonce, f"{ANSWER}/answer")
        whole = self._whole(container, (python, "-B", *sent))
        points = mirror.mount_points()
        mounts = [mount(part) for bind in (*binds, *container.binds) for part in mirror.split(bind, points)]
        body = create(whole, base.image, mounts, self.owner.labels())
        return self._reply(body, folder, nonce, deadline_s)

    def _whole(self, container: Container, argv: tuple[str, ...]) -> Container:
        """The container with all that it leaves open; of a named image, what a job in it would get."""
        named = container.image is not None
        return replace(
            container,
            argv=container.argv or argv,
            user=container.user or ("" if named else f"{os.getuid()}:{os.getgid()}"),
            env={**(self._marks() if named else self._environment()), **container.env},
            workdir="" if named else container.workdir,
            runtime=self._runtime(container),
        )

    def _reply(self, body: Any, folder: Path, nonce: str, deadline_s: float) -> Reply:
        try:
            asked = {"create": body, "deadline_s": deadline_s}
            state = call(self.calls, self.url, "run", deadline_s + MARGIN_S, asked)
        except Refused as refused:
            return Reply(NoAnswer(), Ended("refused"), errors=f"gpucheck-refused: {redact.redact(refused.text)}")
        stacks = tuple(line for dump in sorted(folder.glob("[0-9]*")) for line in frames(dump))
        return Reply(
            answer=read_answer(folder / "answer", nonce),
            ended=_ended(state, stacks),
            errors=redact.redact(state["logs"]),
            duration_s=state["duration_s"],
        )

    def _base(self, container: Container, deadline: Deadline) -> Base:
        if container.image is not None:
            return Base(container.image, container.python)
        return self._mirror.get(deadline)

    def _make_mirror(self, deadline: Deadline) -> Base:
        folder = self.judged.folder
        modules = ["torch", "onnxruntime"]
        reply = self.judged.run("mapped_paths", {"modules": modules}, deadline_s=deadline.left_s(OPEN_S))
        if not isinstance(reply.answer, Value):
            raise Unable(f"what the judged Python needs in a container: {why(reply)}")
        roots = mirror.roots(reply.answer.value, str(folder))
        binds = tuple(Bind(p, p) for root in roots for p in mirror.around(root, self.hello.root))
        tar = folder / "mirror.tar"
        mirror.tar(tar, os.getuid(), os.getgid())
        run = self.owner.run.lower()
        wanted: dict[str, Any] = {"tar": str(tar), "repository": mirror.REPOSITORY, "tag": run}
        image = self.call("import_image", deadline, labels=self.owner.labels(), **wanted)
        made = Base(image, self.judged.python, binds)
        self._check_here(made, deadline)
        return made

    def _check_here(self, base: Base, deadline: Deadline) -> None:
        """Bind a file with a random name and read it back: an engine elsewhere binds its own host's files, or none.

        Raises Unable for that, and in its own words for whatever else a first container comes to.
        """
        secret = secrets.token_hex(16)
        known = self.judged.folder / "answers" / f"here-{secrets.token_hex(8)}"
        known.write_text(secret)
        known.chmod(0o644)
        bound = Container(binds=(Bind(str(known), "/gpucheck/here"),))
        reply = self._run("here", {"path": "/gpucheck/here"}, bound, base, deadline.left_s(CALL_S))
        if isinstance(reply.answer, Value) and reply.answer.value["text"] == secret:
            return
        said = reply.refusal or why(reply)
        if _is_elsewhere(reply):
            where = redact.redact(self.url)
            raise Unable(
                f"an engine on this host: the one at {where} does not see this host's files ({said}); "
                "`gpucheck explain engine-elsewhere` says what to do"
            )
        if reply.hung:
            raise Unable(f"a first container: {said}", *reply.ended.where[:3])
        raise Unexplained(f"a first container: {said}", f"{said}\n{reply.errors}")

    def _environment(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
        return {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": "/tmp",
            "OPENBLAS_NUM_THREADS": "1",
            "ORT_DISABLE_TELEMETRY": "1",
            **self._marks(),
            **kept,
        }

    def _marks(self) -> dict[str, str]:
        """What every payload needs, and all that is added to the environment of a named image."""
        return {
            "TMPDIR": "/tmp",
            "PYTHONDONTWRITEBYTECODE": "1",
            "GPUCHECK_RUN": self.owner.run,
            "GPUCHECK_STACKS": ANSWER,
        }

    def _runtime(self, container: Container) -> str | None:
        return container.runtime if container.runtime in self.hello.runtimes else None


def _is_elsewhere(reply: Reply) -> bool:
    """Whether something is not there for the engine, or in its container, that is there for us."""
    if (gone := NOT_THERE.search(reply.refusal or "")) is not None:
        return Path(gone[1] or gone[2]).exists()
    return isinstance(reply.answer, Failure) and reply.answer.type == "FileNotFoundError"


def _ended(state: Mapping[str, Any], where: tuple[str, ...]) -> Ended:
    code = state["code"]
    if state["timed_out"]:
        return Ended("deadline", code=code, where=where)
    if state["oom"]:
        return Ended("oom", code=code)
    if code in SIGNALLED:
        return Ended("signal", code=code, signal=signal_name(code - 128))
    return Ended("exit", code=code)


def open_engine(
    judged: Children, who: Owner, addresses: Sequence[str], deadline: Deadline, keep: Callable[[Children], None]
) -> Engine:
    """The first engine that answers at one of :func:`find.addresses`. Raises Unable when none does.

    ``keep`` is handed the children that make the engine's calls, to close them at the end of the session.
    """
    calls = Children(judged.run_id, judged.folder, sys.executable, preload=("docker",))
    keep(calls)
    silent: list[Unable] = []
    for url in addresses:
        (judged.folder / cleanup.ENGINE_USED).write_text(url)
        try:
            hello = Hello.parse(call(calls, url, "hello", deadline.left_s(HELLO_S), {}))
        except Unable as error:
            silent.append(error)
            continue
        engine = Engine(url, hello, calls, judged, who)
        _sweep(engine, deadline)
        return engine
    (judged.folder / cleanup.ENGINE_USED).unlink(missing_ok=True)
    raise silent[0] if len(silent) == 1 else Unable(*map(str, silent))


def _sweep(engine: Engine, deadline: Deadline) -> None:
    """Remove what earlier runs left: of owners that are provably gone here, or past their time."""
    things = engine.call("marked", deadline)
    dead = [t for t in things if (left_by := owner.from_labels(t["labels"])) and left_by.abandoned(engine.owner)]
    if dead:
        engine.call("remove", deadline, things=dead)


def remove_run(who: Owner, folder: Path) -> list[str]:
    """Remove everything of this run from the engine it used; returns what would not go."""
    url = (folder / cleanup.ENGINE_USED).read_text()
    try:
        with Children(who.run, folder) as calls:
            things = call(calls, url, "marked", CALL_S, {})
            ours = [t for t in things if t["labels"].get("gpucheck.run") == who.run]
            stuck: list[str] = call(calls, url, "remove", CALL_S, {"things": ours}) if ours else []
    except (Unable, Bug) as error:
        return [f"the engine could not be asked to remove what this run made: {error}"]
    return stuck
