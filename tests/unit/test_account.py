"""No planned probe ends without a row, on the subject that it was about."""

from __future__ import annotations

from gpucheck.events import Finished, Judged, Planned, Started
from gpucheck.process import Ended, NoAnswer, Reply
from gpucheck.run.account import Account
from gpucheck.verdict import Verdict

GPU = {"kind": "gpu", "id": "GPU-1", "label": "GPU 0 NVIDIA H100", "details": {}}
HOST = {"kind": "host", "id": "m1", "label": "node7", "details": {}}
ITEMS = [{"probe": "on-gpu", "subject": "GPU-1", "item": "a"}, {"probe": "on-host", "subject": "m1", "item": "b"}]
PLAN = Planned(ITEMS, [], {"a": GPU, "b": HOST}, {"on-gpu": "It works"}, [])


def account(*heard: object) -> Account:
    """An account that has heard this."""
    made = Account()
    for event in (PLAN, *heard):
        made.hear(event)  # type: ignore[arg-type]
    return made


def reply(kind: str, **how: int) -> Reply:
    """How the probes' process ended."""
    return Reply(NoAnswer(), Ended(kind, **how))  # type: ignore[arg-type]


def test_a_lost_row_is_about_what_the_probe_was_about() -> None:
    """A GPU's failure is not filed under a host of that name; the probe that was under way broke it."""
    rows = list(account(Started("a", "on-gpu")).unaccounted(reply("exit", code=1)))
    assert [(r.subject.kind, r.subject.label) for r in rows] == [("gpu", "GPU 0 NVIDIA H100"), ("host", "node7")]
    assert [r.verdict for r in rows] == [Verdict.CHECKER_ERROR, Verdict.UNABLE]
    assert rows[0].title == "It works"


def test_a_hang_is_the_machines() -> None:
    """A probe that hung until the deadline was not able to look."""
    rows = list(account(Started("a", "on-gpu")).unaccounted(reply("deadline")))
    assert {r.verdict for r in rows} == {Verdict.UNABLE}


def test_stopping_on_purpose_owes_nothing() -> None:
    """After ``-x`` the rest was not to be run; without that word each planned probe owes its row."""
    stopped = account(Judged("a", {}), Finished(stopped=True))
    assert list(stopped.unaccounted(reply("exit", code=1))) == []
    assert [i["item"] for i in stopped.not_reached] == ["b"]
    assert len(list(account(Judged("a", {}), Finished(stopped=False)).unaccounted(reply("exit", code=0)))) == 1
