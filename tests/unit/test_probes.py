"""Every probe: headings, mark, a test file of its own; every pitfall it can raise has an entry and is provoked."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import gpucheck
from gpucheck import catalogue, pitfalls
from gpucheck.inner.mark import Mark
from gpucheck.levels import DISTURBANCE, LEVELS

PACKAGE = Path(gpucheck.__file__).parent
TESTS = Path(__file__).parents[1]
HEADINGS = ("Looks at:", "Why it matters:", "Does not apply when:", "Cost and disturbance:", "If it is bad:")
PROBES = catalogue.probes()
ID = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)+")


def marks(path: Path) -> Mark:
    """The mark of a probe, read without importing it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.probe":
            return Mark(**{keyword.arg: ast.literal_eval(keyword.value) for keyword in node.keywords if keyword.arg})
    raise AssertionError(f"{path.name} has no mark")


def raised() -> set[str]:
    """Every string in our code that is the id of a pitfall."""
    known = set(pitfalls.load())
    found = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in known:
                found.add(node.value)
    return found


@pytest.mark.parametrize("probe", PROBES, ids=lambda p: p.id)
def test_docstring(probe: catalogue.Probe) -> None:
    """A probe's docstring is its user's documentation: a good state in one line, and the fixed headings in order."""
    assert 0 < len(probe.title) <= 100
    places = [probe.text.find(heading) for heading in HEADINGS]
    assert all(place > 0 for place in places), HEADINGS
    assert places == sorted(places)


@pytest.mark.parametrize("probe", PROBES, ids=lambda p: p.id)
def test_mark(probe: catalogue.Probe) -> None:
    """Its mark is whole, its level is the one that the catalogue reads, and its legs have different names."""
    mark = marks(probe.path)
    assert mark.level == probe.level
    assert mark.level in LEVELS
    assert mark.disturbs in DISTURBANCE
    assert mark.deadline_s > 0
    legs = [*mark.essential, *mark.extra]
    assert len(legs) == len(set(legs))


@pytest.mark.parametrize("probe", PROBES, ids=lambda p: p.id)
def test_it_has_tests(probe: catalogue.Probe) -> None:
    """Each probe has a test file of the same name."""
    assert (TESTS / "probes" / probe.path.name).exists()


def test_every_pitfalls_probe_exists() -> None:
    """An entry that names a probe names one that ships."""
    known = {probe.id for probe in PROBES}
    assert {p.id: p.probe for p in pitfalls.load().values() if p.probe and p.probe not in known} == {}


def test_every_finding_is_provoked_somewhere() -> None:
    """Every pitfall that our code can raise appears in a test."""
    text = "\n".join(
        p.read_text() for p in TESTS.rglob("*") if p.suffix in (".py", ".toml") and p.name != "test_probes.py"
    )
    assert {pitfall for pitfall in raised() if pitfall not in text} == set()
