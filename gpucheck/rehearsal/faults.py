"""Faults to rehearse: an operator sees, on a laptop, that a probe goes red for them and in what words. Pure.

A fault changes the surroundings of one probe, never the probe: sizes, expectations, variables, a container's limits, a
volume's driver, the data under test, or the whole machine (stand-ins for the driver's libraries, the kernel's view).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from gpucheck.profile import Options, Setting

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class Need(str, Enum):
    """What has to be here for a fault to be rehearsed."""

    ENGINE = "a container engine"
    NAMESPACES = "namespaces or a container engine"
    TORCH = "torch"
    CUDA_TORCH = "a CUDA build of torch"
    ONNX = "torch, onnx and onnxruntime"
    MACHINE = "root, unshare and gcc"
    NO_PODMAN = "a machine without podman"

    __str__ = str.__str__


NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Change:
    """What is different around the probe; by default nothing.

    ``args``: arguments of payloads that the probe leaves open; ``inside``: of those in containers alone. ``limits``:
    resource limits of children. ``container``: fields of every container. ``volume``: options of the local driver.
    ``machine``: the name of a machine that is played.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    expect: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    args: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    inside: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    limits: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    container: Mapping[str, Any] = field(default_factory=dict)
    volume: Mapping[str, str] = field(default_factory=dict)
    machine: str = ""

    def child_args(self, payload: str, args: Any) -> Any:
        """The arguments of a payload in a child."""
        return _opened(self.args.get(payload, NOTHING), args)

    def child_how(self, payload: str, how: Mapping[str, Any]) -> dict[str, Any]:
        """How a payload runs in a child; limits that the probe sets itself stay."""
        limits = self.limits.get(payload)
        return {"limits": limits, **how} if limits else dict(how)

    def container_args(self, payload: str, args: Any) -> Any:
        """The arguments of a payload in a container."""
        return _opened({**self.args.get(payload, NOTHING), **self.inside.get(payload, NOTHING)}, args)


UNCHANGED = Change()
# With one of these in its arguments a call is about data of its own, which a fault leaves alone.
_OWN = ("dataset", "path")


def _opened(changed: Mapping[str, Any], args: Any) -> Any:
    if not changed or any(name in (args or ()) for name in _OWN):
        return args
    return {**(args or {}), **changed}


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: the probe that must go red for it, with one of ``pitfalls``, in one of ``legs`` where it has legs."""

    id: str
    title: str
    probe: str
    pitfalls: tuple[str, ...]
    change: Change = field(repr=False)
    needs: tuple[Need, ...] = ()
    legs: tuple[str, ...] = ()

    def options(self, given: Options) -> Options:
        """The operator's options with those of the fault, and what it expects of the machine."""
        origin = f"the rehearsal of {self.id}"
        level = {"level": "default"} if given["level"] == "quick" else {}
        changed = {name: Setting(value, origin) for name, value in (level | dict(self.change.options)).items()}
        profile = given.profile
        if self.change.expect:
            profile = replace(profile, path=f"of {origin}", expect={**profile.expect, **self.change.expect})
        return Options({**given.settings, **changed}, profile)


def _loader(name: str, **more: Any) -> Mapping[str, Mapping[str, Any]]:
    return {"loader_epochs": {"dataset": f"rehearsed_datasets:{name}", **more}}


def _data(fault: str, title: str, pitfall: str, dataset: str, *legs: str) -> Fault:
    """A real defect of a dataset."""
    # Short: a worker that hangs is waited for as long.
    change = Change(options={"engine": "none"}, args=_loader(dataset, timeout_s=10))
    return Fault(fault, title, "dataloader-spawn-safe", (pitfall,), change, (Need.TORCH,), legs)


def _volume(fault: str, title: str, pitfall: str, **options: str) -> Fault:
    """A volume of the local driver that is really like that."""
    change = Change(volume={"type": "tmpfs", "device": "tmpfs", **options})
    return Fault(fault, title, "volume-persists", (pitfall,), change, (Need.ENGINE,), ("named-volume",))


def _ranks(fault: str, title: str, pitfall: str, *legs: str, **env: str) -> Fault:
    """An environment in which ranks do not meet."""
    change = Change(options={"engine": "none"}, env=env)
    return Fault(fault, title, "ranks-rendezvous", (pitfall,), change, (Need.TORCH,), legs)


