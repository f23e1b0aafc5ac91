"""A DataLoader gives every sample once, in order and unaltered, by every start method.

Looks at: two epochs of 24 image-sized samples through two worker processes by fork, spawn (the workers persist) and
forkserver (torch preloaded), each sample compared with what the parent reads itself; how many batches may be held under
the limit of open files, after the same loader was seen to fail under a limit of 64; the CPU quota against the CPUs that
torch counts; on CUDA builds of torch, that a worker forked after CUDA was asked for is refused.
Why it matters: a loader that works in a notebook dies, hangs or starves under another start method, in a container, or
with a lower limit, and then usually says only that a worker exited unexpectedly.
Does not apply when: torch is not installed.
Cost and disturbance: 6 s on two cores, most of it two imports of torch; a few MB of /dev/shm; disturbs nobody.
If it is bad: each finding names its cause; the worker's own last words are in the evidence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from gpucheck.judgement import loader_faults, packages
from gpucheck.legs.loader import EPOCHS, WORKERS, judge, stopped, value
from gpucheck.process import Value
from gpucheck.verdict import NotApplicable, Unable, bad

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpucheck.facts import Facts
    from gpucheck.fixtures import Child, Containers
    from gpucheck.process import Reply
    from gpucheck.report import Report

pytestmark = pytest.mark.probe(
    subject="host",
    essential=("fork", "spawn"),
    extra=("forkserver", "descriptors", "fork-after-cuda", "container"),
    deadline_s=150,
    cost_s=8,
)

METHODS: Mapping[str, Mapping[str, Any]] = {
    "fork": {},
    "spawn": {"persistent": True, "timeout_s": 60},
    "forkserver": {"persistent": True, "timeout_s": 60},
}
# What one epoch's predictions cost a job that collects them: 64 batches of 4 tensors, a descriptor each.
HELD = {"dataset": "loader_datasets:many_small", "batch": 2, "epochs": 1, "hold": True}
FEW_DESCRIPTORS = 64


def test_dataloader_spawn_safe(report: Report, host: Facts, child: Child, container: Containers) -> None:
    """Read by every start method; then under few descriptors; then after CUDA; then in a container."""
    packages.need(host, "torch")
    for method, how in METHODS.items():
        with report.leg(method):
            args = {"start_methods": [method], "workers": WORKERS, "epochs": EPOCHS, **how}
            answer = value(child("loader_epochs", args), method)
            judge(report, method, answer["legs"][method], method)
            if method == "fork":
                weigh_cpu(report, host, answer["affinity"])
    with report.leg("descriptors"):
        hold_batches(report, child)
    with report.leg("fork-after-cuda"):
        fork_after_cuda(report, host, child)
    with report.leg("container"):
        in_container(report, container)


def weigh_cpu(report: Report, host: Facts, affinity: int) -> None:
    """torch suggests as many workers as CPUs in the affinity mask, and sees no quota."""
    quota = host.known("cpu.quota")
    if quota is not None and quota < affinity:
        line = f"torch counts {affinity} CPUs, the quota grants {quota:g} ({host['cpu.quota'].source})"
        report.degraded("workers-exceed-cpu", line, cpus=f"{quota:g}", workers=max(1, int(quota)))
    report.saw(f"CPUs: {affinity} by affinity, quota {'none' if quota is None else format(quota, 'g')}")


def hold_batches(report: Report, child: Child) -> None:
    """Hold an epoch's batches under the limit of this host, after seeing that a small limit is felt."""
    args = {"start_methods": ["fork"], **HELD}
    few = value(child("loader_epochs", args, limits={"nofile": FEW_DESCRIPTORS}), "few descriptors")
    felt = few["legs"]["fork"].get("fault")
    if not felt or loader_faults.Fault.parse(felt).pitfall() != "nofile-too-low":
        raise Unable(f"could not test: {FEW_DESCRIPTORS} open files were enough (sharing by {few['sharing']})")
    leg = value(child("loader_epochs", args), "held batches")["legs"]["fork"]
    used = leg["descriptors"]
    report.limit("nofile", used["soft"], "getrlimit in a child")
    if "fault" in leg:
        fault = loader_faults.Fault.parse(leg["fault"])
        if fault.pitfall() == "nofile-too-low":
            lines = (f"limit {used['soft']} (hard {used['hard']})", *fault.evidence())
            report.take(bad("nofile-too-low", *lines, nofile=used["soft"]), label="descriptors")
            return
        stopped(report, "descriptors", fault)
        return
    report.measure("descriptors_open", used["open"])
    held = f"{used['held_batches']} batches held with {used['open']} descriptors of {used['soft']}"
    report.saw(f"descriptors: {held}; under a limit of {FEW_DESCRIPTORS} the same loader fails, as it must")


def fork_after_cuda(report: Report, host: Facts, child: Child) -> None:
    """A worker forked by a parent that has asked for CUDA must be told so; hanging or dying of it is the defect."""
    if host.known("torch.cuda_build") == "none":
        raise NotApplicable("torch.cuda_build", "a CPU build of torch", host["torch.cuda_build"].source)
    args = {"start_methods": ["fork"], "dataset": "loader_datasets:after_cuda", "epochs": 1}
    answer = value(child("loader_epochs", args), "fork after CUDA")
    if answer["cuda_build"] is None:
        raise NotApplicable("torch.cuda_build", "a CPU build of torch", "torch.version.cuda")
    reported = answer["legs"]["fork"].get("fault")
    fault = loader_faults.Fault.parse(reported) if reported else None
    pitfall = fault.pitfall() if fault else None
    if fault and pitfall not in (None, "fork-after-cuda"):
        report.take(bad("fork-after-cuda", *fault.evidence()), label="fork-after-cuda")
    elif pitfall:
        report.saw("fork-after-cuda: refused in the worker with torch's own words, as it must be")
    else:
        report.saw("fork-after-cuda: asking for CUDA did not initialise it here, so workers are not affected")


def in_container(report: Report, container: Containers) -> None:
    """fork and spawn in one container of the mirror image, with the engine's own /dev/shm."""
    methods = ("fork", "spawn")
    args = {"start_methods": methods, "workers": WORKERS, "epochs": EPOCHS, "persistent": True, "timeout_s": 60}
    reply = container("loader_epochs", args)
    if reply.ended.kind == "oom":
        report.take(bad("host-oom", f"the engine says OOMKilled: {reply.ended}", *last_words(reply)), label="container")
        return
    answer = value(reply, "in a container")
    for method in methods:
        judge(report, f"container {method}", answer["legs"][method], method)


def last_words(reply: Reply) -> tuple[str, ...]:
    """What the loader said of a worker that was killed, where it lived to say it."""
    legs = reply.answer.value["legs"].values() if isinstance(reply.answer, Value) else ()
    faults = [loader_faults.Fault.parse(leg["fault"]) for leg in legs if "fault" in leg]
    return tuple(dict.fromkeys(line for fault in faults for line in fault.evidence()))
