"""Real libraries on machines that are not here: what each said, and what gpucheck said (docs/driver-table.md).

cudart, the CUDA build of torch and pynvml are the real ones; what they meet are stand-ins for the driver's two
libraries and a kernel's view that is bound over this machine's. ``ci/cuda`` makes the environment and runs this;
``ci/cuda --write`` writes the table anew instead of holding it against what is written.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpucheck.architecture import Capability, Cuda, Fit, Image, fit
from gpucheck.fakes import machine
from tests.fakes import answers

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "docs" / "driver-table.md"
PROBES = ("gpus_present", "cuda_available", "kernel_images_fit")
ORDER = ("checker-error", "bad", "unable", "degraded", "ok", "not-applicable")
REQUIRED = "GPUCHECK_CUDA_REQUIRED"
WRITE = "GPUCHECK_WRITE_TABLE"
HEAD = """\
# What the libraries say, and what gpucheck says

Made by `ci/cuda --write` from real runs of `tests/real/test_driver_fakes.py`: cudart 13.0, torch 2.14.1+cu130 and
pynvml on machines that are played (`gpucheck/fakes/machines/`). The real cudart goes no further with a driver that is
not NVIDIA's own (500 where the driver itself starts); on those machines torch runs on a stand-in for the part of the
CUDA runtime and of cuBLAS that one product of matrices touches (`gpucheck/fakes/libcudart.c`).

| machine | cudart | torch | pynvml | gpucheck |
|---|---|---|---|---|
"""

pytestmark = [pytest.mark.timeout(300)]


@dataclass(frozen=True)
class Judged:
    """What was said on one machine."""

    libraries: dict[str, str]
    results: list[dict[str, Any]]

    @property
    def verdict(self) -> str:
        """The worst of all rows."""
        verdicts = {result["verdict"] for result in self.results}
        return next(verdict for verdict in ORDER if verdict in verdicts)

    @property
    def pitfalls(self) -> list[str]:
        """Everything that was found, once each."""
        return sorted({finding["pitfall"] for result in self.results for finding in result["findings"]})

    def row(self, title: str) -> str:
        """The machine's line of the table."""
        said = [self.libraries[name].replace("|", "\\|") for name in ("cudart", "torch", "pynvml")]
        return f"| {title} | {' | '.join(said)} | {self.words} |"

    @property
    def words(self) -> str:
        """What gpucheck said, for the table."""
        if self.pitfalls:
            return f"{self.verdict}: {', '.join(self.pitfalls)}"
        if self.verdict != "unable":
            return self.verdict
        unable = [r for r in self.results if r["verdict"] == "unable"]
        first = next((r for r in unable if r["blocked_by"] is None), unable[0])
        return f"unable: {first['lacking'][0]}"


@pytest.fixture(scope="module")
def python() -> str:
    """A Python with a CUDA build of torch."""
    path = os.environ.get("GPUCHECK_CUDA_PYTHON") or str(ROOT / ".venv-cuda" / "bin" / "python")
    for missing in (
        None if os.access(path, os.X_OK) else f"no {path}: run ci/cuda",
        None if os.getuid() == 0 else "a mount namespace with nodes of its own needs root",
    ):
        if missing and os.environ.get(REQUIRED):
            pytest.fail(missing)
        if missing:
            pytest.skip(missing)
    return path


@pytest.fixture(scope="module")
def built(python: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All stand-ins."""
    ask = [python, "-c", "import site; print(site.getsitepackages()[0])"]
    site_packages = subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip()
    return machine.build(tmp_path_factory.mktemp("built"), Path(site_packages))


@pytest.fixture(scope="module")
def rows() -> dict[str, str]:
    """The lines of the table that were made so far."""
    return {}


def on(played: machine.Machine, home: Path, argv: list[str]) -> str:
    """What a command prints on that machine."""
    env = os.environ | played.environment(home)
    done = subprocess.run(
        played.enter(home, argv), env=env, cwd=home, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.replace(str(home), "…")


@pytest.mark.parametrize("name", machine.names())
def test_a_machine(name: str, python: str, built: Path, tmp_path: Path, rows: dict[str, str]) -> None:
    """gpucheck names the cause that the machine has, and finds nothing on a healthy one."""
    played = machine.load(name)
    played.write(tmp_path, built)
    libraries = json.loads(on(played, tmp_path, [python, str(answers.HERE / "libraries.py")]))
    judge = [sys.executable, str(answers.HERE / "judge.py"), python, *PROBES]
    judged = Judged(libraries, json.loads(on(played, tmp_path, judge)))
    rows[name] = judged.row(played.title)
    told = [(r["probe"], r["subject"]["label"], r["verdict"], r["lacking"]) for r in judged.results]
    assert (judged.verdict, judged.pitfalls) == (played.expected["verdict"], played.expected.get("pitfalls", [])), told
    if judged.verdict == "ok":
        computed = [r for r in judged.results if r["probe"] == "cuda-available" and r["subject"]["kind"] == "gpu"]
        assert any("a product of" in line for r in computed for line in r["evidence"])


def test_the_table_is_what_was_seen(rows: dict[str, str]) -> None:
    """docs/driver-table.md holds these lines, each as it was made now."""
    if set(rows) != set(machine.names()):
        pytest.skip("only a part of the machines was run")
    text = HEAD + "".join(f"{rows[name]}\n" for name in machine.names())
    if os.environ.get(WRITE):
        TABLE.parent.mkdir(exist_ok=True)
        TABLE.write_text(text, encoding="utf-8")
    assert text == TABLE.read_text(encoding="utf-8")


def test_every_number_is_judged_as_torch_judges_it(python: str) -> None:
    """For each target and each device torch's own table, before and after its change at CUDA 13.2, agrees with ours."""
    script = """
import itertools, json, torch.cuda as c
tables = {"13.0": c.DEVICE_REQUIREMENT, "13.2": c.DEVICE_REQUIREMENT_POST_JETSON_SBSA_UNIFICATION}
devices = [50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87, 88, 89, 90, 100, 101, 103, 107, 110, 120, 121]
print(json.dumps([(cuda, code, device, device in table[code]) for cuda, table in tables.items()
                  for code, device in itertools.product(table, devices)]))
"""
    done = subprocess.run([python, "-W", "ignore", "-c", script], capture_output=True, text=True, check=True)
    differing = [
        (cuda, code, device)
        for cuda, code, device, runs in json.loads(done.stdout.splitlines()[-1])
        if runs is not (fit(Image.parse(f"sm_{code}"), number(device), toolkit=Cuda.parse(cuda)) is Fit.NATIVE)
    ]
    assert differing == []


def number(device: int) -> Capability:
    """121 as 12.1."""
    return Capability(device // 10, device % 10)


@pytest.mark.parametrize(("name", "status", "words"), [("eight-h100", 0, "10 ok"), ("uvm-missing", 1, "uvm-missing")])
def test_a_whole_run(name: str, status: int, words: str, python: str, built: Path, tmp_path: Path) -> None:
    """`pytest --gpucheck` on such a machine: rows, summary and exit status agree."""
    played = machine.load(name)
    played.write(tmp_path, built)
    argv = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--gpucheck", "--gpucheck-level=quick"]
    argv += ["-k", "cuda-available or gpus-present", f"--gpucheck-python={python}", "--gpucheck-budget=200"]
    argv += [f"--gpucheck-record={tmp_path}/record.jsonl"]
    project = tmp_path / "project"
    project.mkdir()
    done = subprocess.run(
        played.enter(tmp_path, argv),
        env=os.environ | played.environment(tmp_path),
        cwd=project,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == status, done.stdout + done.stderr
    assert words in done.stdout
