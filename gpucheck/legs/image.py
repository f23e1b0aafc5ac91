"""A container of a named image with all GPUs of this host, as a job would start it, and a product on each of them."""

from __future__ import annotations

from typing import Any

from gpucheck.judgement import computation, container_gpu, image_inside
from gpucheck.judgement.computation import Seen
from gpucheck.judgement.container_gpu import KIND, Engine
from gpucheck.judgement.image_config import CUDA_VISIBLE, VISIBLE
from gpucheck.judgement.initialisation import Start, cause
from gpucheck.legs.replies import value_of
from gpucheck.verdict import Finding, Unable, Unexplained

LOOK_S = 180.0
KERNEL_S = 30.0
OF_THE_ENGINE = "container-sees-gpu"
OF_THE_DRIVER = "cuda-available"


class OnGpus:
    """The image on the GPUs of this host; ``look`` is what the probe has of both: report, host, image, a way to run."""

    def __init__(self, look: Any) -> None:
        self.look, self.report = look, look.report
        self.engine = Engine.of(look.container.engine.hello, look.host)

    def judge(self, spared: list[str]) -> None:
        """Start it in the first way in which jobs ask for GPUs here; compute on all but the bare UUIDs ``spared``."""
        how = self.start()
        if how is not None:
            self.compute(how, spared)

    def ways(self) -> dict[str, dict[str, Any]]:
        """How jobs ask this engine for all GPUs, as fields of a container. What the image sets stays as it is."""
        hello = self.look.container.engine.hello
        ways: dict[str, dict[str, Any]] = {
            "--gpus all": {"gpus": {"Driver": "", "Count": -1, "Capabilities": [["gpu"]]}}
        }
        if any(name.startswith(KIND) for name in hello.devices):
            ways["CDI"] = {"gpus": {"Driver": "cdi", "DeviceIDs": [f"{KIND}=all"]}}
        if "nvidia" in hello.runtimes:
            ways["--runtime=nvidia"] = {"runtime": "nvidia", "env": {VISIBLE: "all"}}
        return ways

    def start(self) -> dict[str, Any] | None:
        """The first way that gives a container in which CUDA starts; None: the image is in the way, which was found."""
        refusals = []
        for way, how in self.ways().items():
            reply = self.look.run("gpu_in_container", {}, read_only=False, **how)
            if reply.refusal:
                refusals.append(f"{way}: {reply.refusal}")
                continue
            seen = value_of(reply, f"{way} with the image")
            self.report.saw(f"{way}: {container_gpu.words(seen)}")
            finding = self.inside(seen) or self.not_started(seen)
            if finding is None:
                return how
            self.blame(finding, finding.evidence[0])
            return None
        self.blame(container_gpu.refused(refusals[0], self.engine, (), self.look.version), "; ".join(refusals))
        return None

    def inside(self, seen: dict[str, Any]) -> Finding | None:
        """What is wrong with the GPUs that came; those that a variable of the image hides were found in it."""
        asked = [card.uuid for card in self.look.gpus if card.uuid]
        whole = CUDA_VISIBLE not in self.look.image.env and not any(card.is_split for card in self.look.gpus)
        return container_gpu.inside(seen, asked, self.engine, whole=whole)

    def not_started(self, seen: dict[str, Any]) -> Finding | None:
        """Why the driver does not start inside, where the library that was loaded says it. Raises Unable elsewhere."""
        attempt = Start.parse(seen["driver"])
        if attempt.code == 0:
            return None
        if attempt.code in image_inside.OF_A_LIBRARY and (finding := cause(self.look.host, attempt)) is not None:
            return finding
        raise Unable(f"a driver that starts: {attempt.line}", blocked_by=OF_THE_DRIVER)

    def blame(self, finding: Finding | None, said: str) -> None:
        """The image where it is the cause; raises Unable for what another probe says of the engine."""
        if finding is None or finding.pitfall not in image_inside.OF_AN_IMAGE:
            raise Unable(f"a container of the image with a GPU: {said}", blocked_by=OF_THE_ENGINE)
        self.report.take_once(finding)

    def compute(self, how: dict[str, Any], spared: list[str]) -> None:
        """A product on each GPU by the image's torch."""
        args = {"kernel": "matmul", "kernel_s": KERNEL_S, "spare": spared}
        reply = self.look.run("cuda_torch", args, read_only=False, deadline_s=LOOK_S, **how)
        seen = Seen.parse(value_of(reply, "torch of the image on the GPUs"))
        if seen.error is not None:
            raise Unexplained(f"torch of the image: {seen.error}", seen.error)
        if not seen.kernels:
            raise Unable("a GPU that torch of the image shows", blocked_by=OF_THE_ENGINE)
        for kernel in seen.kernels.values():
            card = f"GPU {kernel.ordinal} of the container"
            self.report.take_once(computation.judge(kernel, card))
            if kernel.is_right:
                self.report.saw(f"{card}: a product by torch of the image is right ({kernel.kernel_s:.2f} s)")
