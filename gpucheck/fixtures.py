"""What a probe may ask for. Each probe gets the rest of the world through these, and so can be tested without a GPU."""

from __future__ import annotations

import tempfile
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gpucheck import scratch
from gpucheck.engine import Container, Refused, find, open_engine
from gpucheck.events import Went
from gpucheck.inner import session
from gpucheck.inner.mark import mark_of
from gpucheck.inner.protocol import REPORT
from gpucheck.judgement import own_code, presence
from gpucheck.process import Children, Deadline, Once
from gpucheck.rehearsal.faults import UNCHANGED
from gpucheck.verdict import NotApplicable, Unable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from gpucheck.engine import Engine
    from gpucheck.facts import Facts
    from gpucheck.judgement.image_config import Image
    from gpucheck.judgement.own_code import OwnCode
    from gpucheck.owner import Owner
    from gpucheck.process import Reply
    from gpucheck.profile import Options
    from gpucheck.rehearsal.faults import Change
    from gpucheck.report import Report

ROOM_S = 2.0
# Beyond the probe's deadline: with what a container may take to be removed, less than the belt around a probe.
LEAVE_S = 5.0


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Report:
    """The result that the probe builds."""
    made: Report = request.node.stash[REPORT]
    return made


@pytest.fixture(scope="session")
def host(request: pytest.FixtureRequest) -> Facts:
    """What was read of this host."""
    return session.of(request.config).given.facts


@pytest.fixture(scope="session")
def options(request: pytest.FixtureRequest) -> Options:
    """What the operator asked for."""
    return session.of(request.config).given.options


@pytest.fixture(scope="session")
def children(request: pytest.FixtureRequest) -> Iterator[Children]:
    """Children of the judged Python; their warm server has imported torch where there is one."""
    given = session.of(request.config).given
    python = given.facts.known("python.executable") or given.options["python"]
    preload = ("torch",) if given.facts.known("package.torch") else ()
    with Children(given.run, given.folder, python, preload) as made:
        if given.options["level"] != "quick":
            made.start_server()  # imports while the cheap probes run
        yield made


@pytest.fixture
def deadline(request: pytest.FixtureRequest) -> Deadline:
    """The time that this probe has left."""
    own = time.monotonic() + mark_of(request.node).deadline_s
    return Deadline(min(own, session.of(request.config).given.ends - ROOM_S))


def payload_of(name: str, beside: Path) -> str:
    """A payload's path where it lies beside its probe, in ``beside``, as a site's does; else its name, one of ours."""
    own = beside / f"{name}.py"
    return str(own) if own.is_file() else name


class Child:
    """Runs payloads of the judged Python within the probe's deadline; see :meth:`gpucheck.process.Children.run`."""

    def __init__(self, children: Children, deadline: Deadline, beside: Path, change: Change = UNCHANGED) -> None:
        self.change = change
        self.children = children
        self.deadline = deadline
        self.beside = beside

    def __call__(
        self, payload: str, args: Mapping[str, Any] | None = None, *, deadline_s: float | None = None, **how: Any
    ) -> Reply:
        """Run a payload and return its reply."""
        name, payload = payload, payload_of(payload, self.beside)
        args, how = self.change.child_args(name, args), self.change.child_how(name, how)
        return self.children.run(payload, args, deadline_s=self.deadline.left_s(deadline_s), **how)

    def argv(self, argv: list[str], *, deadline_s: float | None = None, **how: Any) -> Reply:
        """Run a command and return its reply."""
        return self.children.run_argv(argv, deadline_s=self.deadline.left_s(deadline_s), **how)


@pytest.fixture
def child(request: pytest.FixtureRequest, children: Children, deadline: Deadline) -> Iterator[Child]:
    """Run payloads in children."""
    ours = session.of(request.config)
    made = request.node.stash[REPORT]
    children.progress = lambda text: ours.tell(Went(made.probe, text))
    yield Child(children, deadline, request.path.parent, ours.change)
    children.progress = lambda _: None


class Engines:
    """Opens the engine once, at the first probe that asks; what came of it is the same for every later one."""

    def __init__(self, who: Owner, wanted: str, host: Facts, children: Children) -> None:
        self.calls: list[Children] = []
        self.blamed_by = ""
        self._engine = Once(
            lambda deadline: open_engine(children, who, find.addresses(wanted, host), deadline, self.calls.append)
        )

    def open(self, report: Report, deadline: Deadline) -> Engine:
        """The engine. Raises NotApplicable or Unable; one that was asked for and is missing is a finding, once."""
        try:
            return self._engine.get(deadline)
        except find.Missing as missing:
            if not self.blamed_by:
                self.blamed_by = report.probe
                report.bad("engine-missing", *missing.lines, package=find.PACKAGES[missing.kind])
            raise Unable(str(missing), blocked_by=self.blamed_by) from None

    def close(self) -> None:
        """End the children that make the engine's calls."""
        for calls in self.calls:
            calls.close()


