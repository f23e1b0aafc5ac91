"""Exports models to ONNX and writes down what PyTorch answers on inputs that the exporter has not seen.

Arguments: ``exporter`` (legacy, dynamo), ``folder`` (everything is written there), ``models`` (["MODULE:FACTORY"]),
each factory returning ``(model, example)`` where ``example`` is a tensor or a tuple of tensors with the batch first;
``path`` (folders to find them in), ``cwd`` (where they run), both optional. Answer: ``{"torch", "exporter", "missing",
"models": {name: made}}``; ``made`` carries either ``file``, ``data`` (an ``.npz``: ``case/in/N``, ``case/out/N``,
``case/again/N`` and, in float64, ``case/referee/N``) and ``cases``, or ``fault``: its ``stage`` (loading, running,
exporting), its ``kind``, what was ``told``, and the size of the ``batch`` that ran (None: none did). Leaves nothing
outside ``folder``.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import os
import re
import sys
import time
import warnings
from typing import Any, Callable, Sequence, Tuple

import torch

Tensors = Tuple[torch.Tensor, ...]
NEEDS = {"legacy": ("numpy", "onnx"), "dynamo": ("numpy", "onnx", "onnxscript")}
LINE_CHARACTERS = 400


def missing(exporter: str) -> str | None:
    """What that exporter needs and is not installed, by name; None when all is there. A broken module raises."""
    for name in NEEDS[exporter]:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            return error.name or name
    if exporter == "dynamo" and "dynamo" not in inspect.signature(torch.onnx.export).parameters:
        return "torch.onnx.export(dynamo=True), which came with torch 2.5"
    return None


def as_tuple(value: Any) -> Tensors:
    """A tensor, or a tuple, list or dict of them, as a flat tuple."""
    if isinstance(value, torch.Tensor):
        return (value,)
    items: Sequence[Any] = list(value.values()) if isinstance(value, dict) else value
    return tuple(tensor for item in items for tensor in as_tuple(item))


def resized(example: torch.Tensor, batch: int, scale: float, seed: int) -> torch.Tensor:
    """A fresh input like ``example`` with another batch size and, for floats, another scale and offset."""
    shape = (batch, *example.shape[1:])
    generator = torch.Generator().manual_seed(seed)
    if example.is_floating_point():
        spread = float(example.double().std()) or 1.0
        drawn = torch.randn(shape, generator=generator, dtype=torch.float64) * spread * scale
        return (drawn + float(example.double().mean())).to(example.dtype)
    low, high = int(example.min()), int(example.max())
    return torch.randint(low, high + 1, shape, generator=generator).to(example.dtype)


def turned(example: torch.Tensor) -> torch.Tensor:
    """The example with its sign turned; integers, which may be indices, in reverse order."""
    return -example if example.is_floating_point() else example.flip(-1)


def cases(example: Tensors) -> dict[str, Tensors]:
    """The export sample, and inputs that differ from it in sign, in scale and in batch size, 1 among them."""
    made = {"sample": example, "negated": tuple(turned(one) for one in example)}
    for name, batch, scale in (("larger", example[0].shape[0], 3.0), ("smaller", 5, 0.25), ("single", 1, 1.0)):
        made[name] = tuple(resized(one, batch, scale, seed) for seed, one in enumerate(example))
    return made


def doubled(inputs: Tensors) -> Tensors:
    """The same inputs with floats in float64."""
    return tuple(one.double() if one.is_floating_point() else one for one in inputs)


def referee(model: torch.nn.Module) -> Callable[[Tensors], Tensors | None]:
    """The model in float64; it answers None where a model insists on another type."""
    double = copy.deepcopy(model).double()

    def answer(inputs: Tensors) -> Tensors | None:
        try:
            return as_tuple(double(*doubled(inputs)))
        except (RuntimeError, TypeError):
            return None

    return answer


def answers(model: torch.nn.Module, inputs: dict[str, Tensors]) -> dict[str, Any]:
    """Arrays by name: each case's inputs, the model's outputs twice, and the float64 referee's."""
    arrays: dict[str, Any] = {}
    judge = referee(model)
    with torch.no_grad():
        for name, given in inputs.items():
            Stage.batch = given[0].shape[0]
            kinds = {"in": given, "out": as_tuple(model(*given)), "again": as_tuple(model(*given))}
            kinds["referee"] = judge(given) or ()
            if any(one.dtype == torch.bfloat16 for one in (*kinds["in"], *kinds["out"])):
                raise Unjudged("bfloat16 goes in or comes out, which numpy does not have")
            for kind, tensors in kinds.items():
                arrays.update({"%s/%s/%d" % (name, kind, n): one.numpy() for n, one in enumerate(tensors)})
    return arrays


def names(kind: str, count: int) -> list[str]:
    """Graph names: ``input_0``, ``input_1``, ..."""
    return ["%s_%d" % (kind, n) for n in range(count)]


def legacy(model: torch.nn.Module, example: Tensors, outputs: int, file: str) -> None:
    """Export by tracing, with the first dimension dynamic."""
    both = names("input", len(example)), names("output", outputs)
    extra = {"dynamo": False} if "dynamo" in inspect.signature(torch.onnx.export).parameters else {}
    torch.onnx.export(
        model,
        example,
        file,
        input_names=both[0],
        output_names=both[1],
        dynamic_axes={name: {0: "batch"} for name in both[0] + both[1]},
        **extra,
    )


def dynamic_shapes(model: torch.nn.Module, count: int) -> tuple[Any, ...]:
    """The first dimension of every input, nested as ``forward`` takes them: what ``*args`` collects is a tuple."""
    batch = torch.export.Dim("batch")
    each: tuple[Any, ...] = tuple({0: batch} for _ in range(count))
    kinds = [parameter.kind for parameter in inspect.signature(model.forward).parameters.values()]
    if inspect.Parameter.VAR_POSITIONAL not in kinds:
        return each
    named = kinds.index(inspect.Parameter.VAR_POSITIONAL)
    return (*each[:named], each[named:])


