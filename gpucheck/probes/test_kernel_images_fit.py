"""Torch holds code that runs on each GPU here, and on each capability that the profile expects.

Looks at: the images that the wheel says it holds, against the compute capability of each GPU by NVIDIA's rules (machine
code within a major number, arch-specific and family targets, integrated GPUs, PTX and its version against the driver);
then one of torch's own kernels is launched on that GPU. For a capability that the profile expects and no GPU here has,
the rules alone decide.
Why it matters: a wheel without code for a GPU imports, counts it, allocates on it, and fails at the first operation;
with PTX alone the first run compiles for minutes. The usual advice, a newer wheel, is wrong where newer wheels dropped
the GPU. Does not apply when: there is no NVIDIA GPU and nothing expects one, or torch is not installed.
Cost and disturbance: half a second a GPU; a few MB on it for that time. A busy GPU is left alone (unable).
If it is bad: the finding names the wheels that fit this GPU and this driver, or what to build.
"""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Any

import pytest

from gpucheck.architecture import Capability, Cuda, Fit, name_of, wheels_for
from gpucheck.judgement import computation, packages, presence, wheel
from gpucheck.judgement.computation import Kernel, Seen
from gpucheck.judgement.driver_words import NO_IMAGE
from gpucheck.judgement.initialisation import hidden_on_purpose
from gpucheck.judgement.visibility import Gpu, bare
from gpucheck.judgement.wheel import Installed
from gpucheck.process import Value
from gpucheck.verdict import Bug, NotApplicable, Unable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpucheck.facts import Facts
    from gpucheck.fixtures import Child
    from gpucheck.process import Reply
    from gpucheck.profile import Options
    from gpucheck.report import Report

pytestmark = pytest.mark.probe(
    subject="host", level="quick", essential=("images",), extra=("launch",), disturbs="none", deadline_s=60, cost_s=0.5
)
INIT_S = 15.0
TORCH_S = 45.0
KERNEL_S = 30.0
STARTED_BY = "cuda-available"


@pytest.fixture(scope="module")
def asked() -> dict[str, Reply]:
    """Torch's answers by what was asked, which all subjects share."""
    return {}


def test_kernel_images_fit(
    report: Report, host: Facts, child: Child, options: Options, asked: dict[str, Reply]
) -> None:
    """The host: capabilities that are expected, and that no GPU here has."""
    wanted = expected(host, options)
    packages.need(host, "torch")
    with report.leg("images"):
        seen = ask(child, asked, None)
        if (lacking := computation.cpu_only(seen.cuda_build, seen.version, best(wanted), seen.hip_build)) is not None:
            report.take(lacking)
            return
        installed = parse(seen)
        report.saw(str(installed))
        for capability in wanted:
            judge(report, installed, capability, None)
    report.not_run("launch", f"no GPU of {' or '.join(map(str, wanted))} here")


@pytest.mark.probe(
    subject="gpu", level="quick", essential=("images", "launch"), disturbs="idle", deadline_s=60, cost_s=1.0
)
def test_runs(
    report: Report, host: Facts, child: Child, options: Options, gpu: dict[str, Any], asked: dict[str, Reply]
) -> None:
    """One GPU: the rules, then a launch."""
    card = Gpu.parse(gpu)
    if (why := computation.in_use(gpu, options["disturb"])) is not None:
        raise Unable(f"{card}: {why}")
    if (lack := packages.without(host, "torch") or hidden_on_purpose(host, card)) is not None:
        raise lack
    if card.capability is None:
        raise Unable(f"the capability of {card}", blocked_by=presence.PROBE)
    if not starts(child, asked):
        raise Unable("a driver that starts", blocked_by=STARTED_BY)
    seen = ask(child, asked, "add", computation.spared(host, options["disturb"]))
    if seen.cuda_build is None:
        raise Unable(f"CUDA in torch: {seen.build}", blocked_by=STARTED_BY)
    installed, capability, driver = parse(seen), Capability.parse(card.capability), version_of(host)
    kernels = kernels_of(seen, card)
    if wheel.how(installed, capability, driver) is Fit.NONE and any(kernel.is_right for kernel in kernels):
        raise Bug(f"{card}: a kernel ran, though by the rules no image is for {capability}: {installed}")
    with report.leg("images"):
        judge(report, installed, capability, driver)
    with report.leg("launch"):
        launched(report, seen, card, kernels)


