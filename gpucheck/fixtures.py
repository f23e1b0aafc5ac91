"""What a probe may ask for. Each probe gets the rest of the world through these, and so can be tested without a GPU."""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from gpucheck import scratch
from gpucheck.engine import OPEN_S, Container, Refused, open_engine
from gpucheck.engine.find import Missing
from gpucheck.faults import UNCHANGED
from gpucheck.inner import REPORT, Inner, mark_of
from gpucheck.judgement import own_code
from gpucheck.process import Children
from gpucheck.verdict import NotApplicable, Unable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpucheck.engine import Engine
    from gpucheck.facts import Facts
    from gpucheck.faults import Change
    from gpucheck.judgement.image_config import Image
    from gpucheck.judgement.own_code import OwnCode
    from gpucheck.process import Reply
    from gpucheck.profile import Options
    from gpucheck.report import Report

ROOM_S = 2.0


def _inner(request: pytest.FixtureRequest) -> Inner:
    return cast("Inner", request.config.pluginmanager.get_plugin("gpucheck-inner"))


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Report:
    """The result that the probe builds."""
    made: Report = request.node.stash[REPORT]
    return made


@pytest.fixture(scope="session")
def host(request: pytest.FixtureRequest) -> Facts:
    """What was read of this host."""
    return _inner(request).given.facts


@pytest.fixture(scope="session")
def options(request: pytest.FixtureRequest) -> Options:
    """What the operator asked for."""
    return _inner(request).given.options


@pytest.fixture(scope="session")
def children(request: pytest.FixtureRequest) -> Iterator[Children]:
    """Children of the judged Python; their warm server has imported torch where there is one."""
    given = _inner(request).given
    python = given.facts.known("python.executable") or given.options["python"]
    preload = ("torch",) if given.facts.known("package.torch") else ()
    with Children(given.run, given.folder, python, preload) as made:
        if given.options["level"] != "quick":
            made.start_server()  # imports while the cheap probes run
        yield made


class Deadline:
    """The time that a probe has left: its own deadline or the run's, whichever comes first."""

    def __init__(self, ends: float) -> None:
        self.ends = ends

    def left_s(self, wanted_s: float | None = None) -> float:
        """Seconds for the next wait. Raises Unable when there is no time for one."""
        left_s = self.ends - time.monotonic()
        if left_s <= 0:
            raise Unable("time: the probe's deadline, or the run's budget, is used up")
        return left_s if wanted_s is None else min(left_s, wanted_s)


@pytest.fixture
def deadline(request: pytest.FixtureRequest) -> Deadline:
    """The time that this probe has left."""
    own = time.monotonic() + mark_of(request.node).deadline_s
    return Deadline(min(own, _inner(request).given.ends - ROOM_S))


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

    def __call__(self, payload: str, args: Any = None, *, deadline_s: float | None = None, **how: Any) -> Reply:
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
    inner = _inner(request)
    made = request.node.stash[REPORT]
    children.progress = lambda text: inner.tell(leg=text, probe=made.probe)
    yield Child(children, deadline, request.path.parent, inner.change)
    children.progress = lambda _: None


class Engines:
    """Opens the engine once, at the first probe that asks; what came of it is the same for every later one."""

    def __init__(self, inner: Inner, children: Children) -> None:
        self.inner = inner
        self.children = children
        self.calls: list[Children] = []
        self.engine: Engine | None = None
        self.error: Unable | NotApplicable | None = None

    def open(self, report: Report, deadline_s: float) -> Engine:
        """The engine. Raises NotApplicable or Unable; one that was asked for and is missing is a finding, once."""
        if self.error is not None:
            raise self.error
        if self.engine is None:
            try:
                given = self.inner.given
                wanted = given.options["engine"]
                self.engine = open_engine(self.children, given.owner, wanted, deadline_s, self.calls.append)
            except Missing as missing:
                self.error = Unable(f"the engine {missing}, which is not installed", blocked_by=report.probe)
                report.bad("engine-missing", f"--gpucheck-engine {missing}: no {missing} is installed", engine=missing)
                raise self.error from None
            except (Unable, NotApplicable) as error:
                self.error = error
                raise
        return self.engine


