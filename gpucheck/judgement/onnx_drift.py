"""What ``payload/onnx_compare.py`` measured, as evidence: is there drift, on which side, who ran it. Pure, a leaf."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SAMPLE = "sample"
"""The case that is the exporter's own sample: agreement on it alone shows nothing."""
# onnxruntime's words when it does not load a file (1.16 to 1.32).
_UNLOADABLE = (
    ("onnx-ir-version", "IR version"),
    ("opset-mismatch", "opset"),
    ("ort-op-not-implemented", "NOT_IMPLEMENTED"),
    ("onnx-file-unreadable", "INVALID_PROTOBUF"),
)
DRIFT = "onnx-drift"
# What exporters say when they refuse a model (torch 2.4 to 2.14).
_REFUSED = (
    ("export-data-dependent", "GuardOnDataDependentSymNode"),
    ("export-data-dependent", "data-dependent"),
    ("export-data-dependent", "Dynamic control flow is not supported"),
    ("export-dynamic-shapes", "Constraints violated"),
    ("export-dynamic-shapes", "ConstraintViolationError"),
    ("export-dynamic-shapes", "your code specialized it"),
    ("onnx-operator-unsupported", "UnsupportedOperatorError"),
    ("onnx-operator-unsupported", "No ONNX function found"),
    ("onnx-operator-unsupported", "No decompositions registered"),
)
# ONNX Runtime puts operators on small shapes and indices on the CPU on purpose, next to a GPU too.
_OF_SHAPES = frozenset(
    "Cast Concat Constant ConstantOfShape Equal Expand Gather Identity Max Min Mod Not Range Reshape Shape Size Slice "
    "Squeeze Unsqueeze Where".split()
)
_SIDES = {
    (False, False): "neither is past tolerance of a float64 run, only of the other",
    (True, False): "ONNX Runtime's answer is the wrong one",
    (False, True): "PyTorch's own float32 answer is the wrong one",
    (True, True): "both are far from a float64 run",
}


@dataclass(frozen=True, slots=True)
class Compared:
    """One output of one case. ``apart`` and the rest are distances as the payload gives them; None: not measured."""

    model: str
    case: str
    batch: int
    output: int
    measured: Mapping[str, Any]

    def beyond(self, which: str) -> int:
        """How many elements are past tolerance by that distance; 0 where it was not measured."""
        distance = self.measured.get(which)
        return int(distance["beyond"]) if distance else 0

    @property
    def unsteady(self) -> bool:
        """Whether PyTorch answered otherwise when asked again; two answers that are not finite cannot be told apart."""
        return bool(self.beyond("torch_again")) and self.measured["torch_again"]["worst"] is not None

    @property
    def mismatch(self) -> str | None:
        """Another type or shape than PyTorch's."""
        found: str | None = self.measured.get("mismatch")
        return found

    @property
    def right(self) -> bool:
        """Whether ONNX Runtime agrees with PyTorch and both with the referee."""
        distances = ("apart", "onnx_from_referee", "torch_from_referee")
        return self.measured["elements"] > 0 and not self.mismatch and not any(self.beyond(one) for one in distances)

    @property
    def share(self) -> float:
        """The worst error as a share of what is allowed; infinite when something is not finite."""
        worst = self.measured["apart"]["worst_share"] if "apart" in self.measured else None
        return float("inf") if worst is None else float(worst)

    def line(self) -> str:
        """One line about a wrong output."""
        what = f"{self.model}, {self.case} input (batch {self.batch})"
        if self.mismatch:
            expected = f"{self.measured['dtype']} {self.measured['expected_shape']}"
            return f"{what}: ONNX Runtime gives {self.mismatch}, PyTorch {expected}"
        apart = self.measured["apart"]
        worst = "not finite" if apart["worst"] is None else f"worst error {apart['worst']:.2g} at up to {self._size()}"
        return f"{what}: {apart['beyond']} of {self.measured['elements']} elements past tolerance, {worst}"

    def _size(self) -> str:
        return "infinity" if self.measured["largest"] is None else f"{self.measured['largest']:.2g}"


def outputs(name: str, model: Mapping[str, Any]) -> Iterator[Compared]:
    """Every output of every case that ran."""
    for case in model.get("cases", ()):
        for number, measured in enumerate(case.get("outputs", ())):
            yield Compared(name, case["name"], case["batch"], number, measured)


