"""What torch makes of the GPUs: how many it sees and which, what code it holds, and whether a kernel computes right.

Arguments: ``kernel``, ``matmul``, ``add`` or null to compute nothing; ``spare``, UUIDs (as below) of devices to leave
alone; ``kernel_s``, seconds that one device may take. The answer holds

    version, cuda_build, hip_build   of torch; null where it has none
    arch_flags                       the images in the wheel as it names them, ``["sm_80", ...]``; null without CUDA
    is_available                     what ``torch.cuda.is_available()`` claims: evidence, never believed
    error                            {"type", "text"} of the initialisation; null when it worked
    warnings                         what torch warned of meanwhile
    devices                          [{"ordinal", "uuid", "name", "capability", "memory_bytes"}] as torch lists them;
                                     ``uuid`` without its kind in front, null before torch 2.4
    kernels                          one entry a device that was loaded: {"ordinal", "ended": "value" | "failure" |
                                     "busy" | "signal" | "hang", "step", "type", "text", "signal", "kernel_s", "worst",
                                     "free_bytes"}

``worst`` is the largest error of the product as a share of what float32 may be off by (see :func:`share_of_bound`): up
to 1 is right, null is not a number. Each device computes in a process of its own, so that one that hangs or dies is
named and the others still answer. This process never initialises CUDA. At most 256 MB are taken on a device, the
context included as far as the driver allows. Needs torch; numpy is not used.
"""

from __future__ import annotations

import functools
import json
import math
import os
import select
import signal
import time
import warnings
from typing import Any, Callable, Sequence

import envelope
import torch

SIDE = 512
NEEDED_BYTES = 256 << 20
CENSUS_S = 60.0
KERNEL_S = 60.0
PIPE_BYTES = 1 << 16
NO_CUDA: dict[str, Any] = {
    "arch_flags": None,
    "is_available": None,
    "error": None,
    "warnings": [],
    "devices": [],
    "kernels": [],
}


def main(args: dict[str, Any]) -> dict[str, Any]:
    """Count in one process, compute in one a device, and put the answers together."""
    wheel = {
        "version": torch.__version__,
        "cuda_build": torch.version.cuda,
        "hip_build": getattr(torch.version, "hip", None),
    }
    if torch.version.cuda is None:
        return {**wheel, **NO_CUDA}
    envelope.progress("torch counts the GPUs")
    counted = in_processes([census], CENSUS_S)[0]
    if counted["ended"] != "value":
        # The probe tells a hang from a crash by the type.
        kind = {"hang": TimeoutError, "signal": ChildProcessError}.get(counted["ended"], RuntimeError)
        raise kind(f"counting the GPUs: {counted.get('text') or counted.get('signal') or counted['ended']}")
    seen = counted["value"]
    return {**wheel, **seen, "kernels": kernels(args, loadable(seen["devices"], args.get("spare", [])))}


def loadable(devices: list[dict[str, Any]], spared: list[str]) -> list[int]:
    """The ordinals of those that may be loaded; one without a UUID may be any of those to be spared."""
    return [one["ordinal"] for one in devices if one["uuid"] not in spared and (one["uuid"] or not spared)]


def arch_flags() -> list[str] | None:
    """The images of the wheel. The ``_C`` call works without a driver, where ``get_arch_list()`` was empty up to 2.9.

    It also forbids CUDA to every process that is forked later, as initialising it would.
    """
    ask = getattr(torch._C, "_cuda_getArchFlags", None)  # noqa: SLF001 - no public call does
    return None if ask is None else ask().split()


def census() -> dict[str, Any]:
    """What torch sees. Initialises CUDA, so that it runs in a process of its own."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        error, found = None, []
        try:
            torch.cuda.init()
            found = [describe(ordinal) for ordinal in range(torch.cuda.device_count())]
        except Exception as caught:
            error = {"type": type(caught).__name__, "text": str(caught)[:4000]}
        available = torch.cuda.is_available()
    texts = list(dict.fromkeys(str(warning.message)[:2000] for warning in heard))
    claims = {"arch_flags": arch_flags(), "is_available": available, "warnings": texts}
    return {**claims, "error": error, "devices": found}


def describe(ordinal: int) -> dict[str, Any]:
    """One device as torch lists it; the UUID without ``GPU-``, null before torch 2.4."""
    facts = torch.cuda.get_device_properties(ordinal)
    uuid = getattr(facts, "uuid", None)
    return {
        "ordinal": ordinal,
        "uuid": None if uuid is None else str(uuid),
        "name": facts.name,
        "capability": f"{facts.major}.{facts.minor}",
        "memory_bytes": facts.total_memory,
    }


def kernels(args: dict[str, Any], ordinals: list[int]) -> list[dict[str, Any]]:
    """Compute on devices, all at once, a process each."""
    kernel = {"matmul": matmul, "add": add, None: None}[args.get("kernel")]
    if kernel is None or not ordinals:
        return []
    envelope.progress(f"a kernel on {len(ordinals)} GPU(s)")
    jobs = [functools.partial(compute, kernel, ordinal) for ordinal in ordinals]
    ended = in_processes(jobs, float(args.get("kernel_s", KERNEL_S)))
    return [flat(ordinal, answer) for ordinal, answer in zip(ordinals, ended)]


def flat(ordinal: int, answer: dict[str, Any]) -> dict[str, Any]:
    """One device's entry: what its process computed, or how it ended."""
    value = answer.pop("value", {})
    return {"ordinal": ordinal, **answer, **value}


