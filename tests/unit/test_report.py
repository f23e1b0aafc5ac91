"""How what a probe sees becomes its result."""

from __future__ import annotations

import pytest

from gpucheck.report import Report
from gpucheck.verdict import Subject, Unexplained, Verdict, bad, degraded


@pytest.fixture
def report() -> Report:
    """A probe's report that is empty."""
    return Report("p", "a title", Subject("host", "id", "here"))


def test_a_finding_is_taken_as_it_is(report: Report) -> None:
    """With its weight, its confidence and its parameters, as text."""
    report.take(None)
    report.take(bad("shm-full", "no room", confidence="medium", ranks=2))
    (found,) = report.findings
    assert (found.weight, found.confidence, found.params) == (Verdict.BAD, "medium", {"ranks": "2"})
    assert found.evidence == ("no room",)


def test_what_the_operator_named_fills_the_commands_of_each_finding(report: Report) -> None:
    """Also of those that the knowledge base names; what a probe says itself is nearer."""
    report.params = {"image": "mine/py:1", "call": "make()"}
    report.take(bad("own-code-raises", "x", call="make()[5]"))
    told = report.result(Unexplained("it", 'exec: "python3": executable file not found in $PATH'))
    assert [(found.pitfall, dict(found.params)) for found in told.findings] == [
        ("own-code-raises", {"image": "mine/py:1", "call": "make()[5]"}),
        ("entrypoint-not-found", {"image": "mine/py:1", "call": "make()"}),
    ]


def test_a_finding_can_be_taken_with_another_weight(report: Report) -> None:
    """What fails one way and works another hurts, and stops nobody."""
    report.take(bad("cdi-stale", "old", confidence="low"), label="CDI", weight=Verdict.DEGRADED)
    (found,) = report.findings
    assert (found.weight, found.evidence, found.confidence) == (Verdict.DEGRADED, ("CDI: old",), "low")


def test_what_an_earlier_leg_has_found_is_more_evidence(report: Report) -> None:
    """One cause, one finding: the later leg's lines are kept beside it."""
    report.take(bad("shm-too-small", "died"), label="fork")
    report.take(bad("shm-too-small", "died, too"), label="spawn")
    assert [found.evidence for found in report.findings] == [("fork: died",)]
    assert report.evidence == ["spawn: died, too"]


def test_a_defect_is_not_hidden_by_what_only_hurts(report: Report) -> None:
    """The same pitfall, heavier: it counts."""
    report.degraded("onnx-provider-fallback", "some nodes")
    report.take(bad("onnx-provider-fallback", "all nodes"), label="dynamo")
    assert report.result().verdict is Verdict.BAD


def test_findings_of_different_things_stay_apart(report: Report) -> None:
    """Without a leg's name each is a defect of its own: two GPUs that are lost, two folders that are full."""
    for index in (0, 3):
        report.bad("gpu-lost", f"GPU {index}", index=index)
    report.degraded("jit-only", "slow at first")
    assert [found.pitfall for found in report.findings] == ["gpu-lost", "gpu-lost", "jit-only"]
    assert report.findings[2] == degraded("jit-only", "slow at first")


def test_what_is_bad_is_not_lost_behind_what_is_degraded(report: Report) -> None:
    """The same pitfall again is evidence; a heavier one of it is a finding."""
    report.take_once(None)
    for make in (degraded, bad, degraded, bad):
        report.take_once(make("hidden-by-environment", make.__name__))
    assert [finding.weight for finding in report.findings] == [Verdict.DEGRADED, Verdict.BAD]
    assert report.evidence == ["degraded", "bad"]
