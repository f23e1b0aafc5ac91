"""Verdicts, outcomes, exit statuses and the four places that must agree on them."""

from __future__ import annotations

import json
import os
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
    assert "nothing was judged: no probe is selected by -k nonexistent" in ran.out
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


DIES = "import os\nos._exit(0)"


def test_a_probe_that_ends_the_process_is_missed(bench: Bench) -> None:
    """A probe that ends the probes' process with status 0 leaves a row for itself and for each that was to follow."""
    bench.probe("site_a", "report.saw('x')")
    bench.probe("site_b", DIES, mark='subject="host", level="quick", cost_s=5')
    bench.probe("site_c", "report.saw('x')", mark='subject="host", level="quick", cost_s=9')
    for args in ([], ["-x"]):
        ran = bench.run(*args)
        assert ran.status == 10, ran.out
        assert {name: ran.verdicts.get(name) for name in ("site-a", "site-b", "site-c")} == {
            "site-a": "ok",
            "site-b": "checker-error",
            "site-c": "unable",
        }


def test_the_second_function_of_a_file_counts_too(bench: Bench) -> None:
    """Two functions in one probe file are two items: the death of the second is not hidden by the ok of the first."""
    bench.probe("site_two", "report.saw('x')")
    path = bench.probes / "test_site_two.py"
    path.write_text(path.read_text() + "\n\ndef test_second(report):\n    import os\n    os._exit(0)\n")
    ran = bench.run("--junit-xml=j.xml")
    assert ran.status == 10, ran.out
    two = [row["verdict"] for row in ran.rows if row["kind"] == "result" and row["probe"] == "site-two"]
    assert two == ["ok", "checker-error"]
    assert 'name="site-two[host-2]"' in (bench.project / "j.xml").read_text()


def test_probe_files_that_cannot_be_collected_leave_a_row(bench: Bench) -> None:
    """A file that skips itself is unable, one that breaks a checker-error, one that ends the process ends no green."""
    bench.probe("site_ok", "report.saw('x')")
    (bench.probes / "test_site_skips.py").write_text("import pytest\npytest.importorskip('no_such_module')\n")
    (bench.probes / "test_site_breaks.py").write_text("1 / 0\n")
    ran = bench.run(keyword=None)
    assert ran.status == 10, ran.out
    assert (ran.verdicts["site-skips"], ran.verdicts["site-breaks"]) == ("unable", "checker-error")
    assert ran.verdicts["site-ok"] == "ok"
    (bench.probes / "test_site_ends.py").write_text(DIES)
    bench.write(test_mine_py="def test_mine(): pass")
    ran = bench.run("test_mine.py", keyword=None)
    assert ran.status == 10, ran.out
    assert "before it had a plan" in " ".join(ran.out.split())


def test_a_broken_file_is_a_row_also_when_a_probe_in_a_subfolder_is_required(bench: Bench) -> None:
    """What is required is looked for by the names of files, wherever they lie; no file is parsed for it."""
    bench.probe("site_ok", "report.saw('x')")
    (bench.probes / "more").mkdir()
    (bench.probes / "test_site_ok.py").rename(bench.probes / "more" / "test_site_deeper.py")
    (bench.probes / "test_site_torn.py").write_text("def test_site_torn(\n")
    # The folder counts for the bench when a file of probes lies in it.
    ran = bench.run("--gpucheck-require=site-deeper", keyword="site")
    assert ran.status == 10, ran.out + ran.err
    assert ran.verdicts == {"site-deeper": "ok", "site-torn": "checker-error"}


def test_the_gate_says_what_closed_it(full_bench: Bench) -> None:
    """A required probe that could not look is not called bad."""
    full_bench.write(test_mine_py="def test_mine(): pass")
    ran = full_bench.run("--gpucheck-require=site-unable", "-rs", "test_mine.py", keyword="site_unable or mine")
    assert ran.status == 1, ran.out
    assert "gpucheck: site-unable is unable on this machine" in " ".join(ran.out.split())


def test_what_the_operator_named_and_nobody_judged_is_said(bench: Bench) -> None:
    """A model that no probe of the run looks at (here: by level) does not vanish into an ok."""
    bench.probe("site_ok", "report.saw('x')")
    ran = bench.run("--gpucheck-model=my.module:make")
    assert ran.status == 10, ran.out
    assert "--gpucheck-model: no probe of this run judges it" in ran.out


def test_required_and_left_out_says_so(bench: Bench) -> None:
    """A required probe that the level leaves out is a failure with its reason."""
    bench.probe("site_ok", "report.saw('x')")
    ran = bench.run("--gpucheck-require=volume-persists", keyword=None)
    assert ran.status == 1, ran.out
    assert "required, and left out of this run: level default" in " ".join(ran.out.split())


def test_an_empty_folder_of_probes_is_a_usage_error(bench: Bench) -> None:
    """``--gpucheck-probes`` that holds no probe is refused: it would judge nothing."""
    ran = bench.run(f"--gpucheck-probes={bench.probes}")
    assert ran.status == 4
    assert "test_*.py" in ran.out + ran.err


def test_evidence_may_be_anything_and_measures_are_numbers(bench: Bench) -> None:
    """Evidence of another type is shown as text; a measure that is no finite number is our bug."""
    bench.probe("site_dict", "report.saw({'a': 1})\nreport.bad('shm-too-small', 7, shm_need='2g')")
    bench.probe("site_nan", "report.saw('x')\nreport.measure('x_s', float('nan'))")
    ran = bench.run()
    assert ran.verdicts == {"site-dict": "bad", "site-nan": "checker-error"}
    assert ran.status == 1


def test_a_record_that_nobody_reads_does_not_hang(bench: Bench) -> None:
    """A record that is a FIFO without a reader sends its rows to stderr at once."""
    bench.probe("site_ok", "report.saw('x')")
    os.mkfifo(bench.project / "fifo")
    ran = bench.run("--gpucheck-record=fifo")
    assert ran.status == 10, ran.out
    assert "the record could not be written" in ran.out
