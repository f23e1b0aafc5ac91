"""Exports to ONNX, judged: what probes of them share. ``payload/onnx_export.py`` and ``onnx_compare.py`` measure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from gpucheck.judgement import onnx_drift, packages, tolerance
from gpucheck.legs.replies import value_of
from gpucheck.process import Failure
from gpucheck.verdict import Bug, Failed, NotApplicable, Unable, Unexplained, bad

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from gpucheck.facts import Facts
    from gpucheck.process import Reply
    from gpucheck.report import Report

    Child = Callable[..., Reply]

WORST = "_worst_share_of_tolerance"
CPU = "CPUExecutionProvider"
RUNTIMES = ("onnxruntime", "onnxruntime-gpu", "onnxruntime-rocm", "onnxruntime-openvino", "onnxruntime-directml")


def rule_out(host: Facts) -> None:
    """Raises NotApplicable when a package is known not to be there."""
    for names in (("torch",), ("onnx",), RUNTIMES):
        packages.need(host, *names, extra="onnx")


def value(reply: Reply, what: str) -> Any:
    """What the payload returned; a library that is missing rules the probe out, a broken torch is not ours to judge."""
    match reply.answer:
        case Failure(type="ModuleNotFoundError", text=text):
            raise NotApplicable("package.onnxruntime", text, "import in the judged Python")
        case Failure(type="ImportError" | "OSError" as kind, text=text):
            raise Unexplained(f"{what}: {kind}: {text}", f"{kind}: {text}")
    return value_of(reply, what)


def export(child: Child, exporter: str, models: tuple[str, ...], folder: Path) -> Mapping[str, Any]:
    """Export our own models into ``folder``. Raises NotApplicable when the exporter is not installed."""
    args = {"exporter": exporter, "folder": str(folder), "models": models}
    return exported(child("onnx_export", args), exporter)


def exported(reply: Reply, exporter: str) -> Mapping[str, Any]:
    """The models that a reply of ``payload/onnx_export.py`` holds, by name."""
    answer: Mapping[str, Any] = value(reply, f"{exporter} exporter")
    if answer["missing"]:
        lacking = answer["missing"]
        raise NotApplicable(f"package.{lacking}", f"{lacking} is not installed: {packages.install('onnx')}", "import")
    models_made: Mapping[str, Any] = answer["models"]
    return models_made


def sort_out(report: Report, exporter: str, models: Mapping[str, Any]) -> Mapping[str, Any]:
    """Those of our own models that were exported. A refusal of one is our bug, a machine in the way a finding."""
    for name, made in models.items():
        if fault := made.get("fault"):
            if fault["kind"] == "refused":
                raise Failed(f"the {exporter} exporter refuses {name}: {fault['told']}", fault["told"])
            report.bad("onnx-export-failed", f"{exporter}, {name}: {fault['told']}", exporter=exporter)
    return {name: made for name, made in models.items() if "fault" not in made}


def compare(
    report: Report, child: Child, made: Mapping[str, Any], providers: Sequence[Any], folder: Path
) -> tuple[Mapping[str, Any], str] | None:
    """Each model's comparison in ONNX Runtime on ``providers`` ([[name, options]]), and its standard error.

    None: it cannot be imported, which is a finding.
    """
    args = {"models": made, "folder": str(folder), "tolerance": tolerance.as_args(), "providers": providers}
    reply = child("onnx_compare", args, warm=False)
    told = answered(report, reply)
    return None if told is None else (told, reply.errors)


def answered(report: Report, reply: Reply) -> Any:
    """What ONNX Runtime answered; None where it cannot be imported, which is a finding."""
    match reply.answer:
        case Failure(type="ImportError", text=text):
            report.bad("ort-import-failed", f"import onnxruntime: {text}")
            return None
    return value(reply, "ONNX Runtime")


def judge(  # noqa: PLR0913 - what came back of one exporter, and whose model it is
    report: Report,
    exporter: str,
    made: Mapping[str, Any],
    compared: Mapping[str, Any],
    errors: str,
    *,
    own: bool = False,
) -> None:
    """Every model of one exporter: drift, fallback, or evidence that there is neither.

    ``own``: it is the operator's model, which may be wrong, and then the cause is named.
    """
    for name, model in compared["models"].items():
        if text := model.get("unloadable"):
            refused(report, f"{exporter}, {name}: {text}", text, exporter=exporter, model=name)
            continue
        found = onnx_drift.slips(model)
        lines = onnx_drift.drift(name, model)
        if lines:
            pitfall = onnx_drift.cause(name, made[name], model) if own else onnx_drift.DRIFT
            report.take(bad(pitfall, *lines, *at_export(made[name]), exporter=exporter, model=name), label=exporter)
        elif found:
            raise Unable(f"{name}: {'; '.join(found)}") if own else Bug(f"{exporter}, {name}: {'; '.join(found)}")
        where_it_ran(report, exporter, name, compared, errors)
    conclude(report, exporter, compared)


def where_it_ran(report: Report, label: str, name: str, compared: Mapping[str, Any], errors: str) -> None:
    """Nodes that ran elsewhere than where they were asked to: all of them is a defect, some may hurt."""
    asked, model = compared["asked"][0], compared["models"][name]
    if elsewhere := onnx_drift.fallback(asked, model):
        report.take(bad("onnx-provider-fallback", elsewhere, *reasons(errors), provider=asked), label=label)
    elif strays := onnx_drift.strays(asked, model):
        report.degraded("onnx-provider-fallback", f"{label}, {name}: not on {asked}: {strays}", provider=asked)


def refused(report: Report, what: str, text: str, **params: str) -> None:
    """A model that ONNX Runtime does not load: what its words are known to mean, else that they are not known."""
    if (pitfall := onnx_drift.unloadable(text)) is not None:
        report.bad(pitfall, what, **params)
    elif not report.explain(told := Unexplained(what, text)):
        raise told


def at_export(made: Mapping[str, Any]) -> list[str]:
    """What was suspect when the model was exported."""
    training = made["training"]
    lines = [f"in training mode at export: {', '.join(training[:5])}"] if training else []
    return lines + [f"the tracer warned: {text.partition('.')[0]}" for text in made["tracer_warnings"][:2]]


def reasons(errors: str) -> list[str]:
    """ONNX Runtime's own words about a provider."""
    lines = [line.strip() for line in errors.splitlines()]
    return [line for line in lines if "provider" in line.lower() or "Failed to load" in line][:3]


def conclude(report: Report, exporter: str, compared: Mapping[str, Any]) -> None:
    """Evidence and measures of one exporter."""
    models = compared["models"]
    if (share := onnx_drift.worst_share(models)) < math.inf:
        report.measure(f"{exporter}{WORST}", share)
        worst = max(value for name, value in report.measures.items() if name.endswith(WORST))
        report.sum_up(f"the worst error is {worst:.1%} of what is allowed")
        report.saw(f"{exporter}: the worst error is {share:.1%} of what is allowed")
    for name, model in models.items():
        if "cases" in model:
            cases = ", ".join(f"{case['name']} (batch {case['batch']})" for case in model["cases"])
            report.saw(f"{exporter}, {name.partition(':')[2]}: {cases}; {onnx_drift.ran_on(model)}")
