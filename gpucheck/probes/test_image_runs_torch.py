"""A job in the image can run torch on this machine, and on each capability that the profile expects.

Looks at: an image that was named with --gpucheck-image and that the engine has: its platform, what its environment does
to GPUs, the names of secrets in it; then, in a container of it with its own environment and user and without its entry
point, its Python, a driver's libraries that lie in it, `import torch`, numpy, a product and a gradient on the CPU; the
GPU code in torch by NVIDIA's rules, its CUDA against the driver of this host; and, where there are GPUs, a container
that asks for all of them as `docker run --gpus all` does, with a product on each.
Why it matters: an image that builds and starts may hold a torch for the CPU, or without code for the GPUs that it is
meant for, or a driver's library that stands before the real one; each of it shows in the first hour of a job.
Does not apply when: no image is named. A named image that cannot be looked at is `unable`.
Cost and disturbance: five seconds an image, more for one that was never read; nothing is pulled. On a GPU 256 MB for a
second; a busy GPU is left alone.
If it is bad: the finding names what to change in the image, or which wheel fits.
"""

from __future__ import annotations

import platform
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from gpucheck.architecture import Capability, Cuda, name_of, wheels_for
from gpucheck.judgement import computation, image_config, image_inside, presence, wheel
from gpucheck.judgement.computation import Seen
from gpucheck.judgement.image_config import Driver
from gpucheck.judgement.visibility import Gpu
from gpucheck.judgement.wheel import Installed
from gpucheck.legs.image import LOOK_S, OnGpus
from gpucheck.legs.replies import value_of
from gpucheck.process import Failure, Value
from gpucheck.verdict import Bug, NotApplicable, Unable, Unexplained

if TYPE_CHECKING:
    from gpucheck.facts import Facts
    from gpucheck.fixtures import Child, Containers
    from gpucheck.judgement.image_config import Image
    from gpucheck.process import Reply
    from gpucheck.profile import Options
    from gpucheck.report import Report
    from gpucheck.verdict import Finding

pytestmark = pytest.mark.probe(
    subject="image",
    level="default",
    essential=("configuration", "import", "kernel-images", "driver", "gpu"),
    disturbs="idle",
    deadline_s=240,
    cost_s=6.0,
)
PAYLOAD = "torch_in_image"
PYTHONS = ("python3", "python")
READ_S = 10.0
IMPORT_S = 60.0


def test_image_runs_torch(
    report: Report, host: Facts, options: Options, child: Child, container: Containers, image: Image
) -> None:
    """One image: what it says of itself, what is in it, what that is worth here."""
    look = Look(report, host, options, container, image)
    with report.leg("configuration"):
        if not look.at_configuration(child):
            look.leave_out(f"an image for {image.platform}", "import", "kernel-images", "driver", "gpu")
            return
    with report.leg("import"):
        if not look.at_import():
            look.leave_out("torch cannot be imported", "kernel-images", "driver", "gpu")
            return
    with report.leg("kernel-images"):
        look.at_kernel_images()
    with report.leg("driver"):
        look.at_driver()
    with report.leg("gpu"):
        look.at_gpus()


