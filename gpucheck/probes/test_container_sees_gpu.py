"""A container gets exactly the GPUs that it asks for, and can use them.

Looks at: containers that ask for GPUs in each way that this engine has (--gpus, CDI, the runtime nvidia), with an /etc
that may be written as the toolkit's hook needs it; inside, NVIDIA's nodes and whether they open, the UUIDs that the
driver and NVML show, the capabilities compute and utility, nvidia-smi where there is one. Then bare device nodes
without any toolkit. Each GPU is asked for by its UUID, and must be the one that comes.
Why it matters: an engine that does not know the toolkit refuses in words that sound like a missing driver; podman's
docker-compatible socket accepts the request and starts without a GPU; a CDI file outlives the driver that it names.
Does not apply when: there is no NVIDIA GPU and nothing expects one, or no container engine is installed.
Cost and disturbance: a second a container; computes nothing and takes no memory of a GPU. What it cannot find is a
mismatch between an image's libraries and the driver: the container has the host's own libraries.
If it is bad: the finding names what is missing and how to install or configure it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from gpucheck.judgement import container_gpu, presence
from gpucheck.judgement.container_gpu import KIND, Engine
from gpucheck.judgement.visibility import Gpu
from gpucheck.legs.replies import value_of
from gpucheck.verdict import NotApplicable, Unable, Unexplained, Verdict

if TYPE_CHECKING:
    from gpucheck.facts import Facts
    from gpucheck.fixtures import Child, Containers
    from gpucheck.judgement.container_gpu import Cdi
    from gpucheck.report import Report
    from gpucheck.verdict import Finding

pytestmark = pytest.mark.probe(
    subject="engine",
    level="default",
    essential=("toolkit",),
    extra=("device-nodes",),
    disturbs="none",
    deadline_s=180,
    cost_s=4.0,
)
PAYLOAD = "gpu_in_container"
OURS = "container-sees-gpu"
READ_S = 10.0
CAPABILITIES = ["gpu", "compute", "utility"]
# Explicit: an image that names none gets "utility" alone from older toolkits.
ENVIRONMENT = {"NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}


@pytest.fixture(scope="module")
def ways() -> dict[str, Any]:
    """The ways of asking that worked for all GPUs, for those that ask for one."""
    return {}


def test_container_sees_gpu(
    report: Report, host: Facts, child: Child, container: Containers, ways: dict[str, Any]
) -> None:
    """The engine: all GPUs in one container, in each way in which it can be asked for them."""
    if (absent := presence.nothing_to_ask(host)) is not None:
        raise absent
    asking = Asking(report, host, child, container)
    with report.leg("toolkit"):
        ways["found"] = asking.by_toolkit()
    with report.leg("device-nodes"):
        asking.by_nodes()


@pytest.mark.probe(subject="gpu", essential=("one-gpu",), disturbs="none", deadline_s=90, cost_s=1.5)
def test_sees_this_one(
    report: Report, host: Facts, child: Child, container: Containers, gpu: dict[str, Any], ways: dict[str, Any]
) -> None:
    """One GPU: asked for by its UUID, it comes, and no other."""
    card = Gpu.parse(gpu)
    asking = Asking(report, host, child, container)
    if not ways.get("found"):
        raise Unable("a way in which this engine hands out GPUs", blocked_by=OURS)
    if card.uuid is None or card.is_split:
        why = "split by MIG" if card.is_split else card.trouble
        raise Unable(f"a whole GPU that can be asked for by UUID: {card}: {why}")
    with report.leg("one-gpu"):
        for way in ways["found"]:
            asking.one(way, card)


class Asking:
    """The ways of asking this engine for GPUs, and what came of each."""

    def __init__(self, report: Report, host: Facts, child: Child, container: Containers) -> None:
        self.report, self.host, self.child, self.container = report, host, child, container
        hello = container.engine.hello
        self.label: str = container.engine.label
        self.engine = Engine.of(hello, host)
        self.discovered = tuple(name for name in hello.devices if name.startswith(KIND))
        self.gpus = [Gpu.parse(told) for told in host.known("nvml.gpus") or ()]
        self.driver = host.known("driver.module_version")
        self._cdi: list[Cdi] | None = None

    @property
    def cdi(self) -> list[Cdi]:
        """The CDI files of this host that describe NVIDIA's GPUs."""
        if self._cdi is None:
            paths = self.host.known("engine.cdi_files") or []
            reply = self.child("read_files", {"paths": paths}, warm=False, deadline_s=READ_S) if paths else None
            texts = value_of(reply, "the CDI files") if reply else {}
            self._cdi = [container_gpu.read_cdi(path, text) for path, text in texts.items() if text]
        return self._cdi

    @property
    def is_whole(self) -> bool:
        """Whether CUDA shows all GPUs: of MIG's slices it shows one."""
        return not any(gpu.is_split for gpu in self.gpus)

    def request(self, way: str, names: tuple[str, ...] | None) -> dict[str, Any] | None:
        """How ``way`` asks for GPUs (by UUID; None: for all), as fields of a container. None: one has no name."""
        if way == "--gpus":
            which = {"Count": -1} if names is None else {"DeviceIDs": list(names)}
            return {"gpus": {"Driver": "", **which, "Capabilities": [CAPABILITIES]}, "env": ENVIRONMENT}
        if way == "--runtime=nvidia":
            env = {**ENVIRONMENT, "NVIDIA_VISIBLE_DEVICES": "all" if names is None else ",".join(names)}
            return {"runtime": "nvidia", "env": env}
        ids = [f"{KIND}=all"] if names is None else [self.cdi_name(uuid) for uuid in names]
        return None if None in ids else {"gpus": {"Driver": "cdi", "DeviceIDs": ids}, "env": ENVIRONMENT}

    def cdi_name(self, uuid: str) -> str | None:
        """The CDI name of a GPU, by the host's files or by what the engine discovered."""
        index = next(gpu.index for gpu in self.gpus if gpu.uuid == uuid)
        named = container_gpu.cdi_name(self.cdi, uuid, index)
        return named or next((name for name in self.discovered if name == f"{KIND}={uuid}"), None)

    def ways(self) -> list[str]:
        """The ways that this engine says it has; --gpus needs no declaration."""
        ways = ["--gpus"]
        if self.discovered or (self.cdi and self.engine.cdi_folders):
            ways.append("CDI")
        if "nvidia" in self.engine.runtimes:
            ways.append("--runtime=nvidia")
        return ways

    def attempt(self, way: str, names: tuple[str, ...] | None) -> Finding | None:
        """One container; what is wrong with it, or None. Raises Unable when nobody can say."""
        how = self.request(way, names)
        if how is None:
            raise Unable(f"{way}: a name for {', '.join(names or ())} in the CDI files")
        reply = self.container(PAYLOAD, {}, read_only=False, **how)
        if reply.refusal:
            finding = container_gpu.refused(reply.refusal, self.engine, self.cdi, self.driver)
            if finding is None:
                raise Unexplained(f"{self.label}, {way}: {reply.refusal}", reply.refusal)
            return finding
        seen = value_of(reply, f"{self.label}, {way}")
        self.report.saw(f"{self.label}, {way}, {', '.join(names or ('all GPUs',))}: {container_gpu.words(seen)}")
        asked = names if names is not None else tuple(gpu.uuid for gpu in self.gpus if gpu.uuid)
        finding = container_gpu.inside(seen, asked, self.engine, whole=self.is_whole)
        if finding is None and (why := container_gpu.trouble(seen)) is not None:
            raise Unable(f"{self.label}, {way}: {why}", blocked_by="cuda-available")
        return finding

    # The legs

    def by_toolkit(self) -> list[str]:
        """All GPUs by each way; the ways that work. A way that fails is bad where no other works, else degraded."""
        tried = {way: self.attempt(way, None) for way in self.ways()}
        found = [way for way, finding in tried.items() if finding is None]
        if not found and self.cdi and "CDI" not in tried:
            tried["CDI"] = self.attempt("CDI", None)  # a file that waits for an engine that would read it
            found = [way for way, finding in tried.items() if finding is None]
        failed = {way: finding for way, finding in tried.items() if finding is not None}
        if found:
            for way, finding in failed.items():
                self.report.take(finding, label=way, weight=Verdict.DEGRADED)
        else:
            self.nothing_works(failed)
        self.declared(tried)
        return found

    def nothing_works(self, failed: dict[str, Finding]) -> None:
        """One finding, the first way's; what stopped the others is beside it."""
        lines = [f"{way}: {line}" for way, finding in failed.items() for line in finding.evidence]
        first = next(iter(failed.values()))
        # Podman's own command line takes CDI names; only its docker-compatible socket does not.
        usable = self.engine.kind == "podman" and self.cdi and container_gpu.of_cdi(self.cdi, self.driver) is None
        self.report.take(replace(first, evidence=tuple(lines)), weight=Verdict.DEGRADED if usable else None)

    def declared(self, tried: dict[str, Finding | None]) -> None:
        """What is declared in files and cannot work: a CDI file of another driver, a runtime that is not loaded."""
        stale = container_gpu.of_cdi(self.cdi, self.driver)
        if stale is not None and (self.engine.kind == "podman" or tried.get("CDI", stale) is None):
            self.report.take(stale, weight=Verdict.DEGRADED)
        here = self.engine.kind == "docker" and self.host.known("engine.nvidia_runtime")
        if here and "nvidia" not in self.engine.runtimes:
            self.report.degraded("runtime-undeclared", f"daemon.json declares it, and {self.label} does not know it")
        for way in ("CDI", "--runtime=nvidia"):
            if way not in tried:
                self.report.not_run(way, f"{self.label} declares none")

    def by_nodes(self) -> None:
        """The nodes of every GPU and no toolkit: what a device plugin or --device does."""
        nodes = self.host.known("gpu.nodes") or []
        if not nodes:
            raise NotApplicable("gpu.nodes", "no /dev/nvidia<N> on this host", self.host["gpu.nodes"].source)
        control = self.host.known("gpu.control_nodes") or []
        reply = self.container(PAYLOAD, {}, devices=(*nodes, *control))
        seen = value_of(reply, f"{self.label}, --device")
        self.report.saw(f"{self.label}, device nodes alone: {container_gpu.words(seen)}")
        asked = tuple(gpu.uuid for gpu in self.gpus if gpu.uuid)
        finding = container_gpu.inside(seen, asked, self.engine, by_request=False, whole=self.is_whole)
        self.report.take(finding, label="device nodes alone")

    def one(self, way: str, card: Gpu) -> None:
        """Exactly this GPU, by its UUID."""
        self.report.take(self.attempt(way, (str(card.uuid),)), label=f"{way}, {card}")
