"""A training script that reads an epoch by fork when it is imported: only a spawned worker shows what is wrong."""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader


class Numbers:
    """Four samples."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((4,), index)


def make() -> Numbers:
    """The dataset."""
    return Numbers()


for _ in DataLoader(Numbers(), num_workers=1, multiprocessing_context="fork", timeout=30):
    pass
