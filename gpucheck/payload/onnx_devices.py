"""Exported models in ONNX Runtime on several devices in turn, compared as ``onnx_compare`` does on one.

Arguments: those of ``onnx_compare`` but ``providers``; ``provider`` and ``devices``, the numbers that its option
``device_id`` takes. Answer: ``{number: what onnx_compare answers, or {"failure": TEXT}}``.

TF32 is off for NVIDIA's libraries whatever a program asks for: with it convolutions alone are 1e-3 off.
"""

from __future__ import annotations

import os
from typing import Any

# Read by cuBLAS and cuDNN when they start.
os.environ["NVIDIA_TF32_OVERRIDE"] = "0"
import envelope
import onnx_compare
import onnxruntime


def preload() -> None:
    """CUDA's libraries as pip installs them; without this only a program that imports torch first finds them."""
    load = getattr(onnxruntime, "preload_dlls", None)  # since 1.21
    if load is not None:
        load()


def on_device(args: dict[str, Any], number: int) -> dict[str, Any]:
    """The comparison on one device; a failure of one leaves the others their turn."""
    envelope.progress("%s %d" % (args["provider"], number))
    providers = [[args["provider"], {"device_id": str(number)}]]
    try:
        return onnx_compare.main({**args, "providers": providers})
    except Exception as error:  # onnxruntime raises a dozen types of its own
        return {"failure": "%s: %s" % (type(error).__name__, error)}


def main(args: dict[str, Any]) -> dict[str, Any]:
    """Compare on every device; see the head of this file for arguments and answer."""
    preload()
    return {str(number): on_device(args, number) for number in args["devices"]}