def slips(model: Mapping[str, Any]) -> list[str]:
    """Why agreement would be no evidence: the sample alone, one batch size, nothing that depends on the input."""
    cases = model["cases"]
    others = [case for case in cases if case["name"] != SAMPLE]
    sizes = {case["batch"] for case in cases}
    found = []
    if not others or any(not case["outputs"] for case in cases if "outputs" in case):
        found.append("nothing but the export sample was compared")
    if 1 not in sizes or sizes == {1}:
        found.append(f"batch sizes {sorted(sizes)} only")
    if model["unmoved"]:
        found.append(f"output {model['unmoved'][0]} is the same whatever the input")
    if not model["nodes"]:
        found.append("no node left a trace in ONNX Runtime's profile")
    return found


def drift(name: str, model: Mapping[str, Any]) -> list[str]:
    """What is wrong with an exported model, a line each, then which side and since when; empty when all is right."""
    refusals = [
        f"{name}, {case['name']} input (batch {case['batch']}): {' '.join(case['refused'].split())[:300]}"
        for case in model["cases"]
        if "refused" in case
    ]
    wrong = [one for one in outputs(name, model) if not one.right]
    lines = refusals + [one.line() for one in wrong]
    if not lines:
        return []
    measured = [one for one in wrong if not one.mismatch]
    return [*lines, *(_blame(measured) if measured else []), *_since(name, model)]


def _blame(wrong: list[Compared]) -> list[str]:
    if any(one.unsteady for one in wrong):
        return ["PyTorch itself answers differently when asked twice: something in the model is random or keeps state"]
    if not any("onnx_from_referee" in one.measured for one in wrong):
        return ["there is no float64 run to say which side is wrong"]
    sides = tuple(any(one.beyond(which) for one in wrong) for which in ("onnx_from_referee", "torch_from_referee"))
    return [f"float64 referee: {_SIDES[sides[0], sides[1]]}"]


def _since(name: str, model: Mapping[str, Any]) -> list[str]:
    on_sample = [one for one in outputs(name, model) if one.case == SAMPLE]
    if on_sample and all(one.right for one in on_sample):
        return ["on the export sample itself they agree: something was frozen when it was exported"]
    return []


def fallback(asked: str, model: Mapping[str, Any]) -> str | None:
    """Who ran the nodes, when the provider that was asked for ran none of them; None when it did."""
    if model["nodes"].get(asked):
        return None
    return f"asked for {asked}; {ran_on(model)}; the session names {', '.join(model['providers'])}"


def strays(asked: str, model: Mapping[str, Any]) -> str:
    """Operators that compute and that another provider than the one asked for ran; "" when there is none."""
    away = {provider: ops for provider, ops in model["operators"].items() if provider != asked}
    computing = {provider: sorted(set(ops) - _OF_SHAPES) for provider, ops in away.items()}
    return "; ".join(f"{', '.join(ops)} on {provider}" for provider, ops in sorted(computing.items()) if ops)


def ran_on(model: Mapping[str, Any]) -> str:
    """``CPUExecutionProvider ran 26 nodes``."""
    return ", ".join(f"{provider} ran {count} nodes" for provider, count in sorted(model["nodes"].items()))


def worst_share(models: Mapping[str, Mapping[str, Any]]) -> float:
    """The worst error of all, as a share of what is allowed: how near to drift."""
    return max((one.share for name, model in models.items() for one in outputs(name, model)), default=float("inf"))


def unloadable(text: str) -> str | None:
    """The pitfall of a model that ONNX Runtime does not load, from its words; None where they say something else."""
    return next((pitfall for pitfall, phrase in _UNLOADABLE if phrase in text), None)


def refused(told: str) -> str:
    """The pitfall of a model that an exporter refuses, from its words."""
    return next((pitfall for pitfall, phrase in _REFUSED if phrase in told), "onnx-export-failed")


def cause(name: str, made: Mapping[str, Any], model: Mapping[str, Any]) -> str:
    """The pitfall behind drift: train mode, something frozen at export, or none that can be told."""
    wrong = [one for one in outputs(name, model) if not one.right]
    if made["training"] or any(one.unsteady for one in wrong):
        return "exported-in-train-mode"
    refusals = any("refused" in case for case in model["cases"])
    frozen = refusals or any(one.mismatch for one in wrong) or bool(_since(name, model))
    return "traced-constant" if frozen else DRIFT
