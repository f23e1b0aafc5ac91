"""A DataLoader feeds the GPU through pinned memory, and its workers can compute on it.

Looks at: two epochs of 24 image-sized samples through two forked workers and the pin-memory thread to the GPU and back,
each sample compared with what the parent reads and each batch asked whether it is pinned; two spawned workers that
copy to the GPU, add there and copy back, each number compared; and that a worker forked by a process that has used CUDA
is refused in torch's own words.
Why it matters: locked memory, the device nodes and CUDA in a second process each fail in ways of their own, in a
container above all, and the loader then blames the thread that pins or a worker that exited.
Does not apply when: there is no NVIDIA GPU and nothing expects one, it is hidden on purpose, or torch is not installed.
Cost and disturbance: ten seconds and one more a GPU; three contexts, about 1.5 GB, on each GPU meanwhile. A GPU with
somebody's process on it is left alone (unable) unless --gpucheck-disturb=any.
If it is bad: the finding names the cause behind the loader's message, where its words have one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from gpucheck.judgement import gpu_turns, loader_faults, packages
from gpucheck.judgement.gpu_turns import Turns
from gpucheck.legs.loader import WORKERS, judge, stopped
from gpucheck.process import Value
from gpucheck.verdict import Bug, Unable, Unexplained

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpucheck.facts import Facts
    from gpucheck.fixtures import Child
    from gpucheck.judgement.nccl_plan import Cards
    from gpucheck.judgement.visibility import Gpu
    from gpucheck.process import Reply
    from gpucheck.profile import Options
    from gpucheck.report import Report

pytestmark = pytest.mark.probe(
    subject="gpu",
    level="default",
    essential=("pinned", "in-workers"),
    extra=("forked",),
    disturbs="idle",
    deadline_s=200,
    cost_s=6,
)
LEG_S = 60.0
BATCH_S = 40
REFUSAL = "Cannot re-initialize CUDA in forked subprocess"


@pytest.fixture(scope="module")
def asked() -> dict[str, Any]:
    """What each leg told of every GPU, which their rows share."""
    return {}


def test_dataloader_feeds_gpu(
    report: Report, host: Facts, child: Child, options: Options, gpu: dict[str, Any], asked: dict[str, Any]
) -> None:
    """One GPU; the children that serve them all are asked once."""
    packages.need(host, "torch")
    if host.known("torch.cuda_build") == "none":
        raise Unable("a torch with CUDA in it", blocked_by="cuda-available")
    cards, card = gpu_turns.place(host, gpu, options["disturb"])
    look = Look(report, child, Turns(asked), cards, card)
    with report.leg("pinned"):
        look.pinned()
    with report.leg("in-workers"):
        look.in_workers()
    with report.leg("forked"):
        look.forked()


class Look:
    """The legs of one GPU."""

    def __init__(self, report: Report, child: Child, turns: Turns, cards: Cards, card: Gpu) -> None:
        self.report = report
        self.child = child
        self.turns = turns
        self.cards = cards
        self.card = card
        self.reply: Reply | None = None

    def told(self, leg: str) -> Mapping[str, Any]:
        """What the payload tells of this GPU. Raises Unable where it gives no answer even by itself."""
        told = self.turns.of(leg, self.cards, self.card, lambda *where: self.ask(leg, *where))
        if told is None and self.reply is not None:
            words = f"{self.reply.answer} {self.reply.ended}"
            raise Unexplained(f"{self.card}, {leg}: {words}", self.reply.errors, *self.reply.ended.where[-3:])
        result: Mapping[str, Any] = told
        return result

    def ask(self, leg: str, visible: str, ordinals: tuple[int, ...]) -> Mapping[int, Any]:
        """One child for these GPUs. Several of them: a GPU with a fault is left out, to be asked by itself."""
        args = {"leg": leg, "devices": ordinals, "workers": WORKERS, "timeout_s": BATCH_S}
        env = {"CUDA_VISIBLE_DEVICES": visible}
        self.reply = self.child("loader_devices", args, warm=False, env=env, deadline_s=LEG_S)
        told = self.reply.answer.value if isinstance(self.reply.answer, Value) else {}
        return {int(n): one for n, one in told.items() if len(ordinals) == 1 or "fault" not in one}

    def pinned(self) -> None:
        """Batches through pinned memory to the GPU and back."""
        told = self.told("pinned")
        if "fault" not in told and told["unpinned"]:
            raise Unable(f"pinned memory: torch did not pin {told['unpinned']} batches")
        judge(self.report, "pinned", told, "fork")

    def in_workers(self) -> None:
        """Workers by spawn compute on the GPU."""
        told = self.told("in-workers")
        if "fault" in told:
            stopped(self.report, "in-workers", loader_faults.Fault.parse(told["fault"]))
        elif told["errors"]:
            first = told["errors"][0].partition("\n")[0]
            raise Unexplained(f"{self.card}, in workers: {first}", "\n".join(told["errors"]))
        elif told["wrong"]:
            wrong = f"{self.card}, in workers: samples {told['wrong']} are wrong"
            self.report.bad("wrong-numbers", wrong, gpu=self.card)
        elif told["workers"] != list(range(WORKERS)):
            raise Bug(f"in-workers: computed by workers {told['workers']}")
        else:
            self.report.saw(f"in-workers: {told['samples']} samples right, computed by {WORKERS} spawned workers")

    def forked(self) -> None:
        """Workers by fork, after CUDA, are refused; hanging or dying of it is the defect."""
        told = self.told("forked")
        if "fault" in told:
            fault = loader_faults.Fault.parse(told["fault"])
            self.report.bad("fork-after-cuda", *(f"forked: {line}" for line in fault.evidence()))
        elif not told["errors"]:
            raise Unable("torch let a forked worker use CUDA (expected: refused)")
        elif not all(REFUSAL in error for error in told["errors"]):
            raise Unable(f"a forked worker failed (expected: torch refuses it): {'; '.join(told['errors'])}")
        else:
            self.report.saw("forked: refused in the worker in torch's own words, as it must be")
