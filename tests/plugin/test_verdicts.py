"""Verdicts, outcomes, exit statuses and the four places that must agree on them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import jsonschema
import pytest

import gpucheck

if TYPE_CHECKING:
    from tests.plugin.conftest import Bench

EXPECTED = {
    "site-ok": "ok",
    "site-degraded": "degraded",
    "site-bad": "bad",
    "site-unable": "unable",
    "site-ruled-out": "not-applicable",
    "site-broken": "checker-error",
}


def _message(case: ElementTree.Element) -> str:
    failure = case.find("failure")
    return "" if failure is None else str(failure.get("message"))


def test_every_verdict_reaches_record_terminal_and_junit(full_bench: Bench) -> None:
    """Record, last lines, JUnit and exit status tell the same six verdicts."""
    ran = full_bench.run("--junit-xml=j.xml")
    assert ran.verdicts == EXPECTED
    assert ran.status == 1
    assert "1 bad · 1 degraded · 1 ok · 1 unable · 1 checker error · 1 not applicable (no such thing here)" in ran.out
    assert "1 failed, 2 passed, 1 skipped, 1 unable, 1 checker-error" in ran.out.replace(
        ", 1 checker-error, 1 unable", ", 1 unable, 1 checker-error"
    )
    suite = ElementTree.parse(full_bench.project / "j.xml").getroot()[0]
    cases = {case.get("name"): case for case in suite}
    assert cases["site-bad[host]"].get("classname") == "gpucheck"
    assert _message(cases["site-bad[host]"]).startswith("bad: shm-too-small")
    assert _message(cases["site-unable[host]"]).startswith("unable: a thing that was not there")
    assert _message(cases["site-broken[host]"]).startswith("checker-error: ZeroDivisionError")
    assert cases["site-ruled-out[host]"].find("skipped") is not None


def test_every_row_is_valid_by_the_shipped_schema(full_bench: Bench) -> None:
    """The record of a run with every verdict validates against the JSON Schema that the package ships."""
    ran = full_bench.run()
    schema = json.loads((Path(gpucheck.__file__).parent / "record.schema.json").read_text())
    kinds = []
    for row in ran.rows:
        jsonschema.validate(row, schema)
        kinds.append(row["kind"])
    assert kinds[0] == "run"
    assert kinds[1] == "plan"
    assert kinds[-1] == "summary"
    assert ran.rows[-1]["exit"] == ran.status


@pytest.mark.parametrize(
    ("keyword", "args", "status"),
    [
        ("site_ok", [], 0),
        ("site_degraded", [], 0),
        ("site_degraded", ["--gpucheck-strict"], 1),
        ("site_bad", [], 1),
        ("site_bad", ["--gpucheck-accept", "shm-too-small=known"], 5),
        ("site_bad or site_ok", ["--gpucheck-accept", "shm-too-small=known"], 0),
        ("site_degraded", ["--gpucheck-strict", "--gpucheck-accept", "shm-leftovers=known"], 0),
        ("site_unable", [], 10),
        ("site_unable", ["--gpucheck-allow-unable", "site-unable"], 5),
        ("site_unable or site_ok", ["--gpucheck-allow-unable", "site-unable"], 0),
        ("site_unable", ["--gpucheck-require", "site-unable"], 1),
        ("site_ruled_out", [], 5),
        ("site_ruled_out", ["--gpucheck-require", "site-ruled-out"], 1),
        ("site_broken", [], 10),
        ("site_broken or site_bad", [], 1),
        ("site_nothing_of_the_kind", [], 5),
    ],
)
def test_exit_status(full_bench: Bench, keyword: str, args: list[str], status: int) -> None:
    """The exit status is the first of the documented ones that holds."""
    ran = full_bench.run(*args, keyword=keyword)
    assert ran.status == status, ran.out + ran.err
    assert ran.rows[-1]["exit"] == status


def test_an_empty_run_says_what_emptied_it(full_bench: Bench) -> None:
    """An empty run is no pass, and one line says why it was empty."""
    ran = full_bench.run(keyword="nonexistent")
    assert ran.status == 5
    assert "nothing was judged: 0 probes planned" in ran.out
    assert "-k nonexistent" in ran.out


def test_exit_ten_is_none_of_pytests_own() -> None:
    """The status for "undecided" collides with none of pytest's."""
    assert 10 not in {int(code) for code in pytest.ExitCode}


def test_ok_without_evidence_is_a_checker_error(bench: Bench) -> None:
    """A probe that returns without having seen anything is no ok: a test with no branch that can fail."""
    bench.probe("site_blind", "pass")
    ran = bench.run()
    assert ran.verdicts == {"site-blind": "checker-error"}
    assert ran.status == 10


def test_essential_leg_that_never_ran_is_no_ok(bench: Bench) -> None:
    """A probe that forgets one of its essential legs is a checker-error, not a thinner ok."""
    bench.probe(
        "site_thin",
        """
        with report.leg('one'):
            report.saw('one')
        """,
        mark='subject="host", level="quick", essential=("one", "two")',
    )
    assert bench.run().verdicts == {"site-thin": "checker-error"}


def test_leg_that_could_not_look_makes_unable_and_a_ruled_out_one_does_not(bench: Bench) -> None:
    """An essential leg that should have looked and could not makes the probe unable; a fact against it does not."""
    for name, error in (("lame", "Unable('x')"), ("ruled", "NotApplicable('f', 'no engine', 's')")):
        bench.probe(
            f"site_{name}",
            f"""
            from gpucheck.verdict import NotApplicable, Unable
            with report.leg('one'):
                report.saw('one')
            with report.leg('two'):
                raise {error}
            """,
            mark='subject="host", level="quick", essential=("one", "two")',
        )
    ran = bench.run()
    assert ran.verdicts == {"site-lame": "unable", "site-ruled": "ok"}
    assert "not run: two (no engine" in ran.out


def test_a_bare_skip_is_not_a_skip(bench: Bench) -> None:
    """A probe that skips itself without a known fact was unable to look: a skip inside a probe hides nothing."""
    bench.probe("site_skips", "pytest.skip('not today')")
    ran = bench.run()
    assert ran.verdicts == {"site-skips": "unable"}
    assert ran.status == 10


def test_acceptance_past_its_date_counts_for_nothing_and_is_shown(full_bench: Bench) -> None:
    """An acceptance past its date leaves the finding failed, and says so; one that matches nothing is shown too."""
    full_bench.write(
        site_toml="""
        [[accept]]
        pitfall = "shm-too-small"
        reason = "being replaced"
        until = "2020-01-01"
        [[accept]]
        pitfall = "volume-lost"
        reason = "whatever"
        """
    )
    ran = full_bench.run("--gpucheck-profile=site.toml", keyword="site_bad")
    assert ran.status == 1
    assert "the acceptance of shm-too-small ended on 2020-01-01" in ran.out
    assert "the acceptance of volume-lost matched nothing in this run" in ran.out


def test_a_finding_without_words_is_our_bug(bench: Bench) -> None:
    """A finding that the knowledge base does not know is a checker-error, not a crash and not a pass."""
    bench.probe("site_wordless", "report.bad('no-such-pitfall', 'x')")
    ran = bench.run()
    assert ran.verdicts == {"site-wordless": "checker-error"}
    assert "no-such-pitfall" in ran.out
