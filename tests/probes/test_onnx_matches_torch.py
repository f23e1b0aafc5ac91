"""The probe onnx-matches-torch: ok on this machine, and each finding provoked by the model that is exported."""

from __future__ import annotations

import importlib.util
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import gpucheck
from gpucheck import owner, scratch
from gpucheck.facts import Fact, Facts
from gpucheck.process import Children
from gpucheck.report import Report
from gpucheck.verdict import Result, Subject, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PROBE = Path(gpucheck.__file__).parent / "probes" / "test_onnx_matches_torch.py"
DATA = str(Path(__file__).parents[1] / "data")
INSTALLED = {"package.torch": "2", "package.onnx": "1", "package.onnxruntime": "1"}
LSTM = "onnx_models:lstm"

needs_all = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("torch", "onnx", "onnxscript", "onnxruntime")),
    reason="torch, onnx, onnxscript and onnxruntime are not all installed for this Python",
)


@dataclass
class Seeded:
    """Children whose payloads get other arguments or another environment; what was asked is kept."""

    children: Children
    args: dict[str, dict[str, Any]] = field(default_factory=dict)
    env: dict[str, dict[str, str]] = field(default_factory=dict)
    between: Callable[[dict[str, Any]], None] = lambda _: None
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def __call__(self, payload: str, args: dict[str, Any], **how: Any) -> Any:
        """Run a payload, seeded or not."""
        args = {**args, **self.args.get(payload, {})}
        self.asked.append((payload, args))
        if payload == "onnx_compare":
            self.between(args)
        if payload in self.env:
            how = {**how, "warm": False, "env": self.env[payload]}
        return self.children.run(payload, args, deadline_s=150, **how)


