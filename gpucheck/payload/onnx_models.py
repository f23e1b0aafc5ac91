"""Three small models in plain torch operations, so that the tracing and the dynamo exporter both take them.

Each factory returns ``(model, example)``: a module in eval mode with seeded weights, and one input of shape
``(2, ...)`` whose first dimension is the batch. Outputs are of order 1 and depend on every part of the input.
"""

from __future__ import annotations

import math
from typing import Tuple

import torch
from torch import Tensor, nn

Made = Tuple[nn.Module, Tensor]


class ConvNorm(nn.Module):
    """Convolution, batch norm with statistics of its own, GELU, pooling, classifier: (B, 3, 16, 16) to (B, 10)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.down = nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.head = nn.Linear(16 * 4 * 4, 10)
        # With the statistics of a fresh layer (mean 0, variance 1) a lost batch norm would go unnoticed.
        nn.init.normal_(self.norm.running_mean)
        nn.init.uniform_(self.norm.running_var, 0.5, 2.0)
        nn.init.normal_(self.norm.weight, 1.0, 0.2)
        nn.init.normal_(self.norm.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        hidden = nn.functional.gelu(self.norm(self.conv(x)))
        hidden = nn.functional.max_pool2d(self.down(hidden), 2)
        return self.head(hidden.flatten(1))


class TransformerBlock(nn.Module):
    """A causal pre-norm block: (B, 12, 32) to (B, 12, 32)."""

    def __init__(self, width: int = 32, heads: int = 4, length: int = 12) -> None:
        super().__init__()
        self.width, self.length, self.heads, self.head_width = width, length, heads, width // heads
        self.first = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.second = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.register_buffer("mask", torch.full((length, length), -math.inf).triu(1))

    def attend(self, x: Tensor) -> Tensor:
        """Scaled dot-product attention over the past, spelt out; sizes other than the batch are Python numbers."""
        parts = self.qkv(x).reshape(-1, self.length, 3, self.heads, self.head_width).permute(2, 0, 3, 1, 4)
        scores = parts[0] @ parts[1].transpose(-2, -1) / math.sqrt(self.head_width) + self.mask
        mixed = scores.softmax(-1) @ parts[2]
        return self.out(mixed.permute(0, 2, 1, 3).reshape(-1, self.length, self.width))

    def forward(self, x: Tensor) -> Tensor:
        """The block's output, of the input's shape."""
        x = x + self.attend(self.first(x))
        return x + self.down(nn.functional.gelu(self.up(self.second(x))))


class Lstm(nn.Module):
    """One LSTM layer, a step at a time: (B, 6, 16) to the last hidden state (B, 24)."""

    def __init__(self, width: int = 16, hidden: int = 24) -> None:
        super().__init__()
        self.hidden = hidden
        self.from_input = nn.Linear(width, 4 * hidden)
        self.from_state = nn.Linear(hidden, 4 * hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """The last hidden state."""
        state = x.new_zeros(x.shape[0], self.hidden)
        cell = state
        for step in range(x.shape[1]):
            gates = self.from_input(x[:, step]) + self.from_state(state)
            enter, forget, candidate, leave = gates.chunk(4, dim=1)
            cell = forget.sigmoid() * cell + enter.sigmoid() * candidate.tanh()
            state = leave.sigmoid() * cell.tanh()
        return state


def _made(seed: int, kind: type[nn.Module], *shape: int) -> Made:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = kind().eval()
        return model, torch.randn(2, *shape)


def conv_norm() -> Made:
    """Convolution with batch norm."""
    return _made(1, ConvNorm, 3, 16, 16)


def transformer() -> Made:
    """A transformer block."""
    return _made(2, TransformerBlock, 12, 32)


def lstm() -> Made:
    """An LSTM."""
    return _made(3, Lstm, 6, 16)
