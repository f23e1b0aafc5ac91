"""The operator's own code: where it is found, what it may take, and what is not its fault."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpucheck.facts import Fact, Facts
from gpucheck.judgement import own_code
from gpucheck.judgement.own_code import LEAST_BYTES, OwnCode
from gpucheck.verdict import Unable

GIB = 1 << 30
OWN = OwnCode("data.sets:make", "/work/project", 3 * GIB)


def facts(available: int | None, limit: int | None = None) -> Facts:
    """What is read of memory."""
    unread = Fact("memory.available_bytes", source="/proc/meminfo", why="permission denied")
    known = Fact("memory.available_bytes", available, "/proc/meminfo") if available else unread
    return Facts([known, Fact("memory.limit_bytes", limit, "memory.max")])


@pytest.mark.parametrize(
    ("available", "limit", "cap"),
    [(40 * GIB, None, 10 * GIB), (40 * GIB, 8 * GIB, 2 * GIB), (2 * GIB, None, LEAST_BYTES)],
)
def test_the_cap_is_a_quarter_of_what_there_is(available: int, limit: int | None, cap: int) -> None:
    """Of the machine's or the cgroup's memory, whichever is less; never less than torch itself needs."""
    assert own_code.named("a:b", Path("/x"), facts(available, limit)).memory_bytes == cap


def test_unknown_memory_is_no_cap() -> None:
    """Where the memory of a machine is not known nothing is run, and the reason is said."""
    with pytest.raises(Unable, match="permission denied"):
        own_code.named("a:b", Path("/x"), facts(None))


def test_a_folder_that_is_gone() -> None:
    """What was started in a folder that is gone has no place to look."""
    with pytest.raises(Unable, match="a:b"):
        own_code.named("a:b", None, facts(GIB))


@pytest.mark.parametrize(
    ("told", "missing"),
    [
        ("ModuleNotFoundError: No module named 'data'", True),
        ("ModuleNotFoundError: No module named 'data.sets'", True),
        ("AttributeError: module 'data.sets' has no attribute 'make'", True),
        ("ModuleNotFoundError: No module named 'albumentations'", False),
        ("AttributeError: 'Sets' object has no attribute 'maker'", False),
        ("KeyError: 'make'", False),
    ],
)
def test_what_is_not_there(told: str, missing: bool) -> None:
    """The module or the factory that was named, and not one that the code itself wants, is the operator's slip."""
    assert own_code.not_found(OWN.spec, told) is missing


@pytest.mark.parametrize(
    "told", ["MemoryError: ", "RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"]
)
def test_the_cap_is_not_the_codes_fault(told: str) -> None:
    """Running into it is unable, naming the cap."""
    with pytest.raises(Unable, match=r"more than its cap of 3\.0 GiB"):
        own_code.at_loading(OWN, told)


def test_a_fault_of_the_code_has_placeholders() -> None:
    """The finding's command names folder, module and factory, and makes the call that failed."""
    told = own_code.at_loading(OWN, "KeyError: 'x'")
    assert told["folder"] == OWN.folder
    assert f"{told['module']}:{told['factory']}" == OWN.spec
    assert told["call"] == f"{OWN.spec.replace(':', '.')}()"


def test_the_call_that_fails_can_be_made_again() -> None:
    """One sample where it is known, else all; a model on its example, or on as many samples as were too many."""
    make = f"{OWN.spec.replace(':', '.')}()"
    assert OWN.reading(7) == f"{make}[7]"
    assert OWN.reading(None) == f"d = {make}; [d[i] for i in range(len(d))]"
    assert OWN.running(None) == f"m, x = {make}; x = x if isinstance(x, tuple) else (x,); m(*x)"
    assert OWN.running(5).endswith("; m(*(torch.cat([t] * 5)[:5] for t in x))")


def test_it_runs_cold_and_capped() -> None:
    """In a fresh interpreter, with a limit on what it may write to and on its time."""
    assert OWN.how["warm"] is False
    assert OWN.how["limits"] == {"data": 3 * GIB}
    assert OWN.how["deadline_s"] == own_code.TIME_S
    assert OWN.args == {"path": ["/work/project"], "cwd": "/work/project"}
