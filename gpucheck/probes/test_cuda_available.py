"""Torch computes right numbers on every GPU that is not hidden on purpose.

Looks at: the driver through libcuda.so.1 alone (cuInit, its version, its devices), then torch: what it was built for,
how many GPUs it sees and which, by UUID; both held against NVML once what is meant to hide devices
(CUDA_VISIBLE_DEVICES, MIG) is accounted for. Then a float32 matrix product on each GPU, held against float64 on the
CPU. Why it matters: one message ("unknown error", "no CUDA-capable device", 802, 803, 999) has many causes, and
`torch.cuda.is_available()` can say True on a machine where no operation works; it is never believed here.
Does not apply when: there is no NVIDIA GPU and nothing expects one, the GPUs were handed to nobody here, or torch is
not installed (where no Python was named to be judged).
Cost and disturbance: a second or two; at most 256 MB on each GPU for that time. A GPU with somebody's process on it, in
prohibited mode, or short of memory is left alone (unable) unless --gpucheck-disturb=any.
If it is bad: the finding names the cause that the facts of this machine confirm, not only the message.
"""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Any

import pytest

from gpucheck.architecture import Capability, Cuda, wheels_for
from gpucheck.judgement import computation, initialisation, packages, presence
from gpucheck.judgement.computation import Seen
from gpucheck.judgement.driver_words import NO_IMAGE
from gpucheck.judgement.initialisation import Start, gpus_of, hidden_by_environment, hidden_on_purpose, view_of
from gpucheck.judgement.visibility import VARIABLE, Gpu, bare, missing
from gpucheck.legs.replies import import_of_torch, value_of
from gpucheck.process import Failure, Value
from gpucheck.verdict import NotApplicable, Unable, Unexplained, bad

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpucheck.architecture import Wheel
    from gpucheck.facts import Facts
    from gpucheck.fixtures import Child
    from gpucheck.process import Reply
    from gpucheck.profile import Options
    from gpucheck.report import Report
    from gpucheck.verdict import Finding

pytestmark = pytest.mark.probe(
    subject="host", level="quick", essential=("driver", "torch"), disturbs="none", deadline_s=120, cost_s=1.5
)
# Eight GPUs without persistence mode take ten seconds and more to wake.
INIT_S = 30.0
ROOM_S = 1.0
KERNEL_S = 30.0
TORCH_S = 100.0
OURS = "cuda-available"
IMAGES = "kernel-images-fit"
IMPORTS = "torch-imports"


@pytest.fixture(scope="module")
def asked() -> dict[str, Any]:
    """Torch's answer, which the host and each of its GPUs share."""
    return {}


def test_cuda_available(report: Report, host: Facts, child: Child, options: Options, asked: dict[str, Any]) -> None:
    """The host: CUDA starts, and driver and torch see each GPU that nothing hides."""
    if (absent := presence.nothing_to_ask(host)) is not None:
        raise absent
    with report.leg("driver"):
        start = asked["start"] = ask_driver(child)
        report.saw(start.line)
        judge_driver(report, host, start)
    if report.findings or report.lacking:
        report.not_run("torch", "CUDA does not start")
        return
    if (lack := no_torch(host, options)) is not None:
        if isinstance(lack, Unable):
            report.bad("torch-missing", *lack.lacking)
        raise lack
    with report.leg("torch"):
        seen = read(report, child, options, ask_torch(host, child, options, asked))
        if seen is not None:
            report.saw(seen.line)
            judge_torch(report, host, start, seen)


@pytest.mark.probe(subject="gpu", level="quick", essential=("matmul",), disturbs="idle", deadline_s=120, cost_s=1.5)
def test_computes(
    report: Report, host: Facts, child: Child, options: Options, gpu: dict[str, Any], asked: dict[str, Any]
) -> None:
    """One GPU: a product of matrices has the right numbers."""
    card = Gpu.parse(gpu)
    if (why := computation.in_use(gpu, options["disturb"])) is not None:
        raise Unable(f"{card}: {why}")
    if (lack := no_torch(host, options) or hidden_on_purpose(host, card)) is not None:
        raise lack
    start = asked["start"] = asked.get("start") or ask_driver(child)
    if start.code != 0:
        raise Unable(start.line, blocked_by=OURS)
    with report.leg("matmul"):
        for one in kernels_of(card, ask_torch(host, child, options, asked)):
            if computation.status_of(one.text) in NO_IMAGE:
                raise Unable(f"{card}: {one.text.partition(chr(10))[0]}", blocked_by=IMAGES)
            report.take(computation.judge(one, str(card)))
            if one.is_right:
                told_right(report, one, card)


