"""Facts as data: known, unknown, absent; how readers fail; the child that prints them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from gpucheck import facts
from gpucheck.facts import Expectation, Fact, Facts, expect
from gpucheck.facts.catalogue import all_names
from gpucheck.facts.fact import Unknown
from gpucheck.facts.reading import Reading, group, run
from gpucheck.facts.tree import Tree

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

# What may not be asked of this machine within the time that a quick level has.
IN_CHILDREN = ("nvml.", "package.", "python.version", "torch.", "fabric.state")


def tree_of(root: Path) -> Tree:
    """A place to read, with an empty environment."""
    return Tree(root, {}, sys.executable, time.monotonic() + 5.0)


def read_with(reader: Callable[[Tree], Reading], root: Path) -> Facts:
    """What becomes of one reader's answer."""
    return run(tree_of(root), [group({"a.b": reader})], None)


def test_a_name_that_nobody_read_is_unknown() -> None:
    """Asking for a fact never fails, and never gives a value that nobody read."""
    fact = Facts()["shm.total_bytes"]
    assert (fact.value, fact.why, fact.is_known) == (None, "not read", False)


def test_a_family_that_was_read_knows_what_is_absent() -> None:
    """A package that is not in the list of all packages is known not to be installed."""
    found = Facts([Fact("package.*", 1, "pip"), Fact("package.torch", "2.13.0", "pip")])
    assert found.known("package.torch") == "2.13.0"
    assert found["package.onnx"].is_known
    assert found.known("package.onnx") is None


def test_a_family_that_could_not_be_read_knows_nothing() -> None:
    """Where the list of packages is unknown, so is every package."""
    found = Facts([Fact("package.*", None, "python", "hang")])
    assert found["package.onnx"].why == "hang"


def test_a_variable_that_is_not_on_the_list_is_unknown_not_unset() -> None:
    """That a variable may not be read does not say that it is not set."""
    found = Facts([Fact("env.*", 0, "environment")])
    assert found["env.NCCL_DEBUG"].is_known
    assert not found["env.HF_TOKEN"].is_known


def test_values_are_in_no_repr() -> None:
    """What pytest prints of a fact or of all facts holds names, never values."""
    fact = Fact("env.NCCL_DEBUG", "planted", "environment")
    assert "planted" not in repr(fact)
    assert "planted" not in repr(Facts([fact]))
    assert "shm.total_bytes" in repr(Facts([Fact("shm.total_bytes", why="no /dev/shm")]))


def test_facts_survive_json() -> None:
    """What a child prints reads back as the same facts, reasons and failures."""
    before = Facts([Fact("a.b", [1, None], "x"), Fact("a.c", None, "y", "why not")], ["a.d: broke"])
    after = Facts.from_json(json.loads(json.dumps(before.to_json())))
    assert list(after.values()) == list(before.values())
    assert after.failures == ("a.d: broke",)


@pytest.mark.parametrize("document", [{}, {"facts": []}, {"facts": {"a.b": None}, "failures": []}])
def test_a_document_that_holds_no_facts_is_refused(document: dict[str, Any]) -> None:
    """Something else than facts is an error, not an empty set of facts."""
    with pytest.raises(ValueError, match="not a document of facts"):
        Facts.from_json(document)


def test_a_later_fact_replaces_an_earlier_one() -> None:
    """What another part of a run learns is added to the facts, which themselves do not change."""
    before = Facts([Fact("engine.kind", why="not asked")])
    after = before.plus([Fact("engine.kind", "docker", "the engine")])
    assert after.known("engine.kind") == "docker"
    assert before.known("engine.kind") is None


def test_a_missing_file_makes_an_unknown_fact_with_its_path(tmp_path: Path) -> None:
    """An unreadable source costs its fact, and the fact says which file and why."""
    found = read_with(lambda tree: Reading(tree.text("/proc/meminfo"), "x"), tmp_path)
    assert found["a.b"].why == "No such file or directory"
    assert found["a.b"].source == "/proc/meminfo"
    assert not found.failures


def test_nonsense_in_a_file_makes_an_unknown_fact(tmp_path: Path) -> None:
    """A text that cannot be understood is no value."""
    found = read_with(lambda _: Reading(int("many"), "x"), tmp_path)
    assert str(found["a.b"].why).startswith("not understood: invalid literal")
    assert not found.failures


