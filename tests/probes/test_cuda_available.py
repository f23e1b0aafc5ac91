"""Each verdict of ``cuda-available``: the probe judges machines that are not here, with this Python's own torch.

The driver's libraries are stand-ins, the kernel's view is a tree bound over this machine's in a mount namespace. What
needs a CUDA build of torch is in ``tests/real/test_driver_fakes.py``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from gpucheck import profile
from gpucheck.fakes import machine
from gpucheck.probes import test_cuda_available as probe
from gpucheck.verdict import NotApplicable
from tests.fakes import answers
from tests.fakes.answers import facts

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.skipif(os.getuid() != 0, reason="a mount namespace with nodes of its own needs root"),
    pytest.mark.skipif(torch.version.cuda is not None, reason="these machines are judged with a CPU build of torch"),
]
NOT_THERE = "cannot open shared object file: No such file or directory"
HEALTHY_WITHOUT_CUDA = ("bad", ["cpu-only-wheel"])


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-ins for the driver's libraries."""
    return machine.build(tmp_path_factory.mktemp("built"))


@pytest.fixture
def judged(built: Path, tmp_path: Path) -> Callable[..., list[dict[str, Any]]]:
    """Judges a machine by name (None: this one) and returns the results of ``cuda-available``."""

    def judge(name: str | None, python: str = sys.executable, **env: str) -> list[dict[str, Any]]:
        argv = [sys.executable, str(answers.HERE / "judge.py"), python, "cuda_available"]
        environment = os.environ | env
        if name is not None:
            played = machine.load(name)
            played.write(tmp_path / name, built)
            argv = played.enter(tmp_path / name, argv)
            environment = os.environ | played.environment(tmp_path / name) | env
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=120, check=True)
        results: list[dict[str, Any]] = json.loads(done.stdout)
        return results

    return judge


def worst(results: list[dict[str, Any]]) -> tuple[str, list[str]]:
    """The worst verdict, and what was found."""
    verdicts = {result["verdict"] for result in results}
    order = ("checker-error", "bad", "unable", "degraded", "ok", "not-applicable")
    return next(v for v in order if v in verdicts), [f["pitfall"] for r in results for f in r["findings"]]


@pytest.mark.parametrize(
    ("name", "verdict", "pitfalls"),
    [
        pytest.param("rtx-4090", *HEALTHY_WITHOUT_CUDA, id="a healthy machine under a wheel without CUDA"),
        pytest.param("mig-slice", *HEALTHY_WITHOUT_CUDA, id="a MIG slice is no missing GPU"),
        pytest.param("hidden-on-purpose", *HEALTHY_WITHOUT_CUDA, id="what a job was not given is not missing"),
        pytest.param("init-3", "bad", ["uvm-missing"], id="3, explained"),
        pytest.param("init-3-unexplained", "unable", [], id="3, unexplained"),
        pytest.param("stub-first", "bad", ["stub-libcuda"], id="34"),
        pytest.param("hidden-empty", "bad", ["hidden-by-environment"], id="the variable is empty"),
        pytest.param("hidden-out-of-range", "bad", ["hidden-by-environment"], id="it names a GPU that is not there"),
        pytest.param("hidden-unknown-uuid", "bad", ["hidden-by-environment"], id="it names a UUID that is not there"),
        pytest.param("mig-without-instances", "bad", ["mig-without-instances"], id="MIG without instances"),
        pytest.param("fabric-manager-absent", "bad", ["fabric-manager"], id="802, nobody manages the fabric"),
        pytest.param("fabric-not-completed", "bad", ["fabric-not-completed"], id="802, the host did not finish"),
        pytest.param("compat-shadows", "bad", ["compat-shadows-driver"], id="803 by compatibility libraries"),
        pytest.param("compat-unsupported", "bad", ["compat-unsupported-gpu"], id="804"),
        pytest.param("uvm-missing", "bad", ["uvm-missing"], id="999 without the node"),
        pytest.param("uvm-broken", "bad", ["uvm-broken"], id="999 with everything there"),
        pytest.param("one-not-shown", "bad", ["gpu-hidden-device"], id="seven shown of eight listed"),
    ],
)
def test_a_machine(judged: Callable[..., list[dict[str, Any]]], name: str, verdict: str, pitfalls: list[str]) -> None:
    """One cause, one finding, and no finding where nothing explains the status."""
    assert worst(judged(name)) == (verdict, pitfalls)


