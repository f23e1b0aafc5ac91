"""A container engine, seen through one adapter: every call runs in a killable child, every thing made is marked.

The envelope of a payload in a container comes back through a file in a bound folder of the run; logs are for people.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpucheck import cleanup, owner, redact
from gpucheck.engine import find, mirror
from gpucheck.engine.container import Bind, Container, VolumeMount, create, mount
from gpucheck.judgement.image_config import Image
from gpucheck.process import (
    PAYLOADS,
    Children,
    Ended,
    Failure,
    NoAnswer,
    Reply,
    Value,
    frames,
    read_answer,
    signal_name,
)
from gpucheck.verdict import Bug, Unable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gpucheck.owner import Owner

CALL_S = 25.0
OPEN_S = 60.0
HELLO_S = 10.0
MARGIN_S = 10.0
ANSWER = "/gpucheck/answer"
OURS = "/gpucheck/envelope"
THEIRS = "/gpucheck/payload"
SIGNALLED = range(129, 160)
__all__ = ["Bind", "Container", "Engine", "Refused", "VolumeMount", "open_engine", "remove_run"]


class Refused(Exception):
    """The engine answered and said no, in its own words."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


@dataclass
class Engine:
    """An engine that answered on this host."""

    url: str
    source: str
    hello: Mapping[str, Any]
    calls: Children = field(repr=False)
    judged: Children = field(repr=False)
    owner: Owner
    elsewhere: str | None = None
    _mirror: str | None = None
    _binds: list[Bind] = field(default_factory=list)

    @property
    def label(self) -> str:
        """For people: ``docker 26.1.5``."""
        return f"{self.hello['kind']} {self.hello['version']}"

    def call(self, op: str, within_s: float = CALL_S, **args: Any) -> Any:
        """Ask the engine one thing. Raises Refused with its words, Unable when it did not answer in time."""
        return _call(self.calls, self.url, op, within_s, args)

    def image(self, name: str) -> Image | None:
        """What the engine knows of an image; None when it does not have it. Nothing is ever pulled."""
        found: dict[str, Any] | None = self.call("image", name=name)
        return None if found is None else Image.parse(name, found)

    def create_volume(self, options: Mapping[str, str] | None = None) -> tuple[str, str]:
        """A new marked volume: its name, and its mount point on the host. ``options`` are the local driver's."""
        name = f"gpucheck-{secrets.token_hex(6)}"
        wanted: dict[str, Any] = {"name": name, "labels": self.owner.labels(), "options": dict(options or {})}
        return name, self.call("create_volume", **wanted)

    def remove_volume(self, name: str) -> None:
        """Remove a volume that this run made."""
        self.call("remove_volume", name=name)

    def run(self, payload: str, args: Mapping[str, Any], container: Container, deadline_s: float) -> Reply:
        """Run a payload in a container and return its reply. The engine's refusal is an ``Ended("refused")``."""
        nonce = secrets.token_hex(8)
        folder = self.judged.folder / "answers" / nonce
        folder.mkdir()
        folder.chmod(0o777)  # the payload may run as another user
        (folder / "args").write_text(json.dumps(dict(args)))
        (folder / "args").chmod(0o644)
        path = Path(payload if "/" in payload else PAYLOADS / f"{payload}.py")
        binds = [Bind(str(folder), ANSWER, read_only=False), Bind(str(PAYLOADS), OURS), Bind(str(path.parent), THEIRS)]
        image, python = self._image(container)
        if container.image is None:
            binds = [*self._binds, *binds]
        sent = (f"{OURS}/envelope.py", f"{THEIRS}/{path.name}", f"@{ANSWER}/args", nonce, f"{ANSWER}/answer")
        whole = self._whole(container, (python, "-B", *sent))
        points = mirror.mount_points(Path("/proc/self/mountinfo").read_text())
        mounts = [mount(part) for bind in (*binds, *container.binds) for part in mirror.split(bind, points)]
        body = create(whole, image, mounts, self.owner.labels())
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
            state = self.call("run", deadline_s + MARGIN_S, create=body, deadline_s=deadline_s)
        except Refused as refused:
            return Reply(NoAnswer(), Ended("refused"), errors=f"gpucheck-refused: {redact.redact(refused.text)}")
        stacks = tuple(line for dump in sorted(folder.glob("[0-9]*")) for line in frames(dump))
        return Reply(
            answer=read_answer(folder / "answer", nonce),
            ended=_ended(state, stacks),
            errors=redact.redact(state["logs"]),
            duration_s=state["duration_s"],
        )

    def _image(self, container: Container) -> tuple[str, str]:
        if container.image is not None:
            return container.image, container.python
        if self._mirror is None:
            self._make_mirror()
        if self.elsewhere:
            raise Unable(self.elsewhere)
        return str(self._mirror), self.judged.python

    def _make_mirror(self) -> None:
        folder = self.judged.folder
        reply = self.judged.run("mapped_paths", {"modules": ["torch", "onnxruntime"]}, deadline_s=OPEN_S)
        if not isinstance(reply.answer, Value):
            raise Unable(f"what the judged Python needs in a container: {_why(reply)}")
        roots = mirror.roots(reply.answer.value, str(folder))
        self._binds = [Bind(p, p) for root in roots for p in mirror.around(root, self.hello["root"])]
        tar = folder / "mirror.tar"
        mirror.tar(tar, os.getuid(), os.getgid())
        run = self.owner.run.lower()
        labels = self.owner.labels()
        self._mirror = self.call("import_image", tar=str(tar), repository=mirror.REPOSITORY, tag=run, labels=labels)
        self._check_here()

    def _check_here(self) -> None:
        """Bind a file with a random name and read it back: an engine elsewhere binds its own host's files, or none."""
        secret = secrets.token_hex(16)
        known = self.judged.folder / "answers" / f"here-{secrets.token_hex(8)}"
        known.write_text(secret)
        known.chmod(0o644)
        bound = Container(binds=(Bind(str(known), "/gpucheck/here"),))
        reply = self.run("here", {"path": "/gpucheck/here"}, bound, CALL_S)
        if isinstance(reply.answer, Value) and reply.answer.value["text"] == secret:
            return
        refusal = reply.refusal or ""
        if refusal and "source path does not exist" not in refusal:
            raise Unable(f"a container: the engine refused to run one: {refusal}")
        if isinstance(reply.answer, (NoAnswer, Failure)):
            said = refusal or f"{reply.ended}; {reply.errors.strip()[-300:]}"
            self.elsewhere = (
                f"the engine at {redact.redact(self.url)} does not see this host's files ({said}): it runs on another "
                "host or in another mount namespace; run gpucheck where the engine runs"
            )
        else:
            raise Bug(f"the first container answered nonsense: {reply.answer}")

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
        return container.runtime if container.runtime in self.hello["runtimes"] else None