class Step:
    """Where a computation is, so that a failure, a crash and a hang say what did not come back."""

    name = ""
    writer = -1

    @classmethod
    def to(cls, name: str) -> None:
        """The next step; told to the parent before it begins."""
        cls.name = name
        os.write(cls.writer, json.dumps({"step": name}).encode() + b"\n")


def compute(kernel: Callable[[torch.device], float], ordinal: int) -> dict[str, Any]:
    """Run ``kernel`` on one device: the error as a share of what is allowed, or the step that failed and how."""
    begun = time.monotonic()
    device = torch.device("cuda", ordinal)
    try:
        Step.to("initialise")
        torch.cuda.set_device(device)
        free_bytes = torch.cuda.mem_get_info(device)[0]
        if free_bytes < NEEDED_BYTES:
            return {"ended": "busy", "free_bytes": free_bytes}
        worst = kernel(device)
    except Exception as error:
        return {"ended": "failure", "type": type(error).__name__, "text": str(error)[:4000]}
    finite = worst if math.isfinite(worst) else None
    return {"ended": "value", "worst": finite, "free_bytes": free_bytes, "kernel_s": time.monotonic() - begun}


def add(device: torch.device) -> float:
    """Torch's own elementwise kernel: 0 when each number is right, else infinity."""
    Step.to("copy to the device")
    there = torch.arange(SIDE, dtype=torch.float32).to(device)
    Step.to("launch a kernel")
    result = there + 1
    torch.cuda.synchronize(device)
    Step.to("copy back")
    expected = torch.arange(SIDE, dtype=torch.float32) + 1
    return 0.0 if torch.equal(result.cpu(), expected) else float("inf")


def matmul(device: torch.device) -> float:
    """A float32 product against float64 on the CPU, after an elementwise kernel: the larger share of the bound."""
    simple = add(device)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.set_num_threads(1)
    maker = torch.Generator().manual_seed(20)
    left, right = (torch.randn(SIDE, SIDE, generator=maker) for _ in range(2))
    Step.to("multiply matrices")
    product = left.to(device) @ right.to(device)
    torch.cuda.synchronize(device)
    Step.to("copy back")
    return max(simple, share_of_bound(product.cpu(), left, right))


def share_of_bound(product: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> float:
    """The largest error of ``product`` as a share of the bound that holds for any order of summation.

    For inner products of length n in arithmetic of unit roundoff u it is n u |left| |right| to first order (Higham,
    "Accuracy and Stability of Numerical Algorithms", 3.1). Not a number, or infinite, is infinitely wrong.
    """
    left, right = left.double(), right.double()
    bound = left.shape[1] * unit_roundoff() * (left.abs() @ right.abs())
    share = (product.double() - left @ right).abs() / bound
    return float(share.max()) if bool(torch.isfinite(share).all()) else float("inf")


def unit_roundoff() -> float:
    """Half the spacing of float32; of TF32, where the environment forces that on every library."""
    return 2.0**-11 if os.environ.get("NVIDIA_TF32_OVERRIDE") == "1" else 2.0**-24


class Job:
    """One forked process and what it has said so far."""

    def __init__(self, work: Callable[[], dict[str, Any]]) -> None:
        self.said = b""
        self.reader, writer = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.reader)
            answer_and_leave(work, writer)
        os.close(writer)

    def answer(self, hung: bool) -> dict[str, Any]:
        """What it answered, or how it ended, with the step that it had reached."""
        lines = [json.loads(line) for line in self.said.splitlines()]
        reached = {"step": next((line["step"] for line in reversed(lines) if "step" in line), "")}
        if hung:
            os.kill(self.pid, signal.SIGKILL)
            # Not waited for: a process that the kernel will not kill would take us with it.
            return {"ended": "hang", **reached}
        status = os.waitpid(self.pid, 0)[1]
        if os.WIFSIGNALED(status):
            return {"ended": "signal", "signal": signal.Signals(os.WTERMSIG(status)).name, **reached}
        if lines and "ended" in lines[-1]:
            return {**reached, **lines[-1]}
        return {"ended": "failure", "type": "no answer", "text": f"exit {os.WEXITSTATUS(status)}", **reached}


def answer_and_leave(work: Callable[[], dict[str, Any]], writer: int) -> None:
    """In the forked process: write what ``work`` returns or raises, and end without the interpreter's own farewell."""
    envelope.arm_stack_dump()
    Step.writer = writer
    try:
        said = {"ended": "value", "value": work()}
    except BaseException as error:
        said = {"ended": "failure", "type": type(error).__name__, "text": str(error)[:4000]}
    with os.fdopen(writer, "w") as stream:
        stream.write(json.dumps(said) + "\n")
    os._exit(0)


def in_processes(works: Sequence[Callable[[], dict[str, Any]]], limit_s: float) -> list[dict[str, Any]]:
    """What each of ``works`` answered, run at the same time in forked processes of at most ``limit_s`` seconds."""
    jobs = [Job(work) for work in works]
    open_jobs = {job.reader: job for job in jobs}
    end = time.monotonic() + limit_s
    while open_jobs and (left_s := end - time.monotonic()) > 0:
        for reader in select.select(list(open_jobs), [], [], left_s)[0]:
            chunk = os.read(reader, PIPE_BYTES)
            if chunk:
                open_jobs[reader].said += chunk
            else:
                del open_jobs[reader]
    answers = [job.answer(hung=job.reader in open_jobs) for job in jobs]
    for job in jobs:
        os.close(job.reader)
    return answers
