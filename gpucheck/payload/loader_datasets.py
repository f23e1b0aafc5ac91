"""Datasets of our own for ``loader_epochs``, which finds them by the same door as a user's: "MODULE:FACTORY"."""

from __future__ import annotations

import hashlib

import torch

SAMPLES = 24
SAMPLE_BYTES = 3 * 224 * 224


class Images:
    """Samples whose bytes follow from their index alone."""

    def __init__(self, samples: int, sample_bytes: int) -> None:
        self.samples = samples
        self.sample_bytes = sample_bytes

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> torch.Tensor:
        content = hashlib.shake_128(b"gpucheck sample %d" % index).digest(self.sample_bytes)
        return torch.frombuffer(bytearray(content), dtype=torch.uint8)


class OnCuda:
    """Samples that are made with CUDA, in the worker."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((4,), index, device="cuda").cpu()


def images() -> Images:
    """An epoch of 24 samples, each the size of a decoded 224 x 224 image: 3.6 MB."""
    return Images(SAMPLES, SAMPLE_BYTES)


def many_small() -> Images:
    """128 samples of 64 bytes: in batches of two, 64 batches to hold at a time."""
    return Images(128, 64)


def after_cuda() -> OnCuda:
    """A dataset for workers that use CUDA, made by a parent that has asked for CUDA itself."""
    torch.cuda.is_available()
    return OnCuda()
