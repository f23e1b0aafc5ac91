"""GPUs that one child serves in turn, so that eight cost little more than one; one that spoilt it is asked alone.

Starting torch or ONNX Runtime, and workers, is what costs. One device's crash or hang would take the others' answers
with it, so whatever is not a clean answer about a GPU is asked again for that GPU by itself.
This keeps what was told; whoever calls it gives the function that asks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpucheck.judgement import nccl_plan
from gpucheck.judgement.initialisation import hidden_on_purpose
from gpucheck.judgement.visibility import Gpu
from gpucheck.verdict import Unable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gpucheck.facts import Facts
    from gpucheck.judgement.nccl_plan import Cards


@dataclass
class Turns:
    """What each leg told about each GPU; kept between the rows of one probe."""

    told: dict[str, Mapping[int, Any]] = field(default_factory=dict)

    def of(self, leg: str, cards: Cards, card: Gpu, ask: Callable[[str, tuple[int, ...]], Mapping[int, Any]]) -> Any:
        """What ``ask`` tells of one GPU: ``ask(visible, ordinals)``, for all GPUs at once first; None: nothing."""
        if leg not in self.told:
            self.told[leg] = ask(cards.visible, tuple(range(len(cards.free))))
        common = self.told[leg].get(cards.free.index(card))
        if common is not None or len(cards.free) == 1:
            return common
        return ask(str(card.uuid), (0,)).get(0)


def place(host: Facts, gpu: Mapping[str, Any], disturb: str) -> tuple[Cards, Gpu]:
    """The GPUs that may be used here, and one of them. Raises Unable or NotApplicable when it is not to be used."""
    card = Gpu.parse(gpu)
    if (hidden := hidden_on_purpose(host, card)) is not None:
        raise hidden
    cards = nccl_plan.cards_of(host, disturb)
    if (left := cards.why_not(card)) is not None:
        raise Unable(f"{card}: {left.why}")
    return cards, card
