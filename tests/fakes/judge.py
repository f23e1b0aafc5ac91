"""Judge the machine that this process is on by some probes, each run as the hermetic child would; print the results.

``judge.py PYTHON PROBE...``: in the namespace of a machine (:meth:`gpucheck.fakes.machine.Machine.enter`). Facts,
children and payloads are real; there is no engine. Prints a JSON list, a result a line of the record would have.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gpucheck
from gpucheck import facts, owner, profile, scratch
from gpucheck.process import Children
from gpucheck.report import Report
from gpucheck.verdict import NotApplicable, Result, Subject

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# A hang of NVML costs the whole of it.
FACTS_S = 8.0


def main(python: str, *probes: str) -> list[dict[str, Any]]:
    """The results of all probes on all their subjects."""
    host = facts.read(python=python, deadline_s=FACTS_S)
    options = profile.resolve({"python": python, "level": "quick"})
    here = owner.this_run()
    with scratch.folder(here) as folder, Children(here.run, folder, python, ("torch",)) as children:

        def child(payload: str, args: Any = None, *, deadline_s: float = 120, **how: Any) -> Any:
            return children.run(payload, args, deadline_s=deadline_s, **how)

        given = {"host": host, "options": options, "child": child, "container": no_container}
        return [asdict(result) for probe in probes for result in judge(probe, given)]


def no_container(*_: Any, **__: Any) -> Any:
    """What the fixture ``container`` is where no engine is installed."""
    raise NotApplicable("engine.clients", "no container engine installed", "no client and no socket")


def judge(probe: str, given: dict[str, Any]) -> Iterator[Result]:
    """One probe: its function for the host, then that for each GPU."""
    module = load(probe)
    asked: dict[str, Any] = {}
    functions = [value for name, value in vars(module).items() if name.startswith("test_")]
    for function in functions:
        wanted = inspect.signature(function).parameters
        gpus = (given["host"].known("nvml.gpus") or []) if "gpu" in wanted else [None]
        for gpu in gpus:
            report = new_report(probe, module, function, gpu)
            arguments = {**given, "report": report, "asked": asked, "gpu": gpu}
            yield outcome(function, report, {name: arguments[name] for name in wanted})


def outcome(function: Callable[..., None], report: Report, arguments: dict[str, Any]) -> Result:
    """What the function came to, as the hooks around a probe take it."""
    try:
        function(**arguments)
    except Exception as raised:  # noqa: BLE001 - every exception of a probe is a result
        return report.result(raised)
    return report.result()


def new_report(probe: str, module: Any, function: Any, gpu: dict[str, Any] | None) -> Report:
    """An empty report for one subject."""
    marks = getattr(function, "pytestmark", None)
    essential = (marks[0] if marks else module.pytestmark).kwargs.get("essential", ())
    subject = Subject("gpu", gpu["uuid"] or "lost", f"GPU {gpu['index']}") if gpu else Subject("host", "id", "host")
    return Report(probe.replace("_", "-"), "a title", subject, essential=essential)


def load(probe: str) -> Any:
    """A probe's module."""
    path = Path(gpucheck.__file__).parent / "probes" / f"test_{probe}.py"
    spec = importlib.util.spec_from_file_location(f"probe_{probe}", path)
    if spec is None or spec.loader is None:
        raise LookupError(path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:]), default=str))