@contextmanager
def leaving(what: Any, **values: Any) -> Iterator[None]:
    """Set attributes for the block's time."""
    before = {name: getattr(what, name) for name in values}
    for name, value in values.items():
        setattr(what, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(what, name, value)


@dataclass
class Judge:
    """Runs the probe's function, or parts of it, as the hooks around a probe do."""

    probe: Any
    folder: Path

    def __call__(
        self, child: Any, models: tuple[str, ...] = (LSTM,), *, deep: bool = False, facts: dict[str, Any] | None = None
    ) -> Result:
        """The probe's result on those models, taken for our own; by dynamo none unless ``deep``."""
        rows = [Fact(name, value, "the test") for name, value in {**INSTALLED, **(facts or {})}.items()]
        families = [Fact("package.*", source="the test")]
        report = Report("onnx-matches-torch", "t", Subject("host", "x", "here"), essential=("legacy",), deep=deep)
        error = None
        with leaving(self.probe, MODELS=models, DYNAMO=()):
            try:
                self.probe.test_onnx_matches_torch(report, Facts([*families, *rows]), child, self.folder)
            except Exception as raised:  # noqa: BLE001 - as the hooks around a probe take it
                error = raised
        return report.result(error)

    def on(self, children: Children, provider: str) -> Result:
        """The legacy leg on one model and that provider."""
        report = Report("onnx-matches-torch", "t", Subject("host", "x", "here"))
        child = Seeded(children)
        with report.leg("legacy"):
            exported = self.probe.export(child, "legacy", (LSTM,), self.folder)
            made = self.probe.sort_out(report, "legacy", exported)
            compared = self.probe.compare(report, child, made, [[provider, {}]], self.folder)
            self.probe.judge(report, "legacy", made, *compared)
        return report.result()


@pytest.fixture
def judge(request: pytest.FixtureRequest, tmp_path: Path) -> Judge:
    """The probe, loaded from its file: nothing may import it."""
    request.config.addinivalue_line("markers", "probe: what markers.ini declares for probes")
    spec = importlib.util.spec_from_file_location("probe_onnx_matches_torch", PROBE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return Judge(module, tmp_path)


@pytest.fixture(scope="module")
def children() -> Iterator[Children]:
    """Children with torch preloaded."""
    here = owner.this_run()
    with scratch.folder(here) as folder, Children(here.run, folder, sys.executable, preload=("torch",)) as made:
        yield made


def found(result: Result) -> list[tuple[str, str]]:
    """The findings' ids and weights."""
    return [(finding.pitfall, finding.weight.value) for finding in result.findings]


def evidence(result: Result) -> str:
    """All evidence, of the result and of its findings."""
    return "\n".join([*result.evidence, *(line for finding in result.findings for line in finding.evidence)])


@needs_all
def test_this_machine_is_ok(judge: Judge, children: Children) -> None:
    """Three models by legacy, one by dynamo; cases, providers and the margin are evidence."""
    child = Seeded(children)
    models, one = judge.probe.MODELS, judge.probe.DYNAMO
    report = Report("onnx-matches-torch", "t", Subject("host", "x", "here"), essential=("legacy",))
    facts = Facts([Fact(name, value, "the test") for name, value in INSTALLED.items()])
    judge.probe.test_onnx_matches_torch(report, facts, child, judge.folder)
    result = report.result()
    assert result.verdict is Verdict.OK, result.lacking
    assert result.legs == ("legacy", "dynamo")
    assert result.measures["legacy_worst_share_of_tolerance"] < 0.1
    exported = [args["models"] for payload, args in child.asked if payload == "onnx_export"]
    assert (len(exported[0]), len(exported[1])) == (3, 1)
    assert (exported[0], exported[1]) == (models, one)
    for name in ("conv_norm", "transformer", "lstm"):
        assert f"legacy, {name}: sample (batch 2), negated (batch 2)" in evidence(result)
    assert "single (batch 1); CPUExecutionProvider ran" in evidence(result)


@needs_all
def test_deep_exports_every_model_by_both(judge: Judge, children: Children) -> None:
    """The deep level thins nothing."""
    child = Seeded(children)
    assert judge(child, deep=True).legs == ("legacy", "dynamo")
    assert [args["models"] for payload, args in child.asked if payload == "onnx_export"] == [(LSTM,), (LSTM,)]


@pytest.mark.parametrize("package", ["torch", "onnx", "onnxruntime"])
def test_without_a_package_it_does_not_apply(judge: Judge, children: Children, package: str) -> None:
    """A known fact rules it out, with the name of the extra; no child is started."""
    child = Seeded(children)
    result = judge(child, facts={f"package.{package}": None})
    assert result.verdict is Verdict.NOT_APPLICABLE
    assert result.because is not None
    assert result.because.value == f"{package} is not installed: pip install 'pytest-gpucheck[onnx]'"
    assert child.asked == []


def _module(folder: Path, name: str, body: str) -> dict[str, str]:
    """An environment in which the package ``name`` does what ``body`` says when it is imported."""
    (folder / "shadow").mkdir()
    (folder / "shadow" / f"{name}.py").write_text(body + "\n")
    return {"PYTHONPATH": str(folder / "shadow")}


@needs_all
def test_a_runtime_that_only_another_name_provides_is_looked_for(judge: Judge, children: Children) -> None:
    """onnxruntime-gpu is an onnxruntime; its absence under one name rules nothing out."""
    facts = {"package.onnxruntime": None, "package.onnxruntime-gpu": "1.31"}
    result = judge(Seeded(children), facts=facts)
    assert result.verdict is Verdict.OK


@needs_all
def test_a_runtime_that_is_not_there_after_all(judge: Judge, children: Children, tmp_path: Path) -> None:
    """The import in the judged Python is the last word."""
    body = "raise ModuleNotFoundError(\"No module named 'onnxruntime'\", name='onnxruntime')"
    env = _module(tmp_path, "onnxruntime", body)
    result = judge(Seeded(children, env={"onnx_compare": env}))
    assert result.verdict is Verdict.NOT_APPLICABLE
    assert [missed.leg for missed in result.not_run] == ["legacy"]


@needs_all
def test_ort_import_failed(judge: Judge, children: Children, tmp_path: Path) -> None:
    """Installed, and its native module cannot be loaded."""
    env = _module(tmp_path, "onnxruntime", "raise ImportError('libstdc++.so.6: version `GLIBCXX_3.4.32` not found')")
    result = judge(Seeded(children, env={"onnx_compare": env}))
    assert ("ort-import-failed", "bad") in found(result)
    assert "GLIBCXX_3.4.32" in evidence(result)


@needs_all
def test_a_missing_exporter_is_not_run(judge: Judge, children: Children, tmp_path: Path) -> None:
    """Without onnxscript the dynamo leg says so, and the legacy leg decides."""
    body = "raise ModuleNotFoundError(\"No module named 'onnxscript'\", name='onnxscript')"
    result = judge(Seeded(children, env={"onnx_export": _module(tmp_path, "onnxscript", body)}), deep=True)
    assert result.verdict is Verdict.OK
    assert result.legs == ("legacy",)
    assert [(missed.leg, "onnxscript is not installed: pip install" in missed.why) for missed in result.not_run] == [
        ("dynamo", True)
    ]


@needs_all
def test_drift_of_our_own_model_is_a_finding_too(judge: Judge, children: Children) -> None:
    """A wrong number is the machine's, whoever wrote the model."""
    seed = Seeded(children, {"onnx_export": {"path": [DATA]}})
    assert found(judge(seed, ("broken_models:branch",))) == [("onnx-drift", "bad")]


@needs_all
def test_constant_outputs_are_never_ok(judge: Judge, children: Children) -> None:
    """Zeros on both sides: our bug in a model of ours."""
    seed = Seeded(children, {"onnx_export": {"path": [DATA]}})
    assert judge(seed, ("broken_models:zeros",)).verdict is Verdict.CHECKER_ERROR


@needs_all
def test_comparing_the_export_sample_only_is_never_ok(judge: Judge, children: Children) -> None:
    """Agreement on the sample shows nothing."""

    def keep_the_sample(args: dict[str, Any]) -> None:
        for made in args["models"].values():
            made["cases"] = ["sample"]

    assert judge(Seeded(children, between=keep_the_sample)).verdict is Verdict.CHECKER_ERROR


@needs_all
def test_a_refusal_of_our_own_model_is_our_bug(judge: Judge, children: Children) -> None:
    """A model of ours that cannot be exported says nothing about the machine."""
    seed = Seeded(children, {"onnx_export": {"path": [DATA]}})
    result = judge(seed, ("broken_models:not_a_model",))
    assert result.verdict is Verdict.CHECKER_ERROR
    assert "the legacy exporter refuses broken_models:not_a_model" in result.lacking[0]


@needs_all
def test_a_refusal_in_known_words_is_a_finding(judge: Judge, children: Children) -> None:
    """Words that the knowledge base knows tell what is wrong with this machine's exporter."""
    seed = Seeded(children, {"onnx_export": {"path": [DATA]}})
    assert found(judge(seed, ("broken_models:unsupported",))) == [("onnx-operator-unsupported", "bad")]


@needs_all
def test_a_full_disk_is_not_our_bug(judge: Judge, children: Children) -> None:
    """Where the machine fails, and not the exporter, our own model's export is a finding."""
    seed = Seeded(children, {"onnx_export": {"path": [DATA]}})
    result = judge(seed, ("broken_models:disk_full", LSTM))
    assert found(result) == [("onnx-export-failed", "bad")]
    assert "No space left on device" in evidence(result)


@needs_all
@pytest.mark.parametrize(
    ("provider", "words"),
    [
        ("CUDAExecutionProvider", "Specified provider 'CUDAExecutionProvider' is not in available provider names"),
        ("AzureExecutionProvider", "the session names AzureExecutionProvider, CPUExecutionProvider"),
    ],
)
def test_onnx_provider_fallback(judge: Judge, children: Children, provider: str, words: str) -> None:
    """A provider that is not built in, and one that the session names and that runs nothing: the nodes decide."""
    result = judge.on(children, provider)
    assert found(result) == [("onnx-provider-fallback", "bad")]
    assert f"asked for {provider}; CPUExecutionProvider ran" in evidence(result)
    assert words in evidence(result)


def _restamped(args: dict[str, Any], **stamp: int) -> None:
    import onnx

    for made in args["models"].values():
        model = onnx.load(made["file"])
        model.ir_version = stamp.get("ir", model.ir_version)
        model.opset_import[0].version = stamp.get("opset", model.opset_import[0].version)
        onnx.save(model, made["file"])


@needs_all
@pytest.mark.parametrize(
    ("stamp", "pitfall"), [({"ir": 99}, "onnx-ir-version"), ({"opset": 99}, "opset-mismatch")], ids=["ir", "opset"]
)
def test_a_file_newer_than_the_runtime(judge: Judge, children: Children, stamp: dict[str, int], pitfall: str) -> None:
    """The exporter's stamp is past what this onnxruntime reads."""
    result = judge(Seeded(children, between=lambda args: _restamped(args, **stamp)))
    assert found(result) == [(pitfall, "bad")]


@needs_all
def test_a_file_that_is_damaged(judge: Judge, children: Children) -> None:
    """What was written is not what was exported."""

    def damage(args: dict[str, Any]) -> None:
        for made in args["models"].values():
            Path(made["file"]).write_bytes(b"\xff" * 100)

    assert found(judge(Seeded(children, between=damage))) == [("onnx-file-unreadable", "bad")]