@pytest.mark.parametrize("name", ["versions-differ", "gpu-lost", "no-device-nouveau", "no-device-not-loaded"])
def test_a_defect_that_facts_show_is_told_once(judged: Callable[..., list[dict[str, Any]]], name: str) -> None:
    """What `gpus-present` reports from the same facts blocks this probe, and is no second finding."""
    host = judged(name)[0]
    assert host["verdict"] == "unable"
    assert host["findings"] == []
    assert host["blocked_by"] == "gpus-present"
    assert host["lacking"]


def test_a_list_of_gpus_that_cannot_be_had_is_no_ok(judged: Callable[..., list[dict[str, Any]]]) -> None:
    """With an NVML that hangs nobody knows which GPUs should be shown."""
    (host,) = judged("nvml-hangs")
    assert host["verdict"] == "unable"
    assert "NVML" in host["lacking"][0]


@pytest.mark.parametrize(("name", "words"), [("exclusive", "pid 4242"), ("prohibited", "prohibited")])
def test_a_gpu_in_use_is_left_alone(judged: Callable[..., list[dict[str, Any]]], name: str, words: str) -> None:
    """Its row says who is on it, and nothing was computed there."""
    gpu = judged(name)[1]
    assert gpu["verdict"] == "unable"
    assert words in gpu["lacking"][0]


def test_without_a_gpu_there_is_nothing_to_judge(judged: Callable[..., list[dict[str, Any]]]) -> None:
    """On a machine that nobody expects a GPU of, the known fact stands in the row."""
    host = judged(None)[0]
    assert host["verdict"] == "not-applicable"
    assert host["because"]["value"] == "no NVIDIA device, and nothing expects one"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param(f"raise ImportError('libcudnn.so.9: {NOT_THERE}')", "library: libcudnn.so.9", id="a library"),
        pytest.param("import os; os.kill(os.getpid(), 11)", "died of SIGSEGV", id="it crashes"),
        pytest.param("raise ModuleNotFoundError(\"No module named 'sympy'\")", "module: sympy", id="a module"),
    ],
)
def test_a_torch_that_cannot_be_imported(
    judged: Callable[..., list[dict[str, Any]]], tmp_path: Path, text: str, words: str
) -> None:
    """The import is watched in a process of its own, and the finding says what was missing."""
    (tmp_path / "torch.py").write_text(text)
    host = judged("rtx-4090", PYTHONPATH=str(tmp_path))[0]
    (finding,) = host["findings"]
    assert finding["pitfall"] == "torch-import-failed"
    assert any(words in line for line in finding["evidence"]), finding["evidence"]


def test_a_named_python_without_torch_is_bad(judged: Callable[..., list[dict[str, Any]]], tmp_path: Path) -> None:
    """Who names a Python to be judged expects torch in it; the GPU's own row is explained by the host's."""
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    host, gpu = judged("rtx-4090", python=str(bare))
    assert [finding["pitfall"] for finding in host["findings"]] == ["torch-missing"]
    assert (gpu["verdict"], gpu["blocked_by"]) == ("unable", "cuda-available")


def test_a_host_without_torch_is_not_applicable() -> None:
    """Where nobody named a Python, a host that runs containers alone needs no torch of its own."""
    lack = probe.no_torch(facts({"python.executable": sys.executable}), profile.resolve({}))
    assert isinstance(lack, NotApplicable)
    assert lack.because.value == "torch is not installed: pip install 'pytest-gpucheck[torch]'"
