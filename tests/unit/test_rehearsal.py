"""Faults as data: each names a probe, legs and pitfalls that exist; and what a rehearsal makes of what came up."""

from __future__ import annotations

import ast
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from gpucheck import catalogue, owner, pitfalls, profile, record, rehearsal, scratch
from gpucheck.facts import Fact, Facts
from gpucheck.fakes import machine
from gpucheck.process import Children
from gpucheck.profile import UsageError
from gpucheck.rehearsal import End, exit_of, judge, stage
from gpucheck.rehearsal.faults import FAULTS, UNCHANGED, Change, Fault, Need
from gpucheck.verdict import Because, Exit, Finding, NotRun, Result, Subject, Unable, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.conftest import Plant

HOST = Subject("host", "id", "here")
FAULT = Fault("small", "a small thing", "p", ("too-small", "smaller"), Change(), (), ("a", "b"))


def result(verdict: Verdict, *found: str, **more: Any) -> Result:
    """A probe's result with these pitfalls."""
    findings = tuple(Finding(pitfall, Verdict.BAD) for pitfall in found)
    return Result("p", "title", HOST, verdict, findings=findings, **more)


@pytest.fixture(scope="module")
def texts() -> Mapping[str, str]:
    """The source of each probe, by id."""
    return {probe.id: probe.path.read_text(encoding="utf-8") for probe in catalogue.probes()}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=lambda fault: fault.id)
def test_a_fault_names_what_exists(fault: Fault, texts: Mapping[str, str]) -> None:
    """Its probe, its legs, its pitfalls, its machine and the options that it changes are all there."""
    assert fault.probe in texts
    assert set(fault.pitfalls) <= set(pitfalls.load())
    words = {node.value for node in ast.walk(ast.parse(texts[fault.probe])) if isinstance(node, ast.Constant)}
    assert set(fault.legs) <= words
    assert set(fault.change.options) <= set(profile.OPTIONS)
    assert not fault.change.machine or fault.change.machine in machine.names()
    for args in (*fault.change.args.values(), *fault.change.inside.values()):
        for spec in [args["dataset"]] if "dataset" in args else args["models"]:
            module, _, factory = spec.partition(":")
            source = Path(pitfalls.HERE.parent, "payload", f"{module}.py").read_text(encoding="utf-8")
            assert f"def {factory}(" in source


def test_an_unknown_fault_is_a_usage_error_that_names_the_known_ones() -> None:
    """What can be rehearsed stands in the message."""
    with pytest.raises(UsageError, match=r"no fault is called shm; those to rehearse are .*shm-too-small"):
        rehearsal.named(["shm-too-small", "shm"])


def test_a_fault_is_rehearsed_once() -> None:
    """Named twice, it is one fault."""
    assert [fault.id for fault in rehearsal.named(["hang", "oom-kill", "hang"])] == ["hang", "oom-kill"]


def test_options_of_a_fault_say_where_they_come_from() -> None:
    """The level is at least the default one, and an expectation is added to the profile's own."""
    given = profile.resolve({"level": "quick", "shm": "1g"})
    changed = FAULTS["shm-too-small"].options(given)
    assert (changed["level"], changed["shm"]) == ("default", ("64m",))
    assert changed.settings["shm"].origin == "the rehearsal of shm-too-small"
    expecting = FAULTS["gpu-missing"].options(profile.Options(given.settings, profile.Profile(expect={"shm": "1g"})))
    assert expecting.profile.expect == {"shm": "1g", "gpus": 1000}
    assert (given["level"], given["shm"]) == ("quick", ("1g",))


def test_a_deep_level_stays() -> None:
    """A fault asks for no less than the operator did."""
    assert FAULTS["hang"].options(profile.resolve({"level": "deep"}))["level"] == "deep"


def test_a_payload_with_data_of_its_own_is_left_alone() -> None:
    """Only what a probe leaves open is replaced: a leg about many small samples, or the user's model, stays."""
    change = Change(args={"loader_epochs": {"dataset": "bad:one"}}, inside={"loader_epochs": {"batch": 1}})
    assert change.child_args("loader_epochs", {"workers": 2}) == {"workers": 2, "dataset": "bad:one"}
    assert change.container_args("loader_epochs", {}) == {"dataset": "bad:one", "batch": 1}
    assert change.child_args("loader_epochs", {"dataset": "good:one"}) == {"dataset": "good:one"}
    assert change.child_args("loader_epochs", {"path": ["."]}) == {"path": ["."]}
    assert change.child_args("another", None) is None


def test_limits_of_the_probe_stay() -> None:
    """A leg that sets a limit itself keeps it."""
    change = Change(limits={"x": {"nofile": 64}})
    assert change.child_how("x", {"warm": False}) == {"warm": False, "limits": {"nofile": 64}}
    assert change.child_how("x", {"limits": {"nofile": 9}}) == {"limits": {"nofile": 9}}
    assert change.child_how("y", {}) == {}


def test_nothing_is_changed_where_nothing_is_rehearsed() -> None:
    """The null change hands everything on."""
    assert rehearsal.change_of(None) is UNCHANGED
    assert UNCHANGED.child_args("loader_epochs", {"a": 1}) == {"a": 1}
    assert UNCHANGED.child_how("loader_epochs", {"warm": True}) == {"warm": True}
    assert UNCHANGED.container_args("loader_epochs", {}) == {}


@pytest.mark.parametrize("pitfall", ["too-small", "smaller"])
def test_a_fault_that_was_brought_up(pitfall: str) -> None:
    """One of its pitfalls among all findings is enough."""
    ended = judge(FAULT, [result(Verdict.OK), result(Verdict.BAD, "other", pitfall, legs=("a",))])
    assert (ended.end, ended.why) == (End.BROUGHT_UP, (pitfall,))


