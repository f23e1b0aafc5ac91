"""Runs exported models in ONNX Runtime and measures how far they are from what PyTorch answered.

Arguments: ``models`` ({name: {"file", "data", "cases"}} as ``onnx_export`` answers), ``providers`` ([[name, options]]),
``tolerance`` ({dtype: {"atol", "rtol", "cap"}}), ``folder`` (for the profile). Answer: ``{"onnxruntime", "available",
"asked", "models": {name: {"providers", "nodes": {provider: count}, "operators": {provider: [type]}, "unmoved",
"cases": [case]}}}``; each case lists its outputs; ``unmoved`` names outputs that do not depend on the input.
An element is within tolerance when all of it is finite and ``|a - b| <= min(atol + rtol * |ref|, cap * max|ref|)``.

Needs onnxruntime and numpy, not torch: the references were written by the exporting process.
"""

from __future__ import annotations

import glob
import json
import os
from typing import Any, Dict, Mapping

import numpy as np

# Official Linux builds from 1.29 report every session to Microsoft unless this is set before the import.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
import onnxruntime

Tolerance = Dict[str, float]
EXACT: Tolerance = {"atol": 0.0, "rtol": 0.0, "cap": 0.0}


def tolerance_of(array: Any, table: Mapping[str, Tolerance]) -> Tolerance:
    """The tolerance of an array's type: from the table for floats, none at all for integers and booleans."""
    return EXACT if array.dtype.kind in "iub" else table[array.dtype.name]


def bound(reference: Any, tolerance: Tolerance) -> Any:
    """How far from each element of ``reference`` (float64) is still right."""
    size = np.abs(reference)
    return np.minimum(tolerance["atol"] + tolerance["rtol"] * size, tolerance["cap"] * size.max(initial=0.0))


def distance(one: Any, other: Any, allowed: Any) -> dict[str, Any]:
    """How far two float64 arrays are apart: the worst error, its share of what is allowed, and how many are beyond."""
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.abs(one - other)
        within = np.isfinite(error) & (error <= allowed)
        share = np.where(error > 0, error / np.maximum(allowed, np.finfo(np.float64).tiny), 0.0)
    return {
        "worst": _number(error.max(initial=0.0)),
        "worst_share": _number(share.max(initial=0.0)),
        "beyond": int(error.size - within.sum()),
    }