def ask_driver(child: Child) -> Start:
    """Start CUDA through libcuda alone, in a fresh process: the environment is read once."""
    reply = child("cuda_driver", {}, warm=False, deadline_s=INIT_S)
    if reply.hung and reply.duration_s < INIT_S - ROOM_S:
        raise Unable(f"time: cuInit had not returned after {reply.duration_s:.0f} s, when the budget ended")
    if reply.hung:
        return Start(None, hung=True)
    return Start.parse(value_of(reply, "libcuda.so.1"))


def judge_driver(report: Report, host: Facts, start: Start) -> None:
    """A driver that does not start, or does not show what it should."""
    if start.code == 0:
        judge_visible(report, host, start)
        return
    finding = initialisation.cause(host, start)
    if finding is None:
        # The driver's status alone decides nothing: what else it may mean must be confirmed by a fact.
        raise Unexplained(start.line, start.line, by_fact=True)
    if presence.told_there(host, finding):
        raise Unable(*finding.evidence, blocked_by=presence.PROBE)
    report.take(finding)


def judge_visible(report: Report, host: Facts, start: Start) -> None:
    """Hold the driver's devices against NVML's, less those that are hidden on purpose. Raises Unable without NVML."""
    if host.known("nvml.gpus") is None and not any(gpu.get("integrated") for gpu in host.known("gpu.pci") or ()):
        raise Unable(f"the list of GPUs: NVML says {host.known('nvml.status')}, {host['nvml.gpus'].why}")
    view = view_of(host)
    if view.fault:
        report.take(hidden_by_environment(host.known(f"env.{VARIABLE}"), view, start.line))
        return
    for hidden in view.hidden:
        report.saw(f"hidden on purpose: {hidden.gpu}, by {hidden.by}")
    for gpu in (gpu for gpu in view.shown if gpu.is_split):
        report.saw(f"{gpu}: split by MIG into {len(gpu.slices)}; CUDA shows one slice to a process")
    whole = [gpu for gpu in view.shown if not gpu.is_split]
    report.take(not_shown(whole, (device["uuid"] for device in start.devices), "the driver"))


def not_shown(expected: Iterable[Gpu], shown: Iterable[str | None], who: str) -> Finding | None:
    """GPUs that nothing hides and that ``who`` does not show all the same."""
    lost = missing(expected, shown)
    return (
        bad("gpu-hidden-device", *(f"{gpu}: {who} does not show it, and nothing hides it" for gpu in lost))
        if lost
        else None
    )


def no_torch(host: Facts, options: Options) -> NotApplicable | Unable | None:
    """Why there is no torch to ask: not applicable, but for a Python that was named to be judged."""
    absent = packages.without(host, "torch")
    if absent is None or options["python"] is None:
        return absent
    return Unable(f"{host.known('python.executable')}: torch is not installed", blocked_by=OURS)


def ask_torch(host: Facts, child: Child, options: Options, asked: dict[str, Any]) -> Reply:
    """Torch's answer for every GPU that may be touched. Asked once for the host and all its GPUs."""
    if "reply" not in asked:
        spare = computation.spared(host, options["disturb"])
        asked["reply"] = child(
            "cuda_torch", {"kernel": "matmul", "kernel_s": KERNEL_S, "spare": spare}, deadline_s=TORCH_S
        )
    reply: Reply = asked["reply"]
    return reply


def read(report: Report, child: Child, options: Options, reply: Reply) -> Seen | None:
    """What torch saw; None when its reply is a finding instead."""
    match reply.answer:
        case Value(told):
            return Seen.parse(told)
        case Failure(type="TimeoutError", text=text):
            report.take(bad("cuda-init-hangs", text))
        case Failure(type="ChildProcessError", text=text):
            report.take(bad("native-crash", text))
        case _:
            report.take(import_cause(child, options, reply))
    return None


