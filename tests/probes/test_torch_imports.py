"""Each verdict of ``torch-imports``, from a real interpreter that finds a torch of the test's own."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

from gpucheck import facts, owner, profile, scratch
from gpucheck.legs import replies
from gpucheck.probes import test_torch_imports as probe
from gpucheck.process import Children
from gpucheck.report import Report
from gpucheck.verdict import Result, Subject, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Judge = Callable[..., Result]

LIBRARY = "libcudnn.so.9: cannot open shared object file: No such file or directory"


@pytest.fixture(scope="module")
def children() -> Iterator[Children]:
    """Children without a warm server: the probe needs none."""
    here = owner.this_run()
    with scratch.folder(here) as folder, Children(here.run, folder, sys.executable) as made:
        yield made


@pytest.fixture
def judge(children: Children, tmp_path: Path) -> Judge:
    """Judges a source tree of torch with that text (None: no torch at all); ``given`` are options."""

    def run(text: str | None, **given: str) -> Result:
        bare = tmp_path / "python"
        bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
        bare.chmod(0o755)
        if text is not None:
            (tmp_path / "torch").mkdir()
            (tmp_path / "torch/version.py").write_text("__version__ = '2.99.0'\ncuda = None\n")
            (tmp_path / "torch/__init__.py").write_text(text)
        path = {"PYTHONPATH": str(tmp_path)}
        judged, names = given.get("python", str(bare)), ["package.torch", "python.executable"]
        host = facts.read(names, python=judged, environ=path, deadline_s=5)
        report = Report("torch-imports", "t", Subject("host", "x", "x"), essential=("import",))

        def child(payload: str, args: Any, **how: Any) -> Any:
            return children.run(payload, args, deadline_s=60, env=path, **how)

        options = profile.resolve(given)
        error = None
        try:
            probe.test_torch_imports(report, host, child, options)  # type: ignore[arg-type] # what it calls of a Child
        except Exception as raised:  # noqa: BLE001 - as the hooks around a probe take it
            error = raised
        return report.result(error)

    return run


def test_a_torch_that_imports(judge: Judge) -> None:
    """It is ok with the version that torch says of itself and the seconds that it took."""
    result = judge("__version__ = '2.99.0+own'\n_C = print('hello')\n")
    assert (result.verdict, result.findings) == (Verdict.OK, ()), result.lacking
    assert result.gist.startswith("torch 2.99.0+own was imported in ")
    assert result.measures["import_s"] > 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param(f"raise ImportError('{LIBRARY}')", "library: libcudnn.so.9", id="an ImportError"),
        pytest.param(f"raise OSError('{LIBRARY}')", "library: libcudnn.so.9", id="an OSError"),
        pytest.param("__version__ = '2.99.0'", "a torch without its compiled part", id="a stand-in"),
        pytest.param("import no_such_module", "module: no_such_module", id="a missing module"),
        pytest.param("import os; os.kill(os.getpid(), 11)", "import torch died of SIGSEGV", id="a crash"),
        pytest.param("import os; os._exit(7)", "import torch left with status 7", id="an exit"),
        pytest.param("import time; time.sleep(60)", "import torch did not end", id="a hang"),
    ],
)
def test_torch_import_failed(judge: Judge, monkeypatch: pytest.MonkeyPatch, text: str, words: str) -> None:
    """However the import fails, no GPU is needed to find it, and the finding says how it ended."""
    monkeypatch.setattr(replies, "IMPORT_S", 3)
    result = judge(text)
    assert [(finding.pitfall, finding.weight) for finding in result.findings] == [("torch-import-failed", Verdict.BAD)]
    assert words in "\n".join(result.findings[0].evidence)


def test_a_host_without_torch_is_not_green(judge: Judge) -> None:
    """Nothing was learnt of a job that needs torch: unable, with what to type."""
    result = judge(None)
    assert result.verdict is Verdict.UNABLE
    assert result.lacking[0].endswith("/python: pip install 'pytest-gpucheck[torch]'")
    assert result.lacking[1:] == (
        "or the Python that your jobs use: --gpucheck-python PYTHON",
        "or the image that they run in: --gpucheck-image IMAGE",
    )


def test_a_named_python_without_torch_is_bad(judge: Judge, tmp_path: Path) -> None:
    """Who names a Python to be judged expects torch in it, with a GPU or without."""
    result = judge(None, python=str(tmp_path / "python"))
    assert [(finding.pitfall, finding.weight) for finding in result.findings] == [("torch-missing", Verdict.BAD)]
    assert result.findings[0].evidence == (f"{tmp_path}/python: torch is not installed",)


def test_named_images_stand_in_for_a_host_without_torch(judge: Judge) -> None:
    """Their torch is the one that runs, and each of them is judged by a row of its own."""
    result = judge(None, image="team/train:1.4")
    assert result.verdict is Verdict.NOT_APPLICABLE
    assert result.because is not None
    assert result.because.value == "torch is not installed; that of the images is judged"


def test_a_python_that_cannot_be_asked_is_unable(judge: Judge, tmp_path: Path) -> None:
    """Not knowing whether torch is installed is no reason to pass."""
    broken = tmp_path / "broken"
    broken.write_text("#!/no/such/interpreter\n")
    broken.chmod(0o755)
    result = judge(None, python=str(broken))
    assert result.verdict is Verdict.UNABLE
    assert result.lacking == ("whether torch is installed: No such file or directory",)