def expected(host: Facts, options: Options) -> list[Capability]:
    """Capabilities of the profile that no GPU here has. Raises NotApplicable when there are none."""
    here = {gpu["capability"] for gpu in host.known("nvml.gpus") or ()}
    wanted = [text for text in options.profile.expect.get("capabilities", ()) if text not in here]
    if wanted:
        return [Capability.parse(str(text)) for text in wanted]
    if not here and (absent := presence.nothing_to_ask(host)) is not None:
        raise absent
    source = options.profile.path or "no profile"
    raise NotApplicable("expect.capabilities", "no capability is expected beside those of the GPUs here", source)


def starts(child: Child, asked: dict[str, Reply]) -> bool:
    """Whether the driver starts at all: asked without torch, so that one that hangs costs little."""
    if "driver" not in asked:
        asked["driver"] = child("cuda_driver", {}, warm=False, deadline_s=INIT_S)
    answer = asked["driver"].answer
    return isinstance(answer, Value) and (answer.value["init"] or {}).get("code") == 0


def ask(child: Child, asked: dict[str, Reply], kernel: str | None, spare: Sequence[str] = ()) -> Seen:
    """What torch says, asked once. Raises Unable when it gives no answer: `cuda-available` says why."""
    key = kernel or "nothing"
    if key not in asked:
        asked[key] = child(
            "cuda_torch", {"kernel": kernel, "kernel_s": KERNEL_S, "spare": list(spare)}, deadline_s=TORCH_S
        )
    reply = asked[key]
    if not isinstance(reply.answer, Value):
        raise Unable(f"torch's answer: {reply.ended}, {reply.answer}", blocked_by=STARTED_BY)
    return Seen.parse(reply.answer.value)


def parse(seen: Seen) -> Installed:
    """The wheel. A name of an image that is none would be our bug."""
    try:
        return Installed.parse(seen.version, seen.cuda_build or "", seen.arch_flags, platform.machine())
    except ValueError as error:
        raise Bug(str(error)) from error


def judge(report: Report, installed: Installed, capability: Capability, driver: Cuda | None) -> None:
    """One capability by the rules: a finding, or evidence of how it runs."""
    finding = wheel.judge(installed, capability, driver)
    report.take(finding)
    if finding is None:
        report.saw(f"{name_of(capability)}: {installed} {wheel.how(installed, capability, driver).value}")


def kernels_of(seen: Seen, card: Gpu) -> list[Kernel]:
    """What was launched on this GPU, or on slices of it."""
    ordinals = seen.ordinals(bare(uuid) for uuid in (card.uuid, *card.slices) if uuid)
    return [seen.kernels[ordinal] for ordinal in ordinals if ordinal in seen.kernels]


def launched(report: Report, seen: Seen, card: Gpu, kernels: list[Kernel]) -> None:
    """What the launch showed. Raises Unable where it did not come to an image: that is another probe's to explain."""
    if seen.error is not None:
        raise Unable(f"a start of CUDA: {seen.error}", blocked_by=STARTED_BY)
    if not kernels:
        raise Unable(f"{card}: torch does not show it", blocked_by=STARTED_BY)
    for kernel in kernels:
        said = f"{card}: {kernel.step}: {kernel.text.strip().partition(chr(10))[0] or kernel.ended}"
        if kernel.is_right:
            report.saw(f"{card}: torch's own kernel ran in {kernel.kernel_s:.2f} s, its numbers are right")
        elif computation.status_of(kernel.text) not in NO_IMAGE:
            raise Unable(said, blocked_by=STARTED_BY)
        elif report.findings:
            report.saw(said)
        else:
            report.take(computation.judge(kernel, str(card)))


def version_of(host: Facts) -> Cuda | None:
    """The newest CUDA that the driver supports."""
    told = host.known("nvml.cuda_version")
    return Cuda.parse(told) if told else None


def best(wanted: list[Capability]) -> Any:
    """The published wheels for all these capabilities."""
    return wheels_for(*wanted, machine=platform.machine())
