"""GPUs that one child serves in turn: asked together once, and alone where that gave no clean answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from gpucheck.judgement import gpu_turns
from gpucheck.judgement.gpu_turns import Turns
from gpucheck.judgement.nccl_plan import Cards
from gpucheck.judgement.visibility import Gpu
from gpucheck.verdict import NotApplicable, Unable
from tests.fakes.answers import facts, nvml_gpu, uuid

if TYPE_CHECKING:
    from collections.abc import Mapping

CARDS = Cards(tuple(Gpu(n, uuid(n), "H100") for n in range(3)), ())


class Asked:
    """Answers for ordinals, one of which spoils what is asked together."""

    def __init__(self, clean: dict[int, str]) -> None:
        self.clean = clean
        self.questions: list[tuple[str, tuple[int, ...]]] = []

    def __call__(self, visible: str, ordinals: tuple[int, ...]) -> Mapping[int, Any]:
        self.questions.append((visible, ordinals))
        return {n: self.clean[n] for n in ordinals if n in self.clean} if len(ordinals) > 1 else {0: f"{visible} alone"}


def test_all_are_asked_once() -> None:
    """Three GPUs, one question."""
    asked, turns = Asked({0: "a", 1: "b", 2: "c"}), Turns()
    assert [turns.of("leg", CARDS, card, asked) for card in CARDS.free] == ["a", "b", "c"]
    assert asked.questions == [(CARDS.visible, (0, 1, 2))]


def test_one_without_a_clean_answer_is_asked_alone() -> None:
    """Only that GPU is visible then, so its ordinal is 0."""
    asked, turns = Asked({0: "a", 2: "c"}), Turns()
    assert [turns.of("leg", CARDS, card, asked) for card in CARDS.free] == ["a", f"{uuid(1)} alone", "c"]
    assert asked.questions[1:] == [(uuid(1), (0,))]


def test_a_single_gpu_is_not_asked_twice() -> None:
    """What one GPU told alone is its answer."""
    cards = Cards(CARDS.free[:1], ())
    asked = Asked({})
    Turns().of("leg", cards, cards.free[0], asked)
    assert len(asked.questions) == 1


def test_a_gpu_in_use_is_left_alone() -> None:
    """Somebody's process on it: unable."""
    busy = nvml_gpu(0, processes=[{"pid": 7}])
    with pytest.raises(Unable, match="pid 7"):
        gpu_turns.place(facts({"package.torch": "2"}, gpus=[busy]), busy, "idle")


def test_a_hidden_gpu_does_not_apply() -> None:
    """What CUDA_VISIBLE_DEVICES hides on purpose is not judged."""
    gpu = nvml_gpu(0)
    read = facts({"package.torch": "2", "env.CUDA_VISIBLE_DEVICES": ""}, gpus=[gpu])
    with pytest.raises(NotApplicable):
        gpu_turns.place(read, gpu, "idle")