def dynamo(model: torch.nn.Module, example: Tensors, outputs: int, file: str) -> None:
    """Export through ``torch.export``, with the first dimension dynamic and the weights inside the file."""
    torch.onnx.export(
        model,
        example,
        file,
        dynamo=True,
        verbose=False,
        external_data=False,
        input_names=names("input", len(example)),
        output_names=names("output", outputs),
        dynamic_shapes=dynamic_shapes(model, len(example)),
    )


EXPORTERS = {"legacy": legacy, "dynamo": dynamo}


def opset(file: str) -> int:
    """The version of the default operator set of an ONNX file."""
    import onnx

    model = onnx.load(file, load_external_data=False)
    return max(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))


class Unjudged(Exception):
    """What this way of comparing cannot say anything about."""


class Stage:
    """How far one model has come: loading, running in PyTorch (a batch of which size), exporting."""

    now = "loading"
    batch: int | None = None

    @classmethod
    def to(cls, name: str) -> None:
        """The next stage begins."""
        cls.now = name
        cls.batch = None


def fault(error: BaseException) -> dict[str, Any]:
    """Why there is no export. ``environment``: a library or the disk failed; ``refused``: the exporter would not."""
    told = "; from ".join(first_line(one) for one in (error, error.__cause__) if one is not None)
    kind = "environment" if isinstance(error, (ImportError, OSError)) else "refused"
    kind = "unjudged" if isinstance(error, Unjudged) else kind
    return {"stage": Stage.now, "kind": kind, "told": told, "batch": Stage.batch}


def first_line(error: BaseException) -> str:
    """Type and first line of an exception, without the colours that exporters write."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip()
    return ("%s: %s" % (type(error).__name__, plain.partition("\n")[0]))[:LINE_CHARACTERS]


def training(model: torch.nn.Module, inputs: dict[str, Tensors]) -> list[str]:
    """The innermost modules in training mode, by name; none where the mode changes no answer on any of ``inputs``."""
    found = [name or "model" for name, part in model.named_modules() if part.training and not any(part.children())]
    return found if found and any(swayed(model, given) for given in inputs.values()) else []


def swayed(model: torch.nn.Module, given: Tensors) -> bool:
    """Whether evaluation mode changes the answer, by more than another order of sums would."""
    try:
        with torch.no_grad():
            own, calm = (as_tuple(one(*given)) for one in (copy.deepcopy(model), copy.deepcopy(model).eval()))
    except (RuntimeError, TypeError, ValueError):
        return True  # answers in one mode alone
    same = [one.shape for one in own] == [one.shape for one in calm]
    return not same or not all(
        torch.allclose(a.double(), b.double(), rtol=1e-3, atol=1e-5, equal_nan=True) for a, b in zip(own, calm)
    )


def made_by(spec: str) -> tuple[torch.nn.Module, Any]:
    """The model and the example that a factory gives. Raises TypeError for anything else."""
    module, _, factory = spec.partition(":")
    found: Any = importlib.import_module(module)
    for name in factory.split("."):
        found = getattr(found, name)
    pair = found()
    try:
        model, example = pair
    except (TypeError, ValueError):
        model, example = None, None
    if not isinstance(model, torch.nn.Module):
        raise TypeError("%s gives a %s, not a (module, example)" % (spec, type(pair).__name__))
    return model, example


def write(spec: str, exporter: str, folder: str) -> dict[str, Any]:
    """Export one model and write its reference answers."""
    import numpy as np

    Stage.to("loading")
    model, example = made_by(spec)
    example = as_tuple(example)
    factory = spec.partition(":")[2]
    Stage.to("running")
    stem = os.path.join(folder, "%s-%s" % (factory, exporter))
    # Exporting, and running in train mode, may change a model: references come from a copy of their own.
    inputs = cases(example)
    arrays = answers(copy.deepcopy(model), inputs)
    modes = training(model, inputs)
    outputs = len([name for name in arrays if name.startswith("sample/out/")])
    Stage.to("exporting")
    begun = time.monotonic()
    EXPORTERS[exporter](model, example, outputs, stem + ".onnx")
    seconds = time.monotonic() - begun
    np.savez(stem + ".npz", **arrays)
    return {
        "file": stem + ".onnx",
        "data": stem + ".npz",
        "cases": list(inputs),
        "opset": opset(stem + ".onnx"),
        "training": modes,
        "export_s": seconds,
    }


def one(spec: str, exporter: str, folder: str) -> dict[str, Any]:
    """One model's export, or its fault, with what the tracer warned of."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            made: dict[str, Any] = write(spec, exporter, folder)
        except (Exception, SystemExit) as error:  # exporters raise types of their own, which moved between versions
            made = {"fault": fault(error)}
    traced: list[str] = [str(w.message)[:400] for w in warned if w.category.__name__ == "TracerWarning"]
    return {**made, "tracer_warnings": traced}


def main(args: dict[str, Any]) -> dict[str, Any]:
    """Export every model; see the head of this file for arguments and answer."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.join(args["folder"], "inductor")
    sys.path[:0] = [folder for folder in args.get("path", []) if folder not in sys.path]
    if args.get("cwd"):
        os.chdir(args["cwd"])
    lacking = missing(args["exporter"])
    made = {} if lacking else {spec: one(spec, args["exporter"], args["folder"]) for spec in args["models"]}
    return {"torch": torch.__version__, "exporter": args["exporter"], "missing": lacking, "models": made}
