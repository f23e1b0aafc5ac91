"""The payloads that export models and compare them: run for real; every fault is made by the model that is exported."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gpucheck import owner, scratch
from gpucheck.judgement import onnx_drift, tolerance
from gpucheck.process import Children, Failure, Value

if TYPE_CHECKING:
    from collections.abc import Iterator

DATA = str(Path(__file__).parents[1] / "data")
OURS = ("onnx_models:conv_norm", "onnx_models:transformer", "onnx_models:lstm")
CPU = "CPUExecutionProvider"

pytestmark = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("torch", "onnx", "onnxscript", "onnxruntime")),
    reason="torch, onnx, onnxscript and onnxruntime are not all installed for this Python",
)


@pytest.fixture(scope="module")
def children() -> Iterator[Children]:
    """Children with torch preloaded."""
    here = owner.this_run()
    with scratch.folder(here) as folder, Children(here.run, folder, sys.executable, preload=("torch",)) as made:
        yield made


def value(children: Children, payload: str, args: dict[str, Any], **how: Any) -> Any:
    """What the payload returned."""
    reply = children.run(payload, args, deadline_s=150, **how)
    assert isinstance(reply.answer, Value), (reply.answer, reply.ended, reply.errors)
    return reply.answer.value


def export(children: Children, folder: Path, *models: str, exporter: str = "legacy") -> dict[str, Any]:
    """The exports, by model; names without a module are of `tests/data/broken_models.py`."""
    specs = [model if ":" in model else f"broken_models:{model}" for model in models]
    args = {"exporter": exporter, "folder": str(folder), "models": specs, "path": [DATA]}
    made: dict[str, Any] = value(children, "onnx_export", args)["models"]
    return made


def compare(children: Children, folder: Path, made: dict[str, Any], provider: str = CPU) -> dict[str, Any]:
    """The comparison of exports on that provider."""
    args = {"models": made, "folder": str(folder), "tolerance": tolerance.as_args(), "providers": [[provider, {}]]}
    compared: dict[str, Any] = value(children, "onnx_compare", args, warm=False)
    return compared


def drift(children: Children, folder: Path, model: str, exporter: str = "legacy") -> list[str]:
    """What is wrong with one model, in lines."""
    made = export(children, folder, model, exporter=exporter)
    compared = compare(children, folder, made)
    ((name, one),) = compared["models"].items()
    return onnx_drift.drift(name, one)


@pytest.fixture(scope="module")
def ours(children: Children, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Our three models through the tracing exporter: exports, comparison and what was in the folder after each."""
    folder = tmp_path_factory.mktemp("onnx")
    made = export(children, folder, *OURS)
    files = sorted(os.listdir(folder))
    compared = compare(children, folder, made)
    return {"made": made, "compared": compared, "exported": files, "left": sorted(os.listdir(folder))}


def test_our_models_match(ours: dict[str, Any]) -> None:
    """All three agree on every input, with a wide margin, and the comparison means something."""
    for name, model in ours["compared"]["models"].items():
        assert onnx_drift.drift(name, model) == []
        assert onnx_drift.slips(model) == []
    assert onnx_drift.worst_share(ours["compared"]["models"]) < 0.1


def test_inputs_differ_from_the_export_sample(ours: dict[str, Any]) -> None:
    """In sign, in scale and in batch size, and 1 is one of the sizes."""
    import numpy as np

    for made in ours["made"].values():
        with np.load(made["data"]) as data:
            given = {case: data[f"{case}/in/0"] for case in made["cases"]}
        assert {case: len(array) for case, array in given.items()} == {
            "sample": 2, "negated": 2, "larger": 2, "smaller": 5, "single": 1,
        }  # fmt: skip
        assert (given["negated"] == -given["sample"]).all()
        assert given["larger"].std() > 2 * given["sample"].std()
        assert given["smaller"].std() < 0.5 * given["sample"].std()


def test_outputs_of_our_models_are_of_order_one_and_vary(ours: dict[str, Any]) -> None:
    """Neither tiny, where an absolute tolerance would pass anything, nor constant."""
    for name, model in ours["compared"]["models"].items():
        for one in onnx_drift.outputs(name, model):
            assert 0.1 < one.measured["largest"] < 30
            assert one.measured["spread"] > 0.1


def test_every_node_is_accounted_for_by_the_profile(ours: dict[str, Any]) -> None:
    """Which provider ran how many nodes comes from a profile of the run, and the profile is removed."""
    for model in ours["compared"]["models"].values():
        assert set(model["nodes"]) == {CPU}
        assert model["nodes"][CPU] >= 5
        assert onnx_drift.fallback(CPU, model) is None
    assert ours["left"] == ours["exported"]


