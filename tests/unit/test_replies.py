"""What a reply is worth: a value, the machine in the way, or a mistake of ours. The children are real."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from gpucheck import owner, scratch
from gpucheck.legs.replies import value_of
from gpucheck.process import Children, Failure, Garbage, NoAnswer, TooMuch
from gpucheck.verdict import Failed, Unable, Unexplained

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def children() -> Iterator[Children]:
    """Children without a warm server."""
    here = owner.this_run()
    with scratch.folder(here) as folder, Children(here.run, folder, sys.executable) as made:
        yield made


@pytest.mark.parametrize(
    ("torch", "words"),
    [
        ("raise ImportError('not today')", "ImportError: not today"),
        ("raise OSError('not today')", "OSError: not today"),
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("None.nothing", "AttributeError: 'NoneType' object"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("import os; os._exit(7)", "exit 7"),
        ("import os; os.kill(os.getpid(), 11)", "killed by SIGSEGV"),
    ],
)
def test_what_cannot_be_imported_is_no_mistake_of_ours(
    children: Children, tmp_path: Path, torch: str, words: str
) -> None:
    """However the import of what is under test ends, the probe is unable and says how."""
    (tmp_path / "torch.py").write_text(torch)
    reply = children.run("shm_tensors", {}, deadline_s=30, env={"PYTHONPATH": str(tmp_path)})
    with pytest.raises(Unable, match=words) as raised:
        value_of(reply, "tensors")
    # What a shared library's words mean is told once, by the probe of the import.
    assert isinstance(raised.value, Unexplained) == (words == "exit 7")


def test_a_payload_that_raises_in_its_own_code_is_a_mistake_of_ours(children: Children, tmp_path: Path) -> None:
    """An error outside any import stays a checker-error where nothing explains it."""
    payload = tmp_path / "own.py"
    payload.write_text("def main(args):\n    raise OSError('our slip')\n")
    with pytest.raises(Failed, match="our slip"):
        value_of(children.run(str(payload), {}, deadline_s=30), "a payload")


def test_a_socket_below_a_long_folder_is_not_the_machines_fault(children: Children, tmp_path: Path) -> None:
    """A temporary folder that leaves no room for a socket is named, and is no finding."""
    payload = tmp_path / "sockets.py"
    payload.write_text(
        "from multiprocessing.connection import Listener\n"
        "def main(args):\n    Listener(__file__ + 'x' * 108, 'AF_UNIX')\n"
    )
    with pytest.raises(Unable, match=r"\(TMPDIR\)"):
        value_of(children.run(str(payload), {}, deadline_s=30), "a payload")


def test_what_is_not_a_value_reads_as_words() -> None:
    """An operator sees it in a line; no class of ours has a name there."""
    assert str(NoAnswer()) == "no answer"
    assert str(Garbage("{")) == "an answer that cannot be read ({)"
    assert str(TooMuch(2 << 20)) == "an answer of 2097152 bytes, of which at most 1048576 are read"
    assert str(Failure("OSError", "no room", "trace")) == "OSError: no room"
