"""The adapter over a real engine that is slow or says no, now and then: in time, and in the engine's own words."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpucheck import cleanup, engine, facts, fixtures, inner, owner, scratch
from gpucheck.fixtures import Containers, Engines
from gpucheck.process import Children, Deadline, Value
from gpucheck.report import Report
from gpucheck.verdict import Subject, Unable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.fakes.door import Door

    Asking = Callable[[float], Containers]

THERE = "/gpucheck/envelope/here.py"


@pytest.fixture
def asking(door: Door, monkeypatch: pytest.MonkeyPatch) -> Iterator[Asking]:
    """``asking(seconds)``: what a probe with so much time gets as ``container``; at the end nothing may be left."""
    monkeypatch.setenv("DOCKER_HOST", door.url)
    here = owner.this_run()
    python = os.path.realpath(sys.executable)  # without torch, which takes its time
    with scratch.folder(here) as folder, Children(here.run, folder, python) as judged:
        engines = Engines(here, "auto", facts.read(("engine.sockets", "engine.clients")), judged)

        def ask(seconds: float) -> Containers:
            report = Report("a-probe", "a probe", Subject("engine", "id", "engine"))
            return Containers(lambda deadline: engines.open(report, deadline), Deadline.within(seconds), Path("/"))

        yield ask
        door.open()
        engines.close()
        assert cleanup.clean(here, folder) == []


def look(container: Containers) -> object:
    """What a first container answers: its own payload's text is there."""
    reply = container("here", {"path": THERE})
    assert isinstance(reply.answer, Value), reply
    return reply.answer.value["text"]


@pytest.mark.parametrize("request_", ["POST .*/images/create", "POST .*/start", "GET .*/volumes"])
def test_every_wait_for_the_engine_ends_with_the_probes_time(asking: Asking, door: Door, request_: str) -> None:
    """Whatever the engine is slow at, a probe with four seconds is told so when they are over, and not much later."""
    door.slow(request_, 60)
    container = asking(4)
    began = time.monotonic()
    with pytest.raises(Unable, match=r"within|time:"):
        look(container)
    assert time.monotonic() - began < 4 + engine.MARGIN_S + 2
    with pytest.raises(Unable, match="time: the probe's deadline"):
        look(container)


def test_what_is_waited_for_beyond_a_deadline_fits_into_the_belt() -> None:
    """A container that is killed, then the volumes: each is also given the moment in which its asker is ended."""
    ended_s = 2.0
    assert engine.MARGIN_S + fixtures.LEAVE_S + 2 * ended_s < inner.BELT_S


def test_one_probes_lack_of_time_is_not_the_next_ones(asking: Asking, door: Door) -> None:
    """A probe that had no time for the first container leaves the next one a try of its own."""
    door.slow("POST .*/images/create", 60)
    with pytest.raises(Unable, match="import_image"):
        look(asking(3))
    door.open()
    assert look(asking(60))


def test_what_came_of_the_first_container_is_told_again_without_another_look(asking: Asking, door: Door) -> None:
    """Its refusal is in the engine's words, is not "elsewhere", and costs later containers nothing."""
    door.refuse("POST .*/start", "OCI runtime create failed: something of runc's own: unknown")
    container = asking(60)
    with pytest.raises(Unable, match=r"a first container: .*something of runc's own"):
        look(container)
    asked = len(door.passed)
    began = time.monotonic()
    with pytest.raises(Unable, match=r"a first container: .*something of runc's own") as again:
        look(asking(60))
    assert "elsewhere" not in str(again.value)
    assert len(door.passed) == asked
    assert time.monotonic() - began < 1


def test_only_an_engine_that_lacks_what_is_here_is_elsewhere(asking: Asking, door: Door) -> None:
    """A source of a bind that is here, and is not there for the engine, says so."""
    door.refuse(
        "POST .*/containers/create", 'invalid mount config for type "bind": bind source path does not exist: /usr', 400
    )
    with pytest.raises(Unable, match=r"does not see this host's files .*gpucheck explain engine-elsewhere"):
        look(asking(60))


def test_an_engine_that_lacks_what_is_nowhere_is_not_elsewhere(asking: Asking, door: Door) -> None:
    """A source that is not here either is told in the engine's words."""
    door.refuse(
        "POST .*/containers/create",
        'invalid mount config for type "bind": bind source path does not exist: /no/such',
        400,
    )
    with pytest.raises(Unable, match=r"a first container: .*does not exist: /no/such"):
        look(asking(60))