class Look:
    """One image on this host: what was seen so far, and the ways to see more."""

    def __init__(self, report: Report, host: Facts, options: Options, container: Containers, image: Image) -> None:
        self.report, self.host, self.options = report, host, options
        self.container, self.image = container, image
        self.gpus = [Gpu.parse(told) for told in host.known("nvml.gpus") or ()]
        self.expected = [str(text) for text in options.profile.expect.get("capabilities", ())]
        self.version: str | None = host.known("driver.module_version") or host.known("nvml.driver_version")
        self.cuda: Cuda | None = Cuda.parse(told) if (told := host.known("nvml.cuda_version")) else None
        self.python = PYTHONS[0]
        self.told: dict[str, Any] = {}

    @property
    def wants_gpus(self) -> str | None:
        """Who wants GPUs for jobs in this image; None: nobody."""
        if self.gpus:
            return f"{len(self.gpus)} here"
        if self.expected:
            return f"the profile expects {', '.join(self.expected)}"
        return ", ".join(expectation["who"] for expectation in self.host.known("gpu.expected") or ()) or None

    def leave_out(self, why: str, *legs: str) -> None:
        """Legs that a finding makes pointless."""
        for leg in legs:
            self.report.not_run(leg, why)

    def torch(self) -> Seen:
        """What torch in the image is. Raises Unable when it could not be imported."""
        if not self.told.get("seen"):
            raise Unable("torch: it could not be imported")
        return Seen.parse(self.told["seen"])

    def run(self, payload: str, args: dict[str, Any], **how: Any) -> Reply:
        """The reply of a payload in a container of the image."""
        return self.container(payload, args, image=self.image.id, python=self.python, **how)

    # The legs

    def at_configuration(self, child: Child) -> bool:
        """What the engine says of it; whether it can be run at all."""
        label = self.container.engine.label
        self.report.saw(f"{label} has {self.image.name}: {self.image.platform}, {self.image.id[:19]}")
        for finding in image_config.environment(self.image, self.wants_gpus):
            self.report.take_once(finding)
        machine = platform.machine()
        if image_config.is_native(self.image, machine):
            return True
        paths = image_config.handlers(self.image)
        texts = value_of(child("read_files", {"paths": paths}, warm=False, deadline_s=READ_S), "the kernel's emulators")
        handler = next((text for text in texts.values() if text), None)
        finding = image_config.foreign(self.image, machine, handler, self.wants_gpus)
        self.report.take_once(finding)
        return image_config.is_emulated(self.image, handler)

    def at_import(self) -> bool:
        """Its Python as its PATH gives it, and torch in that, else in the other; whether torch can be imported."""
        tried: dict[str, str] = {}
        for self.python in PYTHONS:
            told = self.look_with(self.python)
            if told is None:
                continue
            tried[self.python] = image_inside.python_of(told, self.python)
            self.told = self.told or told
            if not image_inside.lacks_torch(told):
                self.told = told
                break
        if not tried:
            self.report.take_once(image_inside.no_python(self.image, PYTHONS))
            return False
        return self.judge_import(tuple(tried.values()))

    def look_with(self, command: str) -> dict[str, Any] | None:
        """What a Python of the image finds; None when its PATH has no such command."""
        reply = self.run(PAYLOAD, {"limit_s": IMPORT_S}, deadline_s=LOOK_S)
        if reply.refusal:
            image_inside.refuse_elsewhere(reply.refusal)
            if image_inside.lacks_program(reply.refusal):
                return None
            raise Unexplained(f"a container of the image: {reply.refusal}", reply.refusal)
        if not isinstance(reply.answer, Value):
            failure = reply.answer.trace if isinstance(reply.answer, Failure) else ""
            image_inside.refuse_old_python(f"{reply.errors}\n{failure}", command)
        told: dict[str, Any] = value_of(reply, f"{command} in the image")
        return told

    def judge_import(self, pythons: tuple[str, ...]) -> bool:
        """The files of a driver beside it, the import, and what can be done with what was imported."""
        told, kind = self.told, self.container.engine.hello.kind
        self.report.evidence += pythons
        for finding in image_inside.files(told["files"], self.image, self.version, self.wants_gpus):
            self.report.take_once(finding)
        # What tells causes apart is in the image: this host's own Python has another numpy.
        self.report.facts = lambda _: image_inside.facts_of(told, self.image, kind, self.host)
        if (fault := computation.import_fault(told["torch"])) is not None:
            fault = image_inside.behind(self.image, fault)
            self.judge_failure(replace(fault, evidence=(*fault.evidence, *pythons)))
            return False
        said = image_inside.torch_of(told)
        self.report.measure("import_s", told["torch"]["import_s"])
        self.report.saw(f"{said}: {told['file']}, imported in {told['torch']['import_s']:.1f} s")
        self.report.sum_up(f"{said}, Python {told['python']['version']}, as uid {told['uid']}")
        lacks = list(image_inside.misused(told))
        for lack in lacks:
            if not self.report.explain(lack):
                raise lack
        if not lacks:
            self.report.saw(f"a product and its gradient on the CPU are right ({told['python']['machine']})")
        return True

    def judge_failure(self, fault: Finding) -> None:
        """An import that failed: in words that name a cause, or in general."""
        torch = self.told["torch"]
        known = Unexplained(fault.evidence[0], torch["text"], *fault.evidence[1:], known=(image_inside.GENERAL,))
        general = fault.pitfall == image_inside.GENERAL and image_inside.says_why(torch)
        if not general or not self.report.explain(known):
            self.report.take_once(fault)

    def at_kernel_images(self) -> None:
        """The GPU code in torch, for each capability that is here or expected."""
        seen = self.torch()
        wanted = self.capabilities()
        if self.wants_gpus and seen.cuda_build is None:
            devices = (capability for capability, _ in wanted)
            fitting = wheels_for(*devices, machine=platform.machine(), driver=self.cuda)
            self.report.take_once(computation.cpu_only(None, seen.version, fitting, seen.hip_build))
            return
        if not wanted:
            raise self.no_capability()
        installed = self.installed(seen)
        for capability, driver in wanted:
            finding = wheel.judge(installed, capability, driver)
            self.report.take_once(finding)
            if finding is None:
                how = wheel.how(installed, capability, driver).value
                self.report.saw(f"{name_of(capability)}: {installed} {how}")

    def capabilities(self) -> list[tuple[Capability, Cuda | None]]:
        """Each capability that counts, and the driver's CUDA where the GPU is here. Raises Unable for an untold one."""
        for card in self.gpus:
            if card.capability is None:
                raise Unable(f"the capability of {card}", blocked_by=presence.PROBE)
        here = dict.fromkeys(str(card.capability) for card in self.gpus)
        beside = [text for text in dict.fromkeys(self.expected) if text not in here]
        return [(Capability.parse(text), self.cuda) for text in here] + [(Capability.parse(t), None) for t in beside]

    def no_capability(self) -> NotApplicable | Unable:
        """Why there is none to hold torch against."""
        if self.wants_gpus:
            return Unable(f"the capability of GPUs that are expected by {self.wants_gpus}", blocked_by=presence.PROBE)
        source = self.options.profile.path or "no profile"
        return NotApplicable("expect.capabilities", "no GPU is here, and no capability is expected", source)

    def installed(self, seen: Seen) -> Installed:
        """Torch of the image as a wheel."""
        try:
            return Installed.parse(seen.version, seen.cuda_build or "", seen.arch_flags, platform.machine())
        except ValueError as error:
            raise Bug(str(error)) from error

    def at_driver(self) -> None:
        """The demands of the image and the CUDA of its torch, against the driver of this host."""
        module = self.host["driver.module_version"]
        if self.version is None and self.cuda is None:
            if module.why is not None:
                raise Unable(f"whether there is a driver: {module.why}", blocked_by=presence.PROBE)
            raise NotApplicable("driver.module_version", "no NVIDIA driver is loaded here", module.source)
        for demand in image_config.unmet(self.image, self.driver):
            self.report.take_once(demand)
        seen = self.torch()
        if seen.cuda_build is None:
            raise NotApplicable("torch.cuda_build", f"{seen.build} needs no driver", self.image.name)
        if self.cuda is None:
            raise Unable("the newest CUDA that the driver supports", blocked_by=presence.PROBE)
        toolkit = Cuda.parse(seen.cuda_build)
        fitting = wheels_for(machine=platform.machine(), driver=self.cuda)
        finding = computation.too_old(self.cuda, toolkit, fitting, self.version)
        compat = image_inside.forward(self.told["files"], self.version)
        if finding is not None and compat is not None:
            self.report.saw(f"{compat} stands in for a newer driver; only data-centre GPUs take it")
            return
        self.report.take_once(finding)
        self.report.saw(f"torch's CUDA {toolkit}; the driver {self.version or ''} supports CUDA {self.cuda}")

    @property
    def driver(self) -> Driver:
        """What of this host's driver an image may make demands on."""
        capabilities = tuple(card.capability for card in self.gpus if card.capability)
        return Driver(str(self.cuda or ""), self.version or "", capabilities)

    # The GPUs of this host, in a container of the image

    def at_gpus(self) -> None:
        """A container with all GPUs, and a product on each."""
        if (absent := presence.nothing_to_ask(self.host)) is not None:
            raise absent
        if self.torch().cuda_build is None:
            raise NotApplicable("torch.cuda_build", "a torch without CUDA", self.image.name)
        disturb = self.options["disturb"]
        spared = computation.spared(self.host, disturb)
        for told, card in zip(self.host.known("nvml.gpus") or (), self.gpus, strict=True):
            if (why := computation.in_use(told, disturb)) is not None:
                self.report.not_run(f"gpu {card.index}", f"left alone: {why}")
        if self.gpus and len(spared) == len(self.gpus):
            raise Unable("a GPU that nobody uses")
        OnGpus(self).judge(spared)
