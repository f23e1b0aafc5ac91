"""The judged Python's packages, read from a real interpreter that looks at made folders."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

import pytest

from gpucheck import facts
from gpucheck.facts import packages

if TYPE_CHECKING:
    from pathlib import Path

    from gpucheck.facts import Facts


def install(folder: Path, name: str, version: str) -> None:
    """What an installer leaves of a distribution."""
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def read(*folders: Path, python: str | None = None, deadline_s: float = 20) -> Facts:
    """The facts of an interpreter that finds ``folders`` before everything else."""
    environ = {**os.environ, "PYTHONPATH": ":".join(map(str, folders))}
    names = ["package.torch", "torch.cuda_build", "python.version", "python.executable"]
    return facts.read(names, python=python, environ=environ, deadline_s=deadline_s)


def test_names_are_normalised(tmp_path: Path) -> None:
    """However a distribution spells its name, it is found under the one that pip would list."""
    install(tmp_path, "ONNX_Runtime.GPU", "1.31.1")
    assert read(tmp_path).known("package.onnx-runtime-gpu") == "1.31.1"


def test_of_two_the_one_that_an_import_would_find_counts(tmp_path: Path) -> None:
    """An older copy later on the path does not change what is imported."""
    install(tmp_path / "first", "torch", "2.13.0+cpu")
    install(tmp_path / "second", "torch", "2.9.1")
    found = read(tmp_path / "first", tmp_path / "second")
    assert found.known("package.torch") == "2.13.0+cpu"
    assert found["package.torch"].source == str(tmp_path / "first")


def test_what_is_not_installed_is_known_not_to_be(tmp_path: Path) -> None:
    """A package that no folder holds is absent, which is something else than unknown."""
    fact = read(tmp_path)["package.no-such-thing"]
    assert fact.is_known
    assert fact.value is None


def test_a_broken_distribution_does_not_hide_the_others(tmp_path: Path) -> None:
    """A folder that an interrupted installation left has no name and is passed over."""
    (tmp_path / "torch-2.0.dist-info").mkdir()
    (tmp_path / "~orch-2.0.dist-info").mkdir()
    install(tmp_path, "sound", "1.0")
    assert read(tmp_path).known("package.sound") == "1.0"


@pytest.mark.parametrize(
    ("line", "build"),
    [
        ("cuda: Optional[str] = '13.0'", "13.0"),
        ('cuda = "12.8"', "12.8"),
        ("cuda: Optional[str] = None", "none"),
        ("cuda_other = '9'\ncuda = None\nhip = '6.2'", "none"),
    ],
)
def test_torchs_cuda_build_is_read_from_its_text(tmp_path: Path, line: str, build: str) -> None:
    """The build stands in torch/version.py, and torch is not imported: this one could not be."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("raise SystemExit('imported')")
    (tmp_path / "torch/version.py").write_text(f"__version__ = '2.13.0'\n{line}\n")
    fact = read(tmp_path)["torch.cuda_build"]
    assert fact.value == build
    assert fact.source == str(tmp_path / "torch/version.py")


def test_the_judged_python_need_not_be_ours(tmp_path: Path) -> None:
    """Another interpreter is asked itself; and nothing is installed into it."""
    other = tmp_path / "python"
    other.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    other.chmod(0o755)
    found = read(tmp_path, python=str(other))
    assert found.known("python.executable") == str(other)
    assert found.known("python.version") == ".".join(map(str, sys.version_info[:3]))
    assert found["package.pytest"].is_known
    assert found.known("package.pytest") is None


def test_a_python_that_is_not_there_is_unknown(tmp_path: Path) -> None:
    """A wrong path makes its facts unknown, with the kernel's words."""
    found = read(python=str(tmp_path / "none"))
    assert found["package.torch"].why == "No such file or directory"
    assert not found.failures


@pytest.mark.parametrize(
    ("script", "why"), [("sleep 30", "hang"), ("echo oops >&2; exit 7", "exit 7: oops"), ("exit 0", "exit 0")]
)
def test_a_python_that_gives_no_answer_is_unknown(tmp_path: Path, script: str, why: str) -> None:
    """An interpreter that hangs, fails or says nothing costs the facts about it, and says how it ended."""
    other = tmp_path / "python"
    other.write_text(f"#!/bin/sh\n{script}\n")
    other.chmod(0o755)
    found = read(python=str(other), deadline_s=0.5)
    assert found["package.torch"].why == why
    assert found["python.version"].why == why


def test_a_python_that_chatters_is_understood(tmp_path: Path) -> None:
    """What a site's customisation prints at every start is not the answer."""
    (tmp_path / "sitecustomize.py").write_text("print('welcome to the cluster')\nprint('{')\n")
    assert read(tmp_path)["package.torch"].is_known


LAST_WORDS = r"""
import os
leave = os._exit
os._exit = lambda status: (os.write(1, b'{\n "gpucheck": "good bye'), leave(status))
"""


def test_the_last_words_of_a_library_are_not_taken_for_the_answer(tmp_path: Path) -> None:
    """What is printed after the answer, however much it looks like one, goes elsewhere."""
    (tmp_path / "sitecustomize.py").write_text(LAST_WORDS)
    assert read(tmp_path)["package.torch"].is_known


@pytest.mark.parametrize("script", ["sleep 1000", "exec yes"])
def test_a_python_that_hangs_or_floods_costs_its_own_facts_alone(tmp_path: Path, script: str) -> None:
    """A judged Python without an answer is given up soon, and everything else about the machine is known."""
    other = tmp_path / "python"
    other.write_text(f"#!/bin/sh\n{script}\n")
    other.chmod(0o755)
    began = time.monotonic()
    found = facts.read(python=str(other), deadline_s=4)
    assert time.monotonic() - began < 15
    lost = {name for name in found if found[name].why == "hang"}
    assert lost == {"python.version", "torch.cuda_build", "package.*"}
    assert found.known("machine.hostname")


def test_a_judged_python_is_not_waited_for_as_long_as_a_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own deadline holds where that of all children is longer."""
    other = tmp_path / "python"
    other.write_text("#!/bin/sh\nsleep 1000\n")
    other.chmod(0o755)
    monkeypatch.setattr(packages, "_DEADLINE_S", 0.3)
    began = time.monotonic()
    assert read(python=str(other), deadline_s=60)["package.torch"].why == "hang"
    assert time.monotonic() - began < 10


def test_a_source_tree_of_torch_is_known(tmp_path: Path) -> None:
    """A torch that nobody installed and that an import would find has the version of its own text."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/version.py").write_text("__version__ = '2.99.0a0+gitabc'\ncuda: Optional[str] = '13.0'\n")
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    fact = read(tmp_path, python=str(bare))["package.torch"]
    assert (fact.value, fact.source) == ("2.99.0a0+gitabc", str(tmp_path))
