"""Run one probe's function by itself, on facts and options given as JSON, and print its result as JSON.

For tests that must prepare the machine around the whole process first: a mount namespace, a limit. The children, and
what they meet, are real; there is no engine. Tests that need one take :func:`containers`.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gpucheck
from gpucheck import owner, profile, scratch
from gpucheck.engine import Container, Engine, open_engine
from gpucheck.facts import Fact, Facts
from gpucheck.process import Children
from gpucheck.report import Report
from gpucheck.verdict import NotApplicable, Result, Subject

if TYPE_CHECKING:
    from collections.abc import Iterator


class NoEngine:
    """What the fixture ``container`` is where no engine is installed."""

    def __call__(self, *_: Any, **__: Any) -> Any:
        """Raises NotApplicable."""
        return self.engine

    @property
    def engine(self) -> Any:
        """Raises NotApplicable."""
        raise NotApplicable("engine", "no container engine installed", "no socket")


class Containers:
    """What the fixture ``container`` is, over an engine that is open already."""

    def __init__(self, engine: Engine) -> None:
        """Over that engine."""
        self.engine = engine

    def __call__(self, payload: str, args: Any, *, deadline_s: float = 60, **how: Any) -> Any:
        """Run a payload."""
        return self.engine.run(payload, args, Container(**how), deadline_s)


@contextmanager
def containers() -> Iterator[Containers]:
    """Containers of the engine that answers here. Raises NotApplicable and Unable where there is none.

    At the end nothing of these containers may be left but the mirror image, which is then removed.
    """
    here = owner.this_run()
    with ExitStack() as stack:
        folder = stack.enter_context(scratch.folder(here))
        judged = stack.enter_context(Children(here.run, folder, sys.executable))

        def keep(calls: Children) -> None:
            stack.enter_context(calls)

        engine = open_engine(judged, here, "auto", 30, keep)
        yield Containers(engine)
        ours = [thing for thing in engine.call("marked") if thing["labels"].get("gpucheck.run") == here.run]
        engine.call("remove", things=ours)
        assert {thing["kind"] for thing in ours} <= {"image"}, ours


def load(name: str) -> Any:
    """A probe's module, by the name of its file without ``test_``."""
    path = Path(gpucheck.__file__).parent / "probes" / f"test_{name}.py"
    spec = importlib.util.spec_from_file_location(f"probe_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def facts_of(values: dict[str, Any]) -> Facts:
    """Known facts; what is not named is known to be absent (``env.*``, ``package.*``) or was not read."""
    families = (Fact("env.*", source="environment"), Fact("package.*", source="packages"))
    return Facts([*families, *(Fact(name, value, "the test") for name, value in values.items())])


def options_of(named: dict[str, str], expect: dict[str, Any]) -> profile.Options:
    """Options as the command line gives them, and what a profile expects."""
    resolved = profile.resolve(named)
    return profile.Options(resolved.settings, profile.Profile(expect=expect))


def new_report(module: Any, name: str, level: str) -> Report:
    """An empty report for that probe."""
    essential = module.pytestmark.kwargs["essential"]
    return Report(name, "a probe", Subject("host", "id", "here"), essential=essential, deep=level == "deep")


def judge(name: str, given: dict[str, Any]) -> Result:
    """Run the probe ``buffers_fit_shm`` on what is given."""
    module = load(name)
    options = options_of(given["options"], given["expect"])
    report = new_report(module, name, options["level"])
    here = owner.this_run()
    error = None
    with scratch.folder(here) as folder, Children(here.run, folder, preload=given["preload"]) as children:

        def child(payload: str, args: Any = None, **how: Any) -> Any:
            return children.run(payload, args, deadline_s=60, **how)

        try:
            getattr(module, f"test_{name}")(report, facts_of(given["facts"]), options, child, NoEngine())
        except Exception as raised:  # noqa: BLE001 - as the hooks around a probe take it
            error = raised
    return report.result(error)


if __name__ == "__main__":
    print(json.dumps(asdict(judge(sys.argv[1], json.loads(sys.argv[2]))), default=str))
