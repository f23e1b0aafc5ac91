"""Models whose export goes wrong in one way, for real: what a rehearsal puts in place of healthy ones."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Branching(nn.Module):
    """Decides by its data: the tracing exporter keeps the branch that the sample took."""

    def forward(self, x: Tensor) -> Tensor:
        """One of two results."""
        return x * 2 if x.sum() > 0 else x - 1


def branching() -> tuple[nn.Module, Tensor]:
    """The model, and a sample with a positive sum."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return Branching().eval(), torch.rand(2, 8) + 0.1
