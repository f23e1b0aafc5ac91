"""Words of a failure against the knowledge base: a finding as sure as the words and facts are, or none."""

from __future__ import annotations

import pytest

from gpucheck.diagnose.attribution import cause_of
from gpucheck.facts import Fact, Facts
from gpucheck.legs.replies import value_of
from gpucheck.process import Ended, Failure, NoAnswer, Reply
from gpucheck.report import Report
from gpucheck.verdict import Failed, Subject, Unable, Unexplained, Verdict

NO_IMAGE = "RuntimeError: CUDA error: no kernel image is available for execution on the device"
NO_SPACE = "OSError: [Errno 28] No space left on device"
KILLED = "RuntimeError: DataLoader worker (pid 77) is killed by signal: Killed."
NONSENSE = "ValueError: the frobnicator is out of oil"


def report(**facts: object) -> Report:
    """An empty report on a machine with these facts (``a__b`` is ``a.b``)."""
    known = Facts(Fact(name.replace("__", "."), value, "the test") for name, value in facts.items())
    return Report("p", "a title", Subject("host", "id", "here"), essential=("leg",), facts=lambda _: known)


def failing(error: Exception, seen: Report) -> Report:
    """The report after its only leg met that."""
    with seen.leg("leg"):
        fail(error)
    return seen


def fail(error: Exception) -> None:
    """Raise it."""
    raise error


@pytest.mark.parametrize("kind", [Unexplained, Failed])
def test_known_words_are_a_finding(kind: type[Unexplained | Failed]) -> None:
    """What explain would say of the text is the finding, with the text's own line as evidence."""
    result = failing(kind("the payload", NO_IMAGE), report()).result()
    (finding,) = result.findings
    assert (finding.pitfall, result.verdict) == ("no-kernel-image", Verdict.BAD)
    assert finding.evidence[0] == "the payload"
    assert "no kernel image is available" in finding.evidence[1]
    assert result.legs == ("leg",)


def test_a_fact_makes_it_sure_and_stands_in_the_evidence() -> None:
    """Confidence is that of the diagnosis: higher, and said why, where a fact confirms."""
    unsure = cause_of(Unexplained("w", NO_SPACE), None)
    sure = cause_of(Unexplained("w", NO_SPACE), lambda _: Facts([Fact("disk.root_free_bytes", 0, "statvfs")]))
    assert unsure is not None
    assert sure is not None
    assert (unsure.pitfall, unsure.confidence) == ("disk-full", "medium")
    assert (sure.pitfall, sure.confidence) == ("disk-full", "high")
    assert any(line.startswith("confirmed by: disk.root_free_bytes = 0") for line in sure.evidence)


def test_only_a_fact_may_be_asked_for() -> None:
    """With ``by_fact`` words alone name nothing, however clear they are."""
    told = Unexplained("w", KILLED, by_fact=True)
    assert cause_of(told, lambda _: Facts()) is None
    found = cause_of(told, lambda _: Facts([Fact("memory.oom_kills", 2, "memory.events")]))
    assert found is not None
    assert found.pitfall == "host-oom"


def test_what_is_known_already_is_no_answer() -> None:
    """A pitfall that only says again that something stopped explains nothing."""
    told = "RuntimeError: Caught KeyError in DataLoader worker process 0."
    assert cause_of(Unexplained("w", told), None) is not None
    assert cause_of(Unexplained("w", told, known=("dataloader-worker-died",)), None) is None


def test_unknown_words_say_so_and_are_shown() -> None:
    """What matches nothing is no finding: it could not be decided, and the evidence stands there."""
    result = failing(Unexplained("a payload", NONSENSE, "line one", "line two"), report()).result()
    assert (result.verdict, result.findings) == (Verdict.UNABLE, ())
    assert "nothing that is known here explains it" in result.lacking[0]
    assert result.lacking[1:] == ("leg: line one", "leg: line two")


def test_a_payload_that_fails_in_unknown_words_is_our_bug() -> None:
    """Nothing known explains it, so it is a mistake of ours and says nothing about the machine."""
    seen = report()
    with pytest.raises(Failed) as raised:
        failing(Failed(f"a payload: {NONSENSE}", NONSENSE), seen)
    result = seen.result(raised.value)
    assert result.verdict is Verdict.CHECKER_ERROR
    assert NONSENSE in result.lacking[0]
    assert "nothing that is known here explains it" in result.lacking[0]


def test_outside_a_leg_it_is_explained_too() -> None:
    """An exception that ends the whole probe is looked up like one that ends a leg."""
    seen = Report("p", "a title", Subject("host", "id", "here"))
    result = seen.result(Failed("a payload", NO_IMAGE))
    assert [finding.pitfall for finding in result.findings] == ["no-kernel-image"]


def test_the_same_cause_twice_is_one_finding() -> None:
    """A second leg that fails alike is more evidence."""
    seen = report()
    for what in ("first", "second"):
        failing(Unexplained(what, NO_IMAGE), seen)
    assert [finding.evidence[0] for finding in seen.findings] == ["first"]
    assert "second" in seen.evidence


@pytest.mark.parametrize(
    ("reply", "pitfall"),
    [
        (Reply(Failure("RuntimeError", NO_IMAGE, "Traceback"), Ended("exit", 0)), "no-kernel-image"),
        (Reply(NoAnswer(), Ended("exit", 1), errors=f"Traceback\n{NO_IMAGE}\n"), "no-kernel-image"),
    ],
)
def test_a_payload_that_failed_carries_its_words(reply: Reply, pitfall: str) -> None:
    """The one way from a reply to its value: what the payload, or its standard error, said is looked up."""
    with pytest.raises((Failed, Unexplained)) as raised:
        value_of(reply, "a payload")
    assert isinstance(raised.value, (Failed, Unexplained))
    found = cause_of(raised.value, None)
    assert found is not None
    assert found.pitfall == pitfall


def test_a_payload_out_of_memory_or_time_is_not_looked_up() -> None:
    """What the machine did to it is known without words."""
    for reply in (
        Reply(NoAnswer(), Ended("oom")),
        Reply(NoAnswer(), Ended("deadline")),
        Reply(Failure("MemoryError", "", ""), Ended("exit", 0)),
    ):
        with pytest.raises(Unable) as raised:
            value_of(reply, "a payload")
        assert not isinstance(raised.value, Unexplained)