def test_an_export_is_one_file_with_its_references(ours: dict[str, Any]) -> None:
    """No weights beside the file, no cache, nothing else."""
    names = [spec.partition(":")[2] for spec in OURS]
    assert ours["exported"] == sorted(f"{name}-legacy.{kind}" for name in names for kind in ("onnx", "npz"))


def test_tracing_our_models_warns_of_nothing(ours: dict[str, Any]) -> None:
    """A tracer's warning about a model of ours would mean that something is frozen in it."""
    assert [made["tracer_warnings"] for made in ours["made"].values()] == [[], [], []]
    assert [made["training"] for made in ours["made"].values()] == [[], [], []]


def test_dynamo_exports_match_and_stay_in_their_folder(children: Children, tmp_path: Path) -> None:
    """All three by the dynamo exporter: weights inside the file, inductor's folder in ours, no temporary file."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    args = {"exporter": "dynamo", "folder": str(tmp_path), "models": OURS}
    env = {"TMPDIR": str(temporary), "TORCHINDUCTOR_CACHE_DIR": None}
    made = value(children, "onnx_export", args, env=env)["models"]
    compared = compare(children, tmp_path, made)
    assert [onnx_drift.drift(name, one) for name, one in compared["models"].items()] == [[], [], []]
    assert list(temporary.iterdir()) == []
    assert not list(tmp_path.glob("*.data"))


@pytest.mark.parametrize(
    ("model", "case"), [("branch", "negated"), ("frozen_scale", "larger")], ids=["branch", "number"]
)
def test_what_the_tracer_freezes_shows_on_other_inputs_only(
    children: Children, tmp_path: Path, model: str, case: str
) -> None:
    """The export sample agrees; an input of another sign or scale does not, and the ONNX side is the wrong one."""
    lines = drift(children, tmp_path, model)
    assert any(f"{case} input" in line for line in lines)
    assert not any("sample input" in line for line in lines)
    assert "float64 referee: ONNX Runtime's answer is the wrong one" in lines
    assert "on the export sample itself they agree: something was frozen when it was exported" in lines


def test_small_outputs_are_held_to_their_own_size(children: Children, tmp_path: Path) -> None:
    """Outputs of 1e-6 are wrong by less than the absolute tolerance, and found: a share of the largest is the cap."""
    made = export(children, tmp_path, "tiny")
    ((name, model),) = compare(children, tmp_path, made)["models"].items()
    wrong = [one for one in onnx_drift.outputs(name, model) if not one.right]
    assert {one.case for one in wrong} == {"larger", "smaller", "single"}
    assert all(one.measured["apart"]["worst"] < tolerance.TOLERANCES["float32"].atol for one in wrong)


def test_the_tracers_warning_is_kept(children: Children, tmp_path: Path) -> None:
    """It is the evidence for what was frozen."""
    (made,) = export(children, tmp_path, "branch").values()
    assert "Converting a tensor to a Python boolean" in made["tracer_warnings"][0]


def test_a_frozen_batch_size_shows_on_another_batch(children: Children, tmp_path: Path) -> None:
    """A refusal to run, or a shape that broadcasting made, is drift too."""
    lines = drift(children, tmp_path, "frozen_batch")
    assert any("smaller input (batch 5)" in line for line in lines)
    single = "single input (batch 1): ONNX Runtime gives float32 [2, 8], PyTorch float32 [1, 8]"
    assert any(single in line for line in lines)


@pytest.mark.parametrize("exporter", ["legacy", "dynamo"])
def test_batch_norm_exported_in_training_mode(children: Children, tmp_path: Path, exporter: str) -> None:
    """Both exporters use the running statistics while PyTorch uses the batch's; the training modules are named."""
    made = export(children, tmp_path, "training", exporter=exporter)
    ((name, model),) = compare(children, tmp_path, made)["models"].items()
    assert "float64 referee: ONNX Runtime's answer is the wrong one" in onnx_drift.drift(name, model)
    assert "1" in made[name]["training"]


def test_a_model_that_is_random_is_said_to_be_random(children: Children, tmp_path: Path) -> None:
    """No side is blamed when PyTorch does not agree with itself."""
    lines = drift(children, tmp_path, "dropout")
    assert any("PyTorch itself answers differently" in line for line in lines)
    assert not any("referee" in line for line in lines)


@pytest.mark.parametrize("model", ["not_a_number", "nothing_but_nan", "infinite"])
def test_what_is_not_finite_never_agrees(children: Children, tmp_path: Path, model: str) -> None:
    """NaN on both sides, or the same infinity, is not agreement, and does not widen the tolerance of the rest."""
    lines = drift(children, tmp_path, model)
    assert any("past tolerance" in line for line in lines)