def import_cause(child: Child, options: Options, reply: Reply) -> Finding:
    """Why torch gave no answer: its import, watched. Raises Bug or Unable when the import is not to blame.

    Above the level quick that is a probe of its own, whose finding is not told twice.
    """
    finding = computation.import_fault(import_of_torch(child))
    if finding is None:
        value_of(reply, "torch")
        raise Unable(f"torch: {reply.ended}, though it can be imported")
    if options["level"] != "quick":
        raise Unable(*finding.evidence, blocked_by=IMPORTS)
    return finding


def judge_torch(report: Report, host: Facts, start: Start, seen: Seen) -> None:
    """A torch without CUDA, with a newer CUDA than the driver, or that sees less than the driver shows."""
    version, driver = host.known("driver.module_version"), start.version
    wheels = fitting(start, driver)
    report.take(computation.cpu_only(seen.cuda_build, seen.version, wheels, seen.hip_build))
    if seen.cuda_build and driver:
        report.take(computation.too_old(driver, Cuda.parse(seen.cuda_build), wheels, version))
    if report.findings:
        return
    if seen.error is not None:
        finding = computation.start_cause(host, start, seen.error)
        if finding is None:
            raise Unexplained(f"the driver starts, torch does not: {seen.error}", seen.error)
        report.take(finding)
        return
    shown = [Gpu(device["ordinal"], device["uuid"], device["name"] or "") for device in start.devices]
    report.take(not_shown(shown, (device["uuid"] for device in seen.devices), "torch"))
    judge_unlisted(report, host, seen)
    right = sum(kernel.is_right for kernel in seen.kernels.values())
    report.saw(f"{right} of {len(seen.devices)} GPUs computed right")
    if not seen.kernels:
        raise Unable("a GPU that may be touched: each is in use, or must not compute")
    if not right:
        without = all(computation.status_of(kernel.text) in NO_IMAGE for kernel in seen.kernels.values())
        raise Unable("a GPU that computes: each has a row of its own", blocked_by=IMAGES if without else OURS)


def judge_unlisted(report: Report, host: Facts, seen: Seen) -> None:
    """Devices without a row of their own, because NVML does not list them (Jetson), are judged with the host."""
    listed = {bare(uuid) for gpu in gpus_of(host) for uuid in (gpu.uuid, *gpu.slices) if uuid}
    for device in seen.devices:
        if device["uuid"] not in listed and device["ordinal"] in seen.kernels:
            report.take(computation.judge(seen.kernels[device["ordinal"]], device["name"]))


def fitting(start: Start, driver: Cuda | None) -> tuple[Wheel, ...]:
    """The published wheels for all GPUs under this driver."""
    told = dict.fromkeys(device["capability"] for device in start.devices if device["capability"])
    return wheels_for(*map(Capability.parse, told), machine=platform.machine(), driver=driver)


def kernels_of(card: Gpu, reply: Reply) -> tuple[computation.Kernel, ...]:
    """What was computed on this GPU, or on slices of it."""
    seen = Seen.parse(reply.answer.value) if isinstance(reply.answer, Value) else None
    if seen is None or seen.error is not None:
        raise Unable("CUDA does not start in torch", blocked_by=OURS)
    ordinals = seen.ordinals(bare(uuid) for uuid in (card.uuid, *card.slices) if uuid)
    found = tuple(seen.kernels[ordinal] for ordinal in ordinals if ordinal in seen.kernels)
    if not found:
        raise Unable(f"{card}: torch does not show it", blocked_by=OURS)
    return found


def told_right(report: Report, kernel: computation.Kernel, card: Gpu) -> None:
    """Evidence and measures of a GPU that computed right."""
    report.saw(f"{card}: a product of 512 x 512 matrices, {kernel.worst:.2g} of what float32 may be off by")
    for name, value in (("kernel_s", kernel.kernel_s), ("error_share", kernel.worst)):
        if value is not None:
            report.measure(name, value)
    report.limit("error_share", 1, "n u |A||B|, Higham, Accuracy and Stability of Numerical Algorithms, 3.1")