def test_a_reader_that_knows_why_says_so(tmp_path: Path) -> None:
    """A reader's own reason is kept."""

    def reader(_: Tree) -> Reading:
        raise Unknown("/sys", "not mounted")

    assert read_with(reader, tmp_path)["a.b"] == Fact("a.b", None, "/sys", "not mounted")


def test_a_bug_in_a_reader_is_unknown_and_is_listed(tmp_path: Path) -> None:
    """A reader of ours that breaks costs its fact alone, and the run learns that we have a bug."""
    found = read_with(lambda tree: Reading(tree.environ["x"], ""), tmp_path)
    assert found["a.b"].why == "reader failed: KeyError: 'x'"
    assert found.failures == ("a.b: reader failed: KeyError: 'x'",)


def test_a_reader_that_waits_for_ever_costs_its_own_fact_and_later_ones(tmp_path: Path) -> None:
    """A reader that hangs in our own process, behind a link to a dead file server, say, leaves what was read before."""
    os.mkfifo(tmp_path / "hangs")
    readers = {"a.before": lambda _: Reading(1, "x"), "a.hangs": lambda tree: Reading(tree.text("/hangs"), "x")}
    begun = time.monotonic()
    found = run(Tree(tmp_path, {}, "", begun + 0.2), [group({**readers, "a.after": readers["a.before"]})], None)
    assert time.monotonic() - begun < 5
    assert found.known("a.before") == 1
    assert [found[name].why for name in ("a.hangs", "a.after")] == ["hang: not read in time, as a.hangs"] * 2
    (tmp_path / "hangs").write_text("")  # let it go


def test_only_the_wanted_names_are_read() -> None:
    """Asking for one fact does not read the others."""
    assert list(facts.read(["cpu.count"])) == ["cpu.count"]


def test_expectations_are_put_before_what_was_found() -> None:
    """What the operator expects stands first, with its count, and the facts given stay as they were."""
    before = Facts([Fact("gpu.expected", [{"who": "driver", "count": None}], "x")])
    after = expect(before, [Expectation("the profile", 8)])
    assert after.known("gpu.expected") == [{"who": "the profile", "count": 8}, {"who": "driver", "count": None}]
    assert len(before.known("gpu.expected")) == 1


def test_an_expectation_holds_where_the_rest_could_not_be_read() -> None:
    """That the operator expects GPUs is known, whatever else is not."""
    after = expect(Facts([Fact("gpu.expected", why="denied")]), [Expectation("the profile")])
    assert after.known("gpu.expected") == [{"who": "the profile", "count": None}]


def test_no_expectation_changes_nothing() -> None:
    """Without anything to add an unknown expectation stays unknown."""
    assert expect(Facts([Fact("gpu.expected", why="denied")]), [])["gpu.expected"].why == "denied"


def test_every_fact_of_this_machine_is_read_without_a_bug_and_fast() -> None:
    """On the machine of these tests no reader breaks, and what is read in this process takes less than 0.15 s."""
    names = [name for name in all_names() if not name.startswith(IN_CHILDREN)]
    facts.read(names)
    spent = []
    for _ in range(3):
        begun = time.process_time()
        found = facts.read(names)
        spent.append(time.process_time() - begun)
    assert found.failures == ()
    assert len(found) >= len(names)
    assert min(spent) < 0.15


def test_reading_facts_imports_nothing_heavy() -> None:
    """The reader of facts loads neither torch nor NVML nor the engine's SDK nor pytest into its process."""
    heavy = ("torch", "numpy", "onnx", "onnxruntime", "pynvml", "docker", "requests", "pytest")
    code = (
        f"import sys; from gpucheck import facts; facts.read(); sys.exit(str([m for m in {heavy} if m in sys.modules]))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert said.stderr.strip() == "[]"


def test_the_child_prints_the_wanted_facts(tmp_path: Path) -> None:
    """``python -m gpucheck.facts`` is what a run starts: JSON on standard output, or in a file."""
    argv = [sys.executable, "-m", "gpucheck.facts", "--names", "cpu.count,machine.kernel"]
    printed = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    assert sorted(Facts.from_json(json.loads(printed))) == ["cpu.count", "machine.kernel"]
    subprocess.run([*argv, "--out", str(tmp_path / "facts.json")], capture_output=True, check=True)
    assert json.loads((tmp_path / "facts.json").read_text()) == json.loads(printed)
