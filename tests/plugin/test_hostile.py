"""What a user's project does to pytest reaches neither the probes' verdicts nor the exit status."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

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
CONFTESTS = {
    "raising autouse fixture": """
        import pytest
        @pytest.fixture(autouse=True)
        def boom():
            raise RuntimeError("boom")
        """,
    "fixtures named like ours": """
        import pytest
        @pytest.fixture(autouse=True)
        def host():
            raise RuntimeError("not yours")
        @pytest.fixture
        def report():
            raise RuntimeError("not yours")
        """,
    "everything xfails": """
        import pytest
        def pytest_collection_modifyitems(items):
            for item in items:
                item.add_marker(pytest.mark.xfail(reason="all is well"))
        """,
    "every report passes": """
        import pytest
        @pytest.hookimpl(wrapper=True)
        def pytest_runtest_makereport(item, call):
            report = yield
            report.outcome = "passed"
            return report
        """,
    "items thrown away": """
        def pytest_collection_modifyitems(items):
            items.clear()
        """,
    "status rewritten": """
        def pytest_sessionfinish(session):
            session.exitstatus = 0
        """,
}
INIS = {
    "usefixtures": "usefixtures = boom",
    "warnings are errors": "filterwarnings = error",
    "a short timeout": "timeout = 1",
    "renamed functions": "python_functions = check_*\npython_files = check_*.py",
    "other options": "addopts = -p no:cacheprovider --strict-markers -ra",
}


@pytest.mark.parametrize("name", CONFTESTS)
@pytest.mark.parametrize("path", [[], ["."]], ids=["no path", "a path"])
def test_hostile_conftest(full_bench: Bench, name: str, path: list[str]) -> None:
    """A hostile conftest changes neither a verdict nor the exit status, with and without tests of the user's own."""
    full_bench.write(conftest_py=CONFTESTS[name])
    ran = full_bench.run(*path)
    assert ran.verdicts == EXPECTED
    assert ran.status == 1, ran.out


@pytest.mark.parametrize("name", INIS)
def test_hostile_ini(full_bench: Bench, name: str) -> None:
    """No ini setting of the user's reaches the probes."""
    full_bench.write(pytest_ini=f"[pytest]\n{INIS[name]}\n")
    ran = full_bench.run()
    assert ran.verdicts == EXPECTED
    assert ran.status == 1, ran.out


@pytest.mark.parametrize(
    "args", [["-n2"], ["-n0"], ["-p", "no:xdist"], ["-p", "no:terminal"], ["-q"], ["-vv"], ["-p", "no:randomly"]]
)
def test_ways_of_running(full_bench: Bench, args: list[str]) -> None:
    """xdist, its absence, no terminal, quiet and verbose: same verdicts, same status."""
    full_bench.write(test_mine_py="def test_mine(): pass")
    ran = full_bench.run(*args, "test_mine.py", keyword="site or mine")
    assert ran.verdicts == EXPECTED
    assert ran.status == 1, ran.out + ran.err


@pytest.mark.parametrize("args", [["-x"], ["-x", "-n2"], ["--maxfail=1"]])
def test_stopping_at_the_first_failure(full_bench: Bench, args: list[str]) -> None:
    """``-x`` stops the probes at the first failure; the record has what was not reached; the status is 1."""
    ran = full_bench.run(*args, keyword="site_bad or site_broken")
    assert ran.verdicts == {"site-bad": "bad"}
    assert ran.status == 1, ran.out
    assert [item["probe"] for item in ran.rows[-1]["not_reached"]] == ["site-broken"]


def test_collect_only_runs_nothing(full_bench: Bench) -> None:
    """``--collect-only`` keeps pytest's own status and touches nothing."""
    full_bench.write(test_mine_py="def test_mine(): pass")
    ran = full_bench.run("--collect-only", "test_mine.py", keyword=None)
    assert ran.status == 0
    assert not ran.record.exists()
    assert "test_mine.py::test_mine" in ran.out or "test_mine" in ran.out


def test_without_a_path_nothing_of_the_users_is_collected(full_bench: Bench) -> None:
    """Asked about the machine alone, the user's tests do not run and their conftest is not imported."""
    full_bench.write(test_mine_py="def test_mine(): assert False", conftest_py="raise SystemExit('imported')")
    ran = full_bench.run(keyword="site_ok or test_mine")
    assert ran.verdicts == {"site-ok": "ok"}
    assert ran.status == 0, ran.out