@pytest.fixture(scope="session")
def engines(request: pytest.FixtureRequest, children: Children) -> Iterator[Engines]:
    """The engine, opened on demand; its warm child is closed with the session."""
    given = session.of(request.config).given
    made = Engines(given.owner, given.options["engine"], given.facts, children)
    yield made
    made.close()


class Containers:
    """Runs payloads in containers within the probe's deadline; ``opened`` gives the engine, or raises why not."""

    def __init__(
        self, opened: Callable[[Deadline], Engine], deadline: Deadline, beside: Path, change: Change = UNCHANGED
    ) -> None:
        self.change = change
        self.opened = opened
        self.deadline = deadline
        self.beside = beside

    @property
    def engine(self) -> Engine:
        """The engine. Raises NotApplicable or Unable."""
        return self.opened(self.deadline)

    def __call__(
        self, payload: str, args: Mapping[str, Any] | None = None, *, deadline_s: float | None = None, **how: Any
    ) -> Reply:
        """Run a payload in a container described by ``how`` (fields of :class:`gpucheck.engine.Container`)."""
        wanted = Container(**{**how, **self.change.container})
        args = self.change.container_args(payload, args or {})
        return self.engine.run(payload_of(payload, self.beside), args, wanted, self.deadline, deadline_s)


@pytest.fixture
def container(request: pytest.FixtureRequest, engines: Engines, report: Report, deadline: Deadline) -> Containers:
    """Run payloads in containers."""
    return Containers(partial(engines.open, report), deadline, request.path.parent, session.of(request.config).change)


@pytest.fixture
def volume(container: Containers) -> Iterator[Callable[[], tuple[str, str]]]:
    """Makes named volumes (name, mount point on the host), and removes them."""
    made: list[tuple[Engine, str]] = []

    def make() -> tuple[str, str]:
        engine = container.engine
        name, place = engine.create_volume(container.deadline, container.change.volume)
        made.append((engine, name))
        return name, place

    yield make
    leaving = Deadline.within(LEAVE_S)
    for engine, name in made:
        with suppress(Unable):  # the run's own clean-up takes what stays
            engine.remove_volume(name, leaving)


@pytest.fixture
def scratch_folder(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A folder of this probe's own, inside the run's."""
    folder = Path(tempfile.mkdtemp(dir=session.of(request.config).given.folder / "tmp"))
    yield folder
    scratch.remove(folder)


@pytest.fixture
def image(request: pytest.FixtureRequest, report: Report, container: Containers) -> Image:
    """One image that the operator named, as the engine has it; one that cannot be looked at is never ruled out."""
    name: str = request.param
    try:
        engine = container.engine
        found = engine.image(name, container.deadline)
    except NotApplicable as ruled_out:
        raise Unable(f"an engine that has {name}: {ruled_out.because.value} ({ruled_out.because.source})") from None
    except Refused as refused:
        raise Unable(f"{name}: {engine.label} says: {refused.text}") from None
    if found is None:
        kind = engine.hello.kind
        raise Unable(
            f"the image: {engine.label} does not have {name}, and nothing is pulled unasked: "
            f"{kind} pull {name}, or {kind} load -i FILE.tar"
        )
    report.subject = replace(report.subject, details=found.details)
    report.params = {"image": name}
    return found


@pytest.fixture
def dataset(request: pytest.FixtureRequest, report: Report, host: Facts) -> OwnCode:
    """The dataset that the operator named."""
    return _own(request, report, host)


@pytest.fixture
def model(request: pytest.FixtureRequest, report: Report, host: Facts) -> OwnCode:
    """The model that the operator named."""
    return _own(request, report, host)


def _own(request: pytest.FixtureRequest, report: Report, host: Facts) -> OwnCode:
    named = own_code.named(request.param, session.of(request.config).given.started_in, host)
    report.params = named.params
    return named


@pytest.fixture
def gpu(request: pytest.FixtureRequest, host: Facts) -> dict[str, Any]:
    """One GPU of this host, as ``payload/nvml.py`` describes it."""
    if request.param is None:
        raise no_gpu(host)
    found: dict[str, Any] = request.param
    return found


def no_gpu(host: Facts) -> NotApplicable | Unable:
    """Why there is no GPU to judge: none is here, none is for us, or NVML does not say which there are."""
    said = host["nvml.gpus"].why or "none is listed"
    return presence.nothing_to_ask(host) or Unable(f"the list of GPUs: NVML: {said}", blocked_by=presence.PROBE)
