"""The marker of the user's own tests: it skips, with the reason, what this machine does not have."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.plugin.conftest import Bench

TESTS = """
    import pytest

    @pytest.mark.gpucheck(probes=["site-ok", "site-degraded"])
    def test_mine_granted(): pass

    @pytest.mark.gpucheck(probes=["site-unable"])
    def test_mine_denied(): pass

    @pytest.mark.gpucheck(probes=["volume-persists"])
    def test_mine_unknown(): pass

    @pytest.mark.gpucheck(gpus=3, memory_gb=40, capability="9.0")
    def test_mine_gpus(): pass

    @pytest.mark.gpucheck(gpus=0)
    def test_mine_none(): pass
    """
WRONG = [
    ("gpu=2", "gpucheck(gpu=…): allowed are gpus, memory_gb, capability, probes"),
    ("gpus='two'", "gpucheck(gpus='two'): allowed is a number of GPUs, 0 or more"),
    ("probes='site-ok'", "gpucheck(probes='site-ok'): allowed is a list of probe ids"),
    ("probes=['site-okay']", "gpucheck(probes=…): no probe is called site-okay; see `gpucheck list`"),
    ("capability='sm_90'", "gpucheck(capability='sm_90'): allowed is the least compute capability"),
    ("2", "gpucheck(2,): only named arguments"),
]
WAYS = [["-p", "no:xdist"], ["-n0"], ["-n2"]]


@pytest.mark.parametrize("way", WAYS, ids=" ".join)
def test_it_skips_with_the_reason(full_bench: Bench, way: list[str]) -> None:
    """Without xdist, and in its workers."""
    full_bench.write(test_mine_py=TESTS)
    ran = full_bench.run(*way, "-rs", "test_mine.py", keyword="mine or site_ok or site_degraded or site_unable")
    assert "gpucheck: site-unable is unable" in ran.out
    assert "gpucheck: volume-persists is not in this run" in ran.out
    assert "gpucheck: gpus=3, capability=9.0, memory_gb=40 wanted, 0 usable" in ran.out
    assert ran.rows[-1]["user_tests"] == {"passed": 2, "failed": 0}


@pytest.mark.parametrize("way", WAYS, ids=" ".join)
@pytest.mark.parametrize(("arguments", "words"), WRONG)
def test_a_wrong_marker_is_one_readable_failure(full_bench: Bench, arguments: str, words: str, way: list[str]) -> None:
    """It names the test, the value and what is allowed; no traceback, no crashed worker, and the others run."""
    text = f"""
    import pytest

    @pytest.mark.gpucheck({arguments})
    def test_mine(): pass

    def test_mine_too(): pass
    """
    full_bench.write(test_mine_py=text)
    ran = full_bench.run(*way, "test_mine.py", keyword="mine or site_ok")
    assert f"test_mine.py::test_mine: {words}" in ran.out
    assert "Traceback" not in ran.out
    assert "marker.py" not in ran.out
    assert ran.rows[-1]["user_tests"] == {"passed": 1, "failed": 1}
    assert ran.status == 1


def test_without_the_flag_it_does_nothing(bench: Bench) -> None:
    """A marked test runs where the machine is not probed, and the marker is no unknown one."""
    import subprocess
    import sys

    bench.write(test_mine_py=TESTS)
    argv = [sys.executable, "-m", "pytest", "--strict-markers", "-p", "no:cacheprovider", "test_mine.py"]
    done = subprocess.run(argv, cwd=bench.project, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout
    assert "5 passed" in done.stdout
