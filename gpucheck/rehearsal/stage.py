"""Where a fault is rehearsed: what it needs of this machine, and the one that is played around the run's children."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from gpucheck.engine import find
from gpucheck.fakes import machine as machines
from gpucheck.rehearsal.faults import Need
from gpucheck.verdict import NotApplicable, Unable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from gpucheck.facts import Facts
    from gpucheck.fakes.machine import Machine
    from gpucheck.process import Children
    from gpucheck.rehearsal.faults import Fault

ASK_S = 20.0
PROGRAMS = ("unshare", "gcc")
_SITE = "import sysconfig; print(sysconfig.get_path('purelib'))"


def lacking(fault: Fault, facts: Facts, wanted_engine: str) -> list[str]:
    """What the fault needs and this machine is known not to have, a line each."""
    missing = [(need, _TESTS[need](facts, wanted_engine)) for need in fault.needs if need in _TESTS]
    return [f"{need}: {why}" for need, why in missing if why]


def _package(*names: str) -> Callable[[Facts, str], str]:
    def test(facts: Facts, _: str) -> str:
        absent = [name for name in names if _is_absent(facts, name)]
        return f"{' and '.join(absent)} not installed" if absent else ""

    return test


def _is_absent(facts: Facts, name: str) -> bool:
    fact = facts[f"package.{name}"]
    return fact.why is None and fact.value is None


def _cuda_torch(facts: Facts, _: str) -> str:
    build = facts["torch.cuda_build"]
    if _is_absent(facts, "torch"):
        return "torch is not installed"
    return "this one is for the CPU alone" if build.why is None and build.value in (None, "none") else ""


def _onnxruntime(facts: Facts, _: str) -> str:
    runtimes = ("onnxruntime", "onnxruntime-gpu")
    return "no onnxruntime installed" if all(_is_absent(facts, name) for name in runtimes) else ""


def _onnx(facts: Facts, wanted: str) -> str:
    return _package("torch", "onnx")(facts, wanted) or _onnxruntime(facts, wanted)


def _engine(facts: Facts, wanted: str) -> str:
    try:
        find.addresses(wanted, facts)
    except find.Missing as missing:
        return f"no {missing.kind} is installed"
    except (NotApplicable, Unable) as error:
        return str(error).removeprefix("a container engine: ")
    return ""


def _no_podman(facts: Facts, _: str) -> str:
    try:
        find.addresses("podman", facts)
    except find.Missing:
        return ""
    except Unable as error:
        return str(error)
    return "podman answers here"


def _machine(_: Facts, __: str) -> str:
    return "" if os.geteuid() == 0 else "not root"


_TESTS: Mapping[Need, Callable[[Facts, str], str]] = {
    Need.ENGINE: _engine,
    Need.TORCH: _package("torch"),
    Need.CUDA_TORCH: _cuda_torch,
    Need.ONNX: _onnx,
    Need.MACHINE: _machine,
    Need.NO_PODMAN: _no_podman,
}


@dataclass(frozen=True, slots=True)
class Stage:
    """The surroundings of a run's children: as they are, or a machine that is played, written at ``home``."""

    env: Mapping[str, str] = field(default_factory=dict)
    machine: Machine | None = None
    home: Path = field(default_factory=Path)

    def argv(self, argv: list[str]) -> list[str]:
        """The command that runs ``argv`` on it."""
        return self.machine.enter(self.home, argv) if self.machine is not None else argv


def set_up(fault: Fault, children: Children, folder: Path, python: str) -> Stage:
    """The stage of a fault below ``folder``, for the judged ``python``. Raises Unable with what could not be made."""
    if not fault.change.machine:
        return Stage(fault.change.env)
    _need_programs(children)
    machine = machines.load(fault.change.machine)
    home = folder / "played" / fault.id
    with_cuda = Need.CUDA_TORCH in fault.needs
    try:
        built = machines.build(home / "built", _site_packages(children, python) if with_cuda else None)
        machine.write(home / "machine", built)
        _try_entering(children, machine, home / "machine")
    except (OSError, RuntimeError) as error:
        raise Unable(f"stand-ins for the driver: {str(error).strip()[-300:]}") from None
    return Stage({**machine.environment(home / "machine"), **fault.change.env}, machine, home / "machine")


def _need_programs(children: Children) -> None:
    """Raises Unable without what builds and enters a machine. Asked in a child: a folder of PATH may never answer."""
    look = f"for program in {' '.join(PROGRAMS)}; do command -v $program >/dev/null || echo $program; done"
    reply = children.run_argv(["sh", "-c", look], deadline_s=ASK_S)
    if absent := reply.output.split():
        raise Unable(f"{Need.MACHINE}: no {' and no '.join(absent)}")
    if reply.ended.code != 0:
        raise Unable(f"whether {' and '.join(PROGRAMS)} are here: {reply.ended}")


def _try_entering(children: Children, machine: Machine, home: Path) -> None:
    """Raises Unable where the kernel does not let us make this namespace."""
    reply = children.run_argv(machine.enter(home, ["true"]), deadline_s=ASK_S)
    if reply.ended.code != 0:
        raise Unable(f"a mount namespace with a machine in it: {reply.ended}: {' '.join(_last(reply.errors))}")


def _last(text: str) -> Iterator[str]:
    yield from [line.strip() for line in text.splitlines() if line.strip()][-2:]


def _site_packages(children: Children, python: str) -> Path:
    """Where the judged Python's wheels lie, which bring CUDA's headers."""
    reply = children.run_argv([python, "-c", _SITE], deadline_s=ASK_S)
    if reply.ended.code != 0:
        raise Unable(f"the folder of the judged Python's packages: {reply.ended}")
    return Path(reply.output.strip())