# Fault, title, pitfall, machine: seen by gpus-present, which reads facts alone.
_PRESENT = (
    ("driver-not-loaded", "a driver that did not load after an update", "driver-not-loaded", "no-device-not-loaded"),
    ("nouveau-bound", "nouveau holds the GPU", "nouveau-bound", "no-device-nouveau"),
    ("gpu-lost", "one of eight GPUs fell off the bus", "gpu-lost", "gpu-lost"),
    ("versions-differ", "libraries newer than the loaded module", "driver-library-mismatch", "versions-differ"),
)
# The same, seen by cuda-available when it starts the driver.
_STARTED = (
    ("fabric-not-ready", "an H100 whose fabric was never completed", "fabric-not-completed", "fabric-not-completed"),
    ("fabric-manager", "NVSwitches that nobody manages", "fabric-manager", "fabric-manager-absent"),
    ("cuda-init-hangs", "a driver that never answers", "cuda-init-hangs", "init-hangs"),
    ("uvm-missing", "no /dev/nvidia-uvm", "uvm-missing", "uvm-missing"),
    ("uvm-broken", "a driver that starts with status 999", "uvm-broken", "uvm-broken"),
    ("hidden-by-environment", "CUDA_VISIBLE_DEVICES hides every GPU", "hidden-by-environment", "hidden-empty"),
    ("stub-libcuda", "the toolkit's stub is found before the driver", "stub-libcuda", "stub-first"),
    ("compat-shadows", "compatibility libraries hide the driver's", "compat-shadows-driver", "compat-shadows"),
    ("gpu-hidden", "CUDA shows seven GPUs of eight", "gpu-hidden-device", "one-not-shown"),
)
# The same, seen by cuda-available when torch, in a CUDA build, goes on from there.
_COMPUTED = (
    ("driver-too-old", "a driver for CUDA 12.4 under a wheel for CUDA 13", "driver-too-old", "driver-too-old"),
    ("wrong-numbers", "one of four GPUs computes wrong numbers", "wrong-numbers", "wrong-numbers"),
)


def _played() -> Iterator[Fault]:
    """Faults of machines that are played at the boundary of the driver."""
    of_torch = (Need.MACHINE, Need.CUDA_TORCH)
    for rows, probe, needs, legs in (
        (_PRESENT, "gpus-present", (Need.MACHINE,), ()),
        (_STARTED, "cuda-available", (Need.MACHINE,), ("driver",)),
        (_COMPUTED, "cuda-available", of_torch, ("torch", "matmul")),
    ):
        for fault, title, pitfall, machine in rows:
            change = Change(options={"engine": "none"}, machine=machine)
            yield Fault(fault, title, probe, (pitfall,), change, needs, legs)


_ALL = (
    Fault(
        "shm-too-small",
        "/dev/shm of 64 MB, as a container has unless told otherwise",
        "buffers-fit-shm",
        ("shm-too-small",),
        Change(options={"shm": ("64m",)}),
        (Need.NAMESPACES,),
        ("sizes", "container"),
    ),
    _volume("volume-lost", "a volume that loses its data with its last container", "volume-lost"),
    _volume("disk-full", "a volume of 1 MiB", "disk-full", o="size=1m"),
    _volume("volume-not-writable", "a volume of somebody else's", "volume-not-writable", o="uid=12345,mode=755"),
    Fault(
        "gpu-missing",
        "more GPUs are expected than any machine has",
        "gpus-present",
        ("gpu-missing", "gpu-partial"),
        Change(expect={"gpus": 1000}),
    ),
    Fault(
        "engine-missing",
        "an engine is asked for that is not installed",
        "volume-persists",
        ("engine-missing",),
        Change(options={"engine": "podman"}),
        (Need.NO_PODMAN,),
    ),
    Fault(
        "no-kernel-image",
        "a GPU of capability 3.7 is expected, for which no wheel holds code any more",
        "kernel-images-fit",
        ("no-kernel-image",),
        Change(expect={"capabilities": ["3.7"]}),
        (Need.CUDA_TORCH,),
        ("images",),
    ),
    _data("unpicklable-dataset", "a lambda in a dataset", "unpicklable-dataset", "unpicklable", "spawn", "forkserver"),
    _data("hang", "a dataset that never answers", "dataloader-timeout", "hangs", "fork", "spawn"),
    _data("worker-crash", "a dataset that crashes in native code", "dataloader-worker-crashed", "crashes", "fork"),
    _data("samples-altered", "samples that arrive altered", "samples-altered", "altered", "fork", "spawn"),
    Fault(
        "nofile-too-low",
        "64 open files at most",
        "dataloader-spawn-safe",
        ("nofile-too-low",),
        Change(options={"engine": "none"}, limits={"loader_epochs": {"nofile": 64}}),
        (Need.TORCH,),
        ("fork", "descriptors"),
    ),
    Fault(
        "oom-kill",
        "a worker takes more memory than its container may have",
        "dataloader-spawn-safe",
        ("host-oom",),
        Change(inside=_loader("insatiable"), container={"memory_bytes": 1 << 30}),
        (Need.TORCH, Need.ENGINE),
        ("container",),
    ),
    Fault(
        "onnx-drift",
        "a model that decides by its data",
        "onnx-matches-torch",
        ("onnx-drift",),
        Change(args={"onnx_export": {"models": ["rehearsed_models:branching"]}}),
        (Need.ONNX,),
        ("legacy",),
    ),
    _ranks(
        "interface-missing", "an interface is named that is not here", "interface-missing", NCCL_SOCKET_IFNAME="nic9"
    ),
    _ranks(
        "master-addr-whitespace",
        "a blank in MASTER_ADDR",
        "master-addr-whitespace",
        "endpoint",
        MASTER_ADDR=" 127.0.0.1",
    ),
    _ranks(
        "rendezvous-unreachable",
        "MASTER_ADDR is no address of this network",
        "rendezvous-unreachable",
        "endpoint",
        MASTER_ADDR="192.0.2.1",
    ),
    _ranks(
        "hostname-unresolvable",
        "MASTER_ADDR is a name that nobody knows",
        "hostname-unresolvable",
        "endpoint",
        MASTER_ADDR="gpucheck.invalid",
    ),
    *_played(),
)
FAULTS: Mapping[str, Fault] = MappingProxyType({fault.id: fault for fault in _ALL})