def _why(reply: Reply) -> str:
    answer = reply.answer
    return f"{answer.type}: {answer.text}" if isinstance(answer, Failure) else str(reply.ended)


def _ended(state: Mapping[str, Any], where: tuple[str, ...]) -> Ended:
    code = state["code"]
    if state["timed_out"]:
        return Ended("deadline", code=code, where=where)
    if state["oom"]:
        return Ended("oom", code=code)
    if code in SIGNALLED:
        return Ended("signal", code=code, signal=signal_name(code - 128))
    return Ended("exit", code=code)


def _call(calls: Children, url: str, op: str, deadline_s: float, args: Mapping[str, Any]) -> Any:
    reply = calls.run("engine_call", {"op": op, "url": url, **args}, deadline_s=deadline_s)
    if isinstance(reply.answer, Value):
        said = reply.answer.value
        if "value" in said:
            return said["value"]
        if "refused" in said:
            raise Refused(said["refused"]["status"], redact.redact(said["refused"]["text"]))
        unreachable = said["unreachable"]
        raise Unable(f"an answer of the engine at {redact.redact(url)}: {redact.redact(unreachable['text'])}")
    if reply.hung:
        raise Unable(f"an answer of the engine at {redact.redact(url)} within {deadline_s:.0f} s ({op})")
    raise Bug(f"the engine's child, {op}: {_why(reply)}; {reply.errors[-300:]}")


def open_engine(
    judged: Children, who: Owner, wanted: str, deadline_s: float, keep: Callable[[Children], None]
) -> Engine:
    """The first engine that answers. Raises what :func:`find.addresses` raises, and Unable when none answers.

    ``keep`` is handed the children that make the engine's calls, to close them at the end of the session.
    """
    addresses = find.addresses(wanted)
    calls = Children(judged.run_id, judged.folder, sys.executable, preload=("docker",))
    keep(calls)
    silent: list[str] = []
    for address in addresses:
        (judged.folder / cleanup.ENGINE_USED).write_text(address.url)
        try:
            hello = _call(calls, address.url, "hello", min(HELLO_S, deadline_s), {})
        except (Unable, Refused) as error:
            silent.append(str(error))
            continue
        engine = Engine(address.url, address.source, hello, calls, judged, who)
        _sweep(engine)
        return engine
    (judged.folder / cleanup.ENGINE_USED).unlink(missing_ok=True)
    raise Unable(*silent)


def _sweep(engine: Engine) -> None:
    """Remove what earlier runs left: of owners that are provably gone here, or past their time."""
    things = engine.call("marked")
    dead = [t for t in things if (left_by := owner.from_labels(t["labels"])) and left_by.abandoned(engine.owner)]
    if dead:
        engine.call("remove", things=dead)


def remove_run(who: Owner, folder: Path) -> list[str]:
    """Remove everything of this run from the engine it used; returns what would not go."""
    url = (folder / cleanup.ENGINE_USED).read_text()
    try:
        with Children(who.run, folder) as calls:
            things = _call(calls, url, "marked", CALL_S, {})
            ours = [t for t in things if t["labels"].get("gpucheck.run") == who.run]
            stuck: list[str] = _call(calls, url, "remove", CALL_S, {"things": ours}) if ours else []
    except (Unable, Refused, Bug) as error:
        return [f"the engine could not be asked to remove what this run made: {error}"]
    return stuck
