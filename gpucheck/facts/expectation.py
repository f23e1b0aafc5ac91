"""Who expects NVIDIA GPUs here, and what was handed to nobody. Judging whether they are right is a probe's work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gpucheck.facts import driver, engine, pci, scheduler
from gpucheck.facts.fact import Fact, Facts, Json, Unknown
from gpucheck.facts.machine import container
from gpucheck.facts.nodes import PROC_GPUS
from gpucheck.facts.reading import Reading, group

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from gpucheck.facts.tree import Tree

_NOBODY: Final = ("void", "none", "")
_VFIO: Final = "vfio-pci"
# Cgroup v1 only: v2 keeps its device rules in a program that nobody can read.
_DEVICE_RULES: Final = "/sys/fs/cgroup/devices/devices.list"
_NVIDIA_MAJOR: Final = "195"


@dataclass(frozen=True, slots=True)
class Expectation:
    """Somebody who expects GPUs here, in a phrase, and how many; None when they do not say."""

    who: str
    count: int | None = None


def expect(facts: Facts, extra: Iterable[Expectation]) -> Facts:
    """``facts`` with what the operator expects (profile, option, the last record) put in front of ``gpu.expected``.

    An expectation makes the fact known even where a source could not be read: that somebody expects GPUs is then sure.
    """
    added = [_row(expectation) for expectation in extra]
    if not added:
        return facts
    fact = facts["gpu.expected"]
    return facts.plus(
        [Fact("gpu.expected", [*added, *(facts.known("gpu.expected") or [])], fact.source or "the operator")]
    )


def _row(expectation: Expectation) -> dict[str, Json]:
    return {"who": expectation.who, "count": expectation.count}


def _expected(tree: Tree) -> Reading:
    found: list[Expectation] = []
    troubles: list[str] = []
    for source in _SOURCES:
        try:
            found += source(tree)
        except (OSError, ValueError, Unknown) as trouble:
            troubles.append(str(trouble))
    if troubles and not found:
        # An expectation may stand exactly there; "nobody expects one" would be a guess.
        raise Unknown("gpu.expected", f"could not be read: {'; '.join(troubles)}")
    unread = f" (could not be read: {'; '.join(troubles)})" if troubles else ""
    return Reading([_row(e) for e in found], f"modules, driver, engine, PCI, scheduler, environment{unread}")


def _of_module(tree: Tree) -> Iterator[Expectation]:
    bound = tree.names(PROC_GPUS)
    if "nvidia" in driver.loaded_modules(tree):
        yield Expectation("the loaded kernel module nvidia", len(bound) if bound and _all_are_ours(tree) else None)
    elif tree.exists("/proc/driver/nvidia"):
        yield Expectation("/proc/driver/nvidia")


def _all_are_ours(tree: Tree) -> bool:
    """Whether what the machine has is what we should have: a container or a batch job may be given a part of it."""
    return container(tree).value == "none" and scheduler.job(tree) is None


def _of_driver(tree: Tree) -> Iterator[Expectation]:
    found = driver.installed(tree)
    if found:
        yield Expectation(f"the installed driver ({found[0]})")


def _of_engine(tree: Tree) -> Iterator[Expectation]:
    if engine.has_nvidia_runtime(tree):
        yield Expectation(f"docker's nvidia runtime ({engine.DAEMON_CONFIG})")
    for path, text in engine.cdi_files(tree).items():
        yield Expectation(f"the CDI file {path}", engine.cdi_gpu_count(text) if _all_are_ours(tree) else None)


def _of_switches(tree: Tree) -> Iterator[Expectation]:
    switches = pci.switches(tree)
    if switches and container(tree).value == "none":
        yield Expectation(f"{len(switches)} NVSwitches on PCI")


def _of_scheduler(tree: Tree) -> Iterator[Expectation]:
    found = scheduler.job(tree)
    if found and found[0] != "kubernetes":
        given = scheduler.job_gpus(tree.environ)
        if given and given[0]:
            yield Expectation(f"{found[0]} job {found[1]} ({given[1]})", given[0])
        return  # in a job the node's own count does not matter
    count, source = scheduler.node_gpus(tree)
    if count:
        yield Expectation(f"Slurm's GRES for this node ({source})", count)


def _of_environment(tree: Tree) -> Iterator[Expectation]:
    """NVIDIA_VISIBLE_DEVICES by list: somebody chose. ``all`` is what CUDA images carry, with or without GPUs."""
    visible = tree.environ.get("NVIDIA_VISIBLE_DEVICES", "").strip()
    if visible not in (*_NOBODY, "all") and container(tree).value != "none":
        items = {item.partition(":")[0] for item in visible.split(",") if item}
        # Slices named by UUID do not say on how many GPUs they lie.
        count = None if any(item.startswith("MIG-") for item in items) else len(items)
        yield Expectation(f"NVIDIA_VISIBLE_DEVICES={visible}", count)


_SOURCES: Final[tuple[Callable[[Tree], Iterator[Expectation]], ...]] = (
    _of_module,
    _of_driver,
    _of_engine,
    _of_switches,
    _of_scheduler,
    _of_environment,
)


def _hidden_by(tree: Tree) -> Reading:
    hidden = [*_by_vfio(tree), *_by_environment(tree), *_by_cgroup(tree)]
    return Reading(hidden, f"{pci.PCI}, NVIDIA_VISIBLE_DEVICES, {_DEVICE_RULES}")


def _by_vfio(tree: Tree) -> Iterator[dict[str, Json]]:
    for gpu in pci.gpus(tree):
        if gpu["driver"] == _VFIO:
            yield {"what": gpu["address"], "source": f"bound to {_VFIO}, for a virtual machine"}


def _by_environment(tree: Tree) -> Iterator[dict[str, Json]]:
    visible = tree.environ.get("NVIDIA_VISIBLE_DEVICES")
    # "" from an image does not count as a choice; it is what an unset build argument leaves.
    if visible in ("void", "none") and container(tree).value != "none":
        yield {"what": "every GPU", "source": f"NVIDIA_VISIBLE_DEVICES={visible}"}


def _by_cgroup(tree: Tree) -> Iterator[dict[str, Json]]:
    rules = tree.text_if_any(_DEVICE_RULES)
    if not rules or not tree.exists("/dev/nvidiactl"):
        return
    granted = [line.split() for line in rules.splitlines()]
    numbers = {fields[1].partition(":")[0] for fields in granted if len(fields) == 3}  # noqa: PLR2004 - type, number, access
    if not numbers & {"*", _NVIDIA_MAJOR}:
        yield {"what": "every GPU", "source": f"the device cgroup ({_DEVICE_RULES})"}


READERS: Final = group({"gpu.expected": _expected, "gpu.hidden_by": _hidden_by})