def test_constant_outputs_are_no_evidence(children: Children, tmp_path: Path) -> None:
    """Zeros agree with zeros; that is a slip and not an ok."""
    (model,) = compare(children, tmp_path, export(children, tmp_path, "zeros"))["models"].values()
    assert onnx_drift.slips(model) == ["output 0 is the same whatever the input"]


@pytest.mark.parametrize("exporter", ["legacy", "dynamo"])
def test_healthy_models_of_other_kinds_match(children: Children, tmp_path: Path, exporter: str) -> None:
    """float16; integer inputs and outputs and several of them; `*args`, and an input that is not used."""
    made = export(children, tmp_path, "half", "embedded", "ignores_an_input", exporter=exporter)
    models = compare(children, tmp_path, made)["models"]
    assert len(models) == 3
    for name, one in models.items():
        assert onnx_drift.drift(name, one) == []
        assert onnx_drift.slips(one) == []


@pytest.mark.parametrize("exporter", ["legacy", "dynamo"])
def test_an_exporter_that_refuses(children: Children, tmp_path: Path, exporter: str) -> None:
    """A model that no exporter takes is a refusal, in the exporter's words without terminal colours."""
    (made,) = export(children, tmp_path, "unsupported", exporter=exporter).values()
    assert made["fault"]["kind"] == "refused"
    assert "linalg" in made["fault"]["told"]
    assert "\x1b" not in made["fault"]["told"]


def test_one_models_fault_does_not_end_the_others(children: Children, tmp_path: Path) -> None:
    """A failing machine is told from a refusing exporter, and the next model is exported."""
    made = export(children, tmp_path, "disk_full", "half")
    assert made["broken_models:disk_full"]["fault"]["kind"] == "environment"
    assert "file" in made["broken_models:half"]


def test_a_missing_exporter_is_named(children: Children, tmp_path: Path) -> None:
    """Without onnxscript the dynamo exporter is missing and the tracing one is not."""
    hidden = tmp_path / "hide"
    hidden.mkdir()
    missing_import = "raise ModuleNotFoundError(\"No module named 'onnxscript'\", name='onnxscript')\n"
    (hidden / "onnxscript.py").write_text(missing_import)
    missing = {}
    for exporter in ("legacy", "dynamo"):
        args = {"exporter": exporter, "folder": str(tmp_path), "models": ()}
        missing[exporter] = value(children, "onnx_export", args, warm=False, env={"PYTHONPATH": str(hidden)})["missing"]
    assert missing == {"legacy": None, "dynamo": "onnxscript"}


@pytest.mark.parametrize("asked", ["CUDAExecutionProvider", "AzureExecutionProvider"])
def test_a_provider_that_runs_nothing(children: Children, tmp_path: Path, asked: str) -> None:
    """CUDA that is not built in, and a provider that the session names and that runs no node: the CPU did the work."""
    made = export(children, tmp_path, "onnx_models:lstm")
    (model,) = compare(children, tmp_path, made, asked)["models"].values()
    told = onnx_drift.fallback(asked, model)
    assert told is not None
    assert f"asked for {asked}; {CPU} ran" in told


def test_an_export_that_onnxruntime_cannot_load(children: Children, tmp_path: Path) -> None:
    """A damaged file is said to be unloadable, in ONNX Runtime's words."""
    made = export(children, tmp_path, "onnx_models:lstm")
    (one,) = made.values()
    Path(one["file"]).write_bytes(b"not an onnx file")
    (model,) = compare(children, tmp_path, made)["models"].values()
    assert "ONNXRuntimeError" in model["unloadable"]


def test_nothing_to_compare_is_an_error_of_ours(children: Children, tmp_path: Path) -> None:
    """A comparison without cases cannot return."""
    made = export(children, tmp_path, "onnx_models:lstm")
    (one,) = made.values()
    args = {"models": {"lstm": {**one, "cases": []}}, "folder": str(tmp_path), "tolerance": tolerance.as_args()}
    reply = children.run("onnx_compare", {**args, "providers": [[CPU, {}]]}, deadline_s=60, warm=False)
    assert isinstance(reply.answer, Failure)
    assert reply.answer.type == "ValueError"


def test_comparing_writes_nothing_outside_its_folder(children: Children, tmp_path: Path) -> None:
    """ONNX Runtime's telemetry (a device id, a database, a session file) is off."""
    places = {name: tmp_path / name for name in ("HOME", "XDG_CACHE_HOME", "TMPDIR")}
    for place in places.values():
        place.mkdir()
    made = export(children, tmp_path, "onnx_models:lstm")
    args = {"models": made, "folder": str(tmp_path), "tolerance": tolerance.as_args(), "providers": [[CPU, {}]]}
    env = {name: str(place) for name, place in places.items()} | {"ORT_DISABLE_TELEMETRY": None}
    value(children, "onnx_compare", args, warm=False, env=env)
    assert [path for place in places.values() for path in place.rglob("*")] == []