def _number(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None


def output(ours: Any, torch_out: Any, again: Any, referee: Any, table: Mapping[str, Tolerance]) -> dict[str, Any]:
    """One output of one case: ONNX Runtime against PyTorch, each against the referee, PyTorch against itself."""
    answer = {
        "dtype": torch_out.dtype.name,
        "shape": list(ours.shape),
        "expected_shape": list(torch_out.shape),
        "elements": int(torch_out.size),
        "largest": _number(np.abs(torch_out.astype(np.float64)).max(initial=0.0)),
        "spread": _number(np.ptp(torch_out.astype(np.float64)) if torch_out.size else 0.0),
    }
    if answer["shape"] != answer["expected_shape"] or ours.dtype != torch_out.dtype:
        return {**answer, "mismatch": "%s %s" % (ours.dtype.name, answer["shape"])}
    wide: list[Any] = [None if one is None else one.astype(np.float64) for one in (ours, torch_out, again, referee)]
    allowed = bound(wide[1], tolerance_of(torch_out, table))
    answer["apart"] = distance(wide[0], wide[1], allowed)
    answer["torch_again"] = distance(wide[2], wide[1], allowed)
    if wide[3] is not None and wide[3].shape == wide[1].shape:
        answer["onnx_from_referee"] = distance(wide[0], wide[3], allowed)
        answer["torch_from_referee"] = distance(wide[1], wide[3], allowed)
    return answer


def case(session: Any, name: str, data: Mapping[str, Any], table: Mapping[str, Tolerance]) -> dict[str, Any]:
    """One case: run it, compare every output. A refusal to run is data."""
    # By number, not by place: an exporter drops an input that the model does not use.
    given = {node.name: data["%s/in/%s" % (name, node.name.rpartition("_")[2])] for node in session.get_inputs()}
    answer: dict[str, Any] = {"name": name, "batch": int(next(iter(given.values())).shape[0])}
    try:
        results = session.run(None, given)
    except Exception as error:  # onnxruntime raises a dozen types of its own
        return {**answer, "refused": "%s: %s" % (type(error).__name__, error)}
    answer["outputs"] = [
        output(
            np.asarray(result),
            data["%s/out/%d" % (name, n)],
            data["%s/again/%d" % (name, n)],
            data.get("%s/referee/%d" % (name, n)),
            table,
        )
        for n, result in enumerate(results)
    ]
    return answer


def unmoved(cases: list[str], data: Mapping[str, Any], table: Mapping[str, Tolerance]) -> list[int]:
    """Outputs that PyTorch answered alike, within tolerance, for every case: comparing them shows nothing."""
    count = len([name for name in data if name.startswith("%s/out/" % cases[0])])
    still = []
    for n in range(count):
        first, *others = [data["%s/out/%d" % (name, n)] for name in cases]
        allowed = bound(first.astype(np.float64), tolerance_of(first, table))
        alike = [one for one in others if one.shape == first.shape]
        moved = [distance(one.astype(np.float64), first.astype(np.float64), allowed)["beyond"] for one in alike]
        if not any(moved):
            still.append(n)
    return still


def nodes_that_ran(profile: str) -> set[tuple[str, str, str]]:
    """Name, operator and provider of every node that really ran, from ONNX Runtime's own profile."""
    with open(profile, encoding="utf-8") as stream:
        events = json.load(stream)
    return {
        (event["name"], event["args"].get("op_name", ""), event["args"]["provider"])
        for event in events
        if event.get("cat") == "Node" and event.get("args", {}).get("provider")
    }


def by_provider(ran: set[tuple[str, str, str]]) -> dict[str, Any]:
    """How many nodes each execution provider ran, and of which operators."""
    providers = sorted({provider for _, _, provider in ran})
    return {
        "nodes": {one: len([name for name, _, provider in ran if provider == one]) for one in providers},
        "operators": {one: sorted({op for _, op, provider in ran if provider == one}) for one in providers},
    }


def session_of(file: str, providers: list[Any], prefix: str) -> Any:
    """A profiled session of that file, with those providers and no others of ours."""
    options = onnxruntime.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = prefix
    return onnxruntime.InferenceSession(file, options, providers=[(name, dict(chosen)) for name, chosen in providers])


def model(made: Mapping[str, Any], args: Mapping[str, Any]) -> dict[str, Any]:
    """One exported model: where its nodes ran, and each case."""
    if not made["cases"]:
        raise ValueError("no case to compare for %s" % made["file"])
    prefix = os.path.join(args["folder"], "profile")
    try:
        session = session_of(made["file"], args["providers"], prefix)
    except Exception as error:  # as above
        return {"unloadable": "%s: %s" % (type(error).__name__, error)}
    with np.load(made["data"]) as stored:
        data = {name: stored[name] for name in stored.files}
    answer: dict[str, Any] = {
        "cases": [case(session, name, data, args["tolerance"]) for name in made["cases"]],
        "unmoved": unmoved(made["cases"], data, args["tolerance"]),
        "providers": session.get_providers(),
        **by_provider(nodes_that_ran(session.end_profiling())),
    }
    for profile in glob.glob(glob.escape(prefix) + "*"):
        os.remove(profile)
    return answer


def main(args: dict[str, Any]) -> dict[str, Any]:
    """Compare every model; see the head of this file for arguments and answer."""
    return {
        "onnxruntime": onnxruntime.__version__,
        "available": onnxruntime.get_available_providers(),
        "asked": [name for name, _ in args["providers"]],
        "models": {name: model(made, args) for name, made in args["models"].items()},
    }
