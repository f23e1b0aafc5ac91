"""An exported model gives PyTorch's numbers in ONNX Runtime on the GPU, and really runs there.

Looks at: the three small models of onnx-matches-torch, exported once for all GPUs by the tracing exporter; ONNX
Runtime's answers with CUDAExecutionProvider against PyTorch's on the CPU, on inputs that differ from the export sample
in sign, scale and batch size, with TF32 off; which provider ran each node, from ONNX Runtime's own profile.
Why it matters: a provider that cannot be loaded is replaced by the CPU in silence, while get_available_providers()
lists it all the same; and TF32 or a kernel for another architecture changes numbers without a word.
Does not apply when: there is no NVIDIA GPU and nothing expects one, it is hidden on purpose, or torch, onnx or
onnxruntime-gpu is not installed.
Cost and disturbance: ten seconds, and two more a GPU; one context, about 1 GB, on each GPU meanwhile. A GPU with
somebody's process on it is left alone (unable) unless --gpucheck-disturb=any.
If it is bad: the finding has ONNX Runtime's own words about the provider that it did not load.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from gpucheck.judgement import gpu_turns, packages, tolerance
from gpucheck.judgement.gpu_turns import Turns
from gpucheck.legs.onnx import answered, export, judge, rule_out, sort_out
from gpucheck.process import Failure, Value
from gpucheck.verdict import Unexplained

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from gpucheck.facts import Facts
    from gpucheck.fixtures import Child
    from gpucheck.process import Children, Reply
    from gpucheck.profile import Options
    from gpucheck.report import Report

pytestmark = pytest.mark.probe(
    subject="gpu", level="default", essential=("cuda",), disturbs="idle", deadline_s=200, cost_s=5
)
MODELS = ("onnx_models:conv_norm", "onnx_models:transformer", "onnx_models:lstm")
CUDA = "CUDAExecutionProvider"
ALL_S = 120.0


@pytest.fixture(scope="module")
def shared(children: Children) -> Shared:
    """What has been exported, and told of every GPU."""
    return Shared(children.folder / "tmp", Turns())


class Shared:
    """What the rows of this probe have in common: the exports, and what each GPU came to."""

    def __init__(self, folder: Path, turns: Turns) -> None:
        self.folder = folder
        self.turns = turns
        self.made: Mapping[str, Any] = {}
        self.reply: Reply | None = None


def test_onnx_matches_torch_on_gpu(
    report: Report, host: Facts, child: Child, options: Options, gpu: dict[str, Any], shared: Shared
) -> None:
    """One GPU; exports are made, and the child that serves all GPUs is asked, once."""
    rule_out(host)
    packages.need(host, "onnxruntime-gpu", extra="")
    cards, card = gpu_turns.place(host, gpu, options["disturb"])
    with report.leg("cuda"):
        if not shared.made:
            shared.made = sort_out(report, "legacy", export(child, "legacy", MODELS, shared.folder))
        told = shared.turns.of("cuda", cards, card, lambda *where: compare(child, shared, *where))
        if told is None and shared.reply is not None:
            if isinstance(shared.reply.answer, Failure) and answered(report, shared.reply) is None:
                return
            words = f"{shared.reply.answer} {shared.reply.ended}"
            raise Unexplained(f"{card}: {words}", shared.reply.errors, *shared.reply.ended.where[-3:])
        if "failure" in told:
            raise Unexplained(f"{card}: {told['failure']}", told["failure"])
        judge(report, "cuda", shared.made, told, shared.reply.errors if shared.reply else "")


def compare(child: Child, shared: Shared, visible: str, ordinals: tuple[int, ...]) -> Mapping[int, Any]:
    """One child for these GPUs; of several, one that failed is left out, to be asked by itself."""
    args: dict[str, Any] = {"models": shared.made, "folder": str(shared.folder), "tolerance": tolerance.as_args()}
    args |= {"provider": CUDA, "devices": ordinals}
    env = {"CUDA_VISIBLE_DEVICES": visible}
    shared.reply = child("onnx_devices", args, warm=False, env=env, deadline_s=ALL_S)
    told = shared.reply.answer.value if isinstance(shared.reply.answer, Value) else {}
    return {int(n): one for n, one in told.items() if len(ordinals) == 1 or "failure" not in one}