@pytest.mark.parametrize(
    "seen",
    [
        pytest.param(result(Verdict.OK, legs=("a",)), id="the probe says ok"),
        pytest.param(result(Verdict.BAD, "other", legs=("b",)), id="it finds something else"),
    ],
)
def test_a_fault_that_was_missed(seen: Result) -> None:
    """A probe that looked and did not find it is a defect of ours, in words that say what it said instead."""
    ended = judge(FAULT, [seen])
    assert ended.end is End.MISSED
    assert seen.verdict.value in str(ended)
    assert "too-small or smaller" in str(ended)


@pytest.mark.parametrize(
    ("seen", "why"),
    [
        ([], "its probe did not run"),
        ([result(Verdict.UNABLE, lacking=("an engine",))], "an engine"),
        ([result(Verdict.NOT_APPLICABLE, because=Because("f", "no torch", "s"))], "no torch"),
        ([result(Verdict.OK, legs=("c",), not_run=(NotRun("a", "refused"),))], "a: refused"),
    ],
)
def test_a_fault_that_could_not_be_rehearsed(seen: list[Result], why: str) -> None:
    """Where the probe did not look, or not in the legs that show it, nothing is said about the probe."""
    ended = judge(FAULT, seen)
    assert (ended.end, ended.why) == (End.NOT_REHEARSED, (why,))


def test_the_status_of_a_rehearsal() -> None:
    """1 when every fault turned its probe red, 10 when one did not, or was not even tried."""
    red = rehearsal.Outcome(FAULT, End.BROUGHT_UP)
    faults = [FAULT, FAULT]
    assert exit_of(faults, [red, red]) is Exit.BAD
    for other in (End.NOT_REHEARSED, End.MISSED):
        assert exit_of(faults, [red, rehearsal.Outcome(FAULT, other)]) is Exit.UNDECIDED
    assert exit_of(faults, [red]) is exit_of(faults, []) is Exit.UNDECIDED


@pytest.mark.parametrize(
    ("need", "facts", "why"),
    [
        (Need.TORCH, {"package.torch": None}, "torch not installed"),
        (Need.CUDA_TORCH, {"package.torch": "2.9", "torch.cuda_build": "none"}, "this one is for the CPU alone"),
        (Need.CUDA_TORCH, {"package.torch": None}, "torch is not installed"),
        (Need.ONNX, {"package.onnx": None}, "onnx not installed"),
        (Need.ONNX, {"package.onnxruntime": None, "package.onnxruntime-gpu": None}, "no onnxruntime installed"),
    ],
)
def test_what_is_known_to_be_absent_stops_a_rehearsal(need: Need, facts: dict[str, Any], why: str) -> None:
    """Each need that is not met is named with its reason."""
    fault = Fault("f", "t", "p", (), Change(), (need,))
    known = Facts(Fact(name, value, "the test") for name, value in facts.items())
    assert stage.lacking(fault, known, "auto") == [f"{need}: {why}"]


def test_what_nobody_read_does_not_stop_a_rehearsal() -> None:
    """An unknown fact is no absence."""
    fault = Fault("f", "t", "p", (), Change(), (Need.TORCH, Need.CUDA_TORCH, Need.ONNX))
    assert stage.lacking(fault, Facts(), "auto") == []


def test_an_engine_that_is_switched_off_is_lacking() -> None:
    """The operator's word counts."""
    fault = Fault("f", "t", "p", (), Change(), (Need.ENGINE,))
    (line,) = stage.lacking(fault, Facts(), "none")
    assert line.startswith("a container engine: ")


def test_what_is_lacking_is_named_once(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the engine is installed and stopped, too."""
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    plant.file("/usr/bin/dockerd")
    fault = Fault("f", "t", "p", (), Change(), (Need.ENGINE,))
    (line,) = stage.lacking(fault, plant.facts("engine.sockets", "engine.clients"), "docker")
    assert line.startswith("a container engine: dockerd is installed")


def test_without_a_fault_the_stage_is_this_machine() -> None:
    """Commands and environment stay as they are."""
    assert stage.Stage().argv(["true"]) == ["true"]
    assert dict(stage.Stage().env) == {}
    made = stage.set_up(FAULTS["interface-missing"], SimpleNamespace(), Path("/"), "python")  # type: ignore[arg-type]
    assert (made.argv(["true"]), dict(made.env)) == (["true"], {"NCCL_SOCKET_IFNAME": "nic9"})


def test_what_a_machine_is_played_with_is_looked_for_in_a_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder of PATH may lie on a server that is gone. What is not found is named."""
    (tmp_path / "sh").symlink_to("/bin/sh")
    (tmp_path / "unshare").symlink_to("/usr/bin/unshare")
    monkeypatch.setenv("PATH", str(tmp_path))
    here = owner.this_run()
    fault = next(fault for fault in FAULTS.values() if fault.change.machine)
    with (
        scratch.folder(here) as folder,
        Children(here.run, folder) as children,
        pytest.raises(Unable, match=r"no gcc$"),
    ):
        stage.set_up(fault, children, folder, "python")


def test_rehearsals_do_not_push_out_records_of_the_machine(tmp_path: Path) -> None:
    """Each kind has its own newest records."""
    names = [f"01J{n}.jsonl" for n in range(3)] + [f"rehearsal-01J{n}.jsonl" for n in range(5, 8)]
    for name in names:
        (tmp_path / name).touch()
    record.prune(tmp_path, keep=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == [names[1], names[2], names[4], names[5]]