@pytest.fixture(scope="session")
def engines(request: pytest.FixtureRequest, children: Children) -> Iterator[Engines]:
    """The engine, opened on demand; its warm child is closed with the session."""
    made = Engines(_inner(request), children)
    yield made
    for calls in made.calls:
        calls.close()


class Containers:
    """Runs payloads in containers within the probe's deadline."""

    def __init__(self, engines: Engines, report: Report, deadline: Deadline, beside: Path) -> None:
        self.change = engines.inner.change
        self.engines = engines
        self.report = report
        self.deadline = deadline
        self.beside = beside

    @property
    def engine(self) -> Engine:
        """The engine. Raises NotApplicable or Unable."""
        return self.engines.open(self.report, self.deadline.left_s(OPEN_S))

    def __call__(self, payload: str, args: Any = None, *, deadline_s: float | None = None, **how: Any) -> Reply:
        """Run a payload in a container described by ``how`` (fields of :class:`gpucheck.engine.Container`)."""
        wanted = Container(**{**how, **self.change.container})
        args = self.change.container_args(payload, args or {})
        return self.engine.run(payload_of(payload, self.beside), args, wanted, self.deadline.left_s(deadline_s))


@pytest.fixture
def container(request: pytest.FixtureRequest, engines: Engines, report: Report, deadline: Deadline) -> Containers:
    """Run payloads in containers."""
    return Containers(engines, report, deadline, request.path.parent)


@pytest.fixture
def volume(container: Containers) -> Iterator[Callable[[], tuple[str, str]]]:
    """Makes named volumes (name, mount point on the host), and removes them."""
    made: list[str] = []

    def make() -> tuple[str, str]:
        name, place = container.engine.create_volume(container.change.volume)
        made.append(name)
        return name, place

    yield make
    for name in made:
        container.engine.remove_volume(name)


@pytest.fixture
def scratch_folder(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A folder of this probe's own, inside the run's."""
    folder = Path(tempfile.mkdtemp(dir=_inner(request).given.folder / "tmp"))
    yield folder
    scratch.remove(folder)


@pytest.fixture
def image(request: pytest.FixtureRequest, report: Report, container: Containers) -> Image:
    """One image that the operator named, as the engine has it; one that cannot be looked at is never ruled out."""
    name: str = request.param
    try:
        engine = container.engine
        found = engine.image(name)
    except NotApplicable as ruled_out:
        raise Unable(f"an engine that has {name}: {ruled_out.because.value} ({ruled_out.because.source})") from None
    except Refused as refused:
        raise Unable(f"{name}: {engine.label} says: {refused.text}") from None
    if found is None:
        kind = engine.hello["kind"]
        raise Unable(
            f"the image: {engine.label} does not have {name}, and nothing is pulled unasked: "
            f"{kind} pull {name}, or {kind} load -i FILE.tar"
        )
    report.subject = replace(report.subject, details=found.details)
    return found


@pytest.fixture
def dataset(request: pytest.FixtureRequest, host: Facts) -> OwnCode:
    """The dataset that the operator named."""
    return own_code.named(request.param, _inner(request).given.started_in, host)


@pytest.fixture
def model(request: pytest.FixtureRequest, host: Facts) -> OwnCode:
    """The model that the operator named."""
    return own_code.named(request.param, _inner(request).given.started_in, host)


@pytest.fixture
def gpu(request: pytest.FixtureRequest, host: Facts) -> dict[str, Any]:
    """One GPU of this host, as ``payload/nvml.py`` describes it."""
    if request.param is None:
        raise no_gpu(host)
    found: dict[str, Any] = request.param
    return found


def no_gpu(host: Facts) -> NotApplicable | Unable:
    """Why there is no GPU to judge: nothing expects one, or one is expected (and `gpus-present` says so)."""
    expected = host.known("gpu.expected")
    pci = host["gpu.pci"]
    if expected:
        who = ", ".join(e["who"] for e in expected)
        return Unable(f"a GPU: {who} expects one, and none can be used", blocked_by="gpus-present")
    if expected is None or pci.why is not None:
        return Unable(f"whether there is a GPU: {pci.why}")
    return NotApplicable("gpu.pci", "no NVIDIA device, and nothing expects one", pci.source)
