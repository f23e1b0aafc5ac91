"""Models whose export is wrong, each in one way, for real. Found by path by the payload under test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Callable


class Calls(nn.Module):
    """A model that is one function."""

    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> object:
        return self.function(*inputs)


def _positive() -> Tensor:
    torch.manual_seed(5)
    return torch.rand(2, 8) + 0.1


def _signed() -> Tensor:
    torch.manual_seed(6)
    return torch.randn(2, 8)


def branch() -> tuple[nn.Module, Tensor]:
    """A branch on the data: the tracing exporter keeps the one that the sample took."""
    return Calls(lambda x: x * 2 if x.sum() > 0 else x - 1).eval(), _positive()


def branch_in_training() -> tuple[nn.Module, Tensor]:
    """As before, behind a layer to which training mode, in which it was left, means nothing."""
    return nn.Sequential(nn.Linear(8, 8), Calls(lambda x: x * 2 if x.sum() > 0 else x - 1)).train(), _positive()


def frozen_scale() -> tuple[nn.Module, Tensor]:
    """A Python number taken from the data: the sample's is kept."""
    return Calls(lambda x: x * float(x.abs().mean())).eval(), _positive()


def tiny() -> tuple[nn.Module, Tensor]:
    """As before, with outputs so small that an absolute tolerance alone would pass anything."""
    return Calls(lambda x: x * 1e-6 * float(x.abs().mean())).eval(), _positive()


def frozen_batch() -> tuple[nn.Module, Tensor]:
    """A batch size turned into a Python number: the sample's is kept."""
    return Calls(lambda x: x + torch.zeros(int(x.shape[0]), 1)).eval(), _signed()


def training() -> tuple[nn.Module, Tensor]:
    """Batch norm in training mode: PyTorch uses the batch's statistics, the export the running ones."""
    torch.manual_seed(7)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(1))
    return model.train(), torch.randn(2, 3, 8, 8)


def dropout() -> tuple[nn.Module, Tensor]:
    """Dropout that never stops: PyTorch answers otherwise each time."""
    return Calls(lambda x: nn.functional.dropout(x, 0.5, training=True)).eval(), _signed()


class Sways(nn.Module):
    """Dropout that only its own flag shows: there is no nn.Dropout to be found."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(x, 0.5, training=self.training)


def sways() -> tuple[nn.Module, Tensor]:
    """See the class."""
    return Sways().train(), _signed()


def not_a_number() -> tuple[nn.Module, Tensor]:
    """Both sides answer NaN for half of the elements."""
    return Calls(torch.sqrt).eval(), _signed()


def nothing_but_nan() -> tuple[nn.Module, Tensor]:
    """Both sides answer NaN and nothing else."""
    return Calls(lambda x: x * float("nan")).eval(), _signed()


def infinite() -> tuple[nn.Module, Tensor]:
    """Both sides answer infinity for one element; an infinite reference must not make the tolerance infinite."""
    return Calls(lambda x: x.masked_fill(x == x.max(), float("inf"))).eval(), _signed()


def zeros() -> tuple[nn.Module, Tensor]:
    """All outputs are constant, so they agree whatever the export is worth."""
    return Calls(lambda x: x * 0).eval(), _signed()


def unsupported() -> tuple[nn.Module, Tensor]:
    """An operator that no exporter knows."""
    return Calls(torch.linalg.eigvalsh).eval(), torch.randn(2, 3, 3)


def half() -> tuple[nn.Module, Tensor]:
    """A healthy model in float16."""
    torch.manual_seed(8)
    return nn.Linear(8, 8).eval().half(), _signed().half()


class Embedded(nn.Module):
    """A healthy model with two inputs, one of them indices, and two outputs, one of them integers."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 8)

    def forward(self, ids: Tensor, scale: Tensor) -> dict[str, Tensor]:
        return {"mixed": self.table(ids).sum(1) * scale, "best": scale.argmax(1)}


def embedded() -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """See the class."""
    torch.manual_seed(9)
    return Embedded().eval(), (torch.randint(0, 50, (2, 6)), torch.randn(2, 8))


def ignores_an_input() -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """A healthy model whose first input is not used; exporters drop it."""
    return Calls(lambda _, x: x * 3).eval(), (_signed(), _positive())


def disk_full() -> tuple[nn.Module, Tensor]:
    """The machine fails, not the exporter."""
    raise OSError(28, "No space left on device")


def data_dependent_size() -> tuple[nn.Module, Tensor]:
    """As many rows as there are positive elements, used as a size: torch.export cannot know it."""
    return Calls(lambda x: torch.zeros(int((x > 0).sum())) + x.sum()).eval(), _signed()


def not_a_model() -> Tensor:
    """A factory that gives something else."""
    return _signed()


def fixed_batch() -> tuple[nn.Module, Tensor]:
    """PyTorch itself takes no other batch than the example's."""
    return Calls(lambda x: x.reshape(2, 8) * 2).eval(), _signed()


def healthy() -> tuple[nn.Module, Tensor]:
    """Nothing wrong with it."""
    torch.manual_seed(10)
    return nn.Sequential(nn.Linear(8, 8), nn.GELU()).eval(), _signed()


def only_by_tracing() -> tuple[nn.Module, Tensor]:
    """A branch that no input ever takes the other way: tracing is right by luck, torch.export refuses."""
    return Calls(lambda x: x * 2 if x.square().sum() >= 0 else x).eval(), _signed()


def in_float64() -> tuple[nn.Module, Tensor]:
    """A convolution in float64, which ONNX Runtime does not have on the CPU."""
    torch.manual_seed(11)
    return nn.Conv2d(3, 4, 3).eval().double(), torch.randn(2, 3, 8, 8).double()


def in_bfloat16() -> tuple[nn.Module, Tensor]:
    """A healthy model in bfloat16."""
    torch.manual_seed(12)
    return nn.Linear(8, 8).eval().bfloat16(), _signed().bfloat16()