def test_gate_skips_the_users_tests_with_the_reason(full_bench: Bench) -> None:
    """A bad probe skips the user's tests and says which probe; --gpucheck-no-gate runs them all the same."""
    full_bench.write(test_mine_py="def test_mine(): pass")
    ran = full_bench.run("-rs", "test_mine.py", keyword="site_bad or mine")
    assert ran.status == 1
    assert "1 failed, 1 skipped" in ran.out
    assert "gpucheck: site-bad is bad on this machine" in ran.out
    ran = full_bench.run("--gpucheck-no-gate", "test_mine.py", keyword="site_bad or mine")
    assert ran.status == 1
    assert "1 failed, 1 passed" in ran.out


def test_unable_does_not_close_the_gate(full_bench: Bench) -> None:
    """A probe that could not look does not stop the user's tests, but the run is undecided."""
    full_bench.write(test_mine_py="def test_mine(): pass")
    ran = full_bench.run("test_mine.py", keyword="site_unable or mine")
    assert ran.status == 10
    assert "1 passed, 1 unable" in ran.out


def test_users_failures_and_broken_files_count(full_bench: Bench) -> None:
    """A failing test of the user's makes status 1, a file that cannot be collected pytest's own 2."""
    full_bench.write(test_mine_py="def test_mine(): assert False")
    ran = full_bench.run("test_mine.py", keyword="site_ok or mine")
    assert ran.status == 1
    assert ran.rows[-1]["user_tests"] == {"passed": 0, "failed": 1}
    assert ran.rows[-1]["machine_verdict"] == "ok"
    full_bench.write(test_mine_py="import nonexistent_module_of_mine")
    assert full_bench.run("test_mine.py", keyword=None).status == 2


def test_users_tests_alone_are_enough_for_a_green(full_bench: Bench) -> None:
    """With no probe selected, the user's own passing tests still make a green; that no probe looked is said."""
    full_bench.write(test_mine_py="def test_mine(): pass")
    ran = full_bench.run("test_mine.py", keyword="mine")
    assert ran.status == 0
    assert "nothing was judged: no probe is selected by -k mine" in ran.out
    assert ran.rows[-1]["machine_verdict"] == "nothing-judged"


def test_without_the_flag_the_plugin_does_nothing(full_bench: Bench) -> None:
    """Without --gpucheck no option of ours is checked, no row is written, no line is printed."""
    import subprocess
    import sys

    full_bench.write(test_mine_py="def test_mine(): pass")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--gpucheck-level=nonsense", "test_mine.py"],
        cwd=full_bench.project,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0
    assert "gpucheck " not in done.stdout.replace("gpucheck-0", "")


FAILING = {
    "a threshold": "def pytest_sessionfinish(session):\n    session.exitstatus = 1\n",
    "shouldfail": "def pytest_runtest_logreport(report):\n    SESSION[0].shouldfail = 'enough'\n"
    "def pytest_sessionstart(session):\n    SESSION.append(session)\nSESSION = []\n",
    "shouldstop": "def pytest_collection_finish(session):\n    session.shouldstop = 'enough'\n",
}


@pytest.mark.parametrize("conftest", FAILING.values(), ids=FAILING.keys())
def test_what_else_fails_the_users_session_is_not_forgiven(bench: Bench, conftest: str) -> None:
    """A plugin's threshold, or an order to stop, keeps its status when all probes are ok."""
    bench.probe("site_ok", "report.saw('x')")
    bench.write(conftest_py=conftest, test_mine_py="def test_mine(): pass\n")
    assert bench.run("test_mine.py", keyword="site_ok or mine").status in (1, 2)


def test_what_hooks_do_to_our_items_is_no_verdict(bench: Bench) -> None:
    """A hook of the user's that fails our items changes their report, not the exit status."""
    bench.probe("site_ok", "report.saw('x')")
    fails = "def pytest_runtest_setup(item):\n    assert 'gpucheck' not in item.nodeid\n"
    bench.write(conftest_py=fails, test_mine_py="def test_mine(): pass\n")
    ran = bench.run("test_mine.py", keyword="site_ok or mine")
    assert ran.status == 0, ran.out
    assert ran.verdicts == {"site-ok": "ok"}


def test_a_full_disk_under_a_probe_is_not_our_bug(bench: Bench) -> None:
    """No room is the machine's: the probe could not look."""
    bench.probe("site_full", "raise OSError(28, 'No space left on device', '/tmp/x')")
    ran = bench.run()
    assert ran.verdicts == {"site-full": "unable"}
    assert "room to work in: /tmp/x: No space left on device" in " ".join(ran.out.split())
