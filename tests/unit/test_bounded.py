"""A command with a deadline: what it said, how it ended, and that nothing it does makes us wait."""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
import warnings
from pathlib import Path

import pytest

from gpucheck.fakes import machine
from gpucheck.payload import bounded


def lives(mark: str) -> bool:
    """Whether a process with that word in its command line runs."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if mark.encode() in path.read_bytes().split(b"\0"):
                return True
        except OSError:
            continue
    return False


def sleeper(mark: str) -> str:
    """A command for the shell that sleeps under that name."""
    return f"{sys.executable} -S -c 'import time; time.sleep(60)' {mark}"


def test_a_command_that_ends_gives_its_words_and_its_status() -> None:
    """Both streams apart, and the exit status or the signal."""
    assert bounded.run(["sh", "-c", "echo out; echo err >&2; exit 3"], 10) == ("out\n", "err\n", 3)
    assert bounded.run(["sh", "-c", "kill -SEGV $$"], 10).code == -signal.SIGSEGV


def test_it_has_the_given_environment_and_no_input() -> None:
    """A command that asks for a password meets the end of its input."""
    assert bounded.run(["/bin/sh", "-c", "read x || echo end $A"], 10, {"A": "b"}).output == "end b\n"


def test_one_that_hangs_is_killed_with_its_group_and_its_words_are_kept() -> None:
    """Its code is None, what it said before is there, and nobody of it is left."""
    mark = f"gpucheck-test-{os.getpid()}"
    begun = time.monotonic()
    said = bounded.run(["sh", "-c", f"echo begun; {sleeper(mark)} & wait"], 0.5)
    assert time.monotonic() - begun < 5
    assert said == ("begun\n", "", None)
    assert not lives(mark)


def test_one_that_closed_its_streams_is_waited_for_all_the_same() -> None:
    """The end of its pipes is not its end, and not a reason to wait longer than allowed."""
    assert bounded.run(["sh", "-c", "exec >&- 2>&-; sleep 0.2; exit 4"], 10).code == 4
    assert bounded.run(["sh", "-c", "exec >&- 2>&-; sleep 60"], 0.3).code is None


def test_somebody_who_holds_its_pipes_is_not_waited_for() -> None:
    """A daemon that it leaves behind has our pipe; what the command itself said is whole."""
    begun = time.monotonic()
    said = bounded.run(["sh", "-c", "sleep 20 & echo $!; exit 0"], 15)
    assert time.monotonic() - begun < 10
    os.kill(int(said.output), signal.SIGKILL)
    assert said.code == 0


def test_of_a_flood_the_end_is_kept() -> None:
    """Sixty megabytes fill no memory of ours, and the last words are there."""
    said = bounded.run(["sh", "-c", "head -c 60000000 /dev/zero; echo last"], 30)
    assert len(said.output) == bounded.MOST_BYTES
    assert said.output.endswith("last\n")


@pytest.mark.parametrize(("trap", "words"), [("echo asked; exit 0", "asked\n"), ("", "")])
def test_one_that_is_asked_first_may_end_by_itself(trap: str, words: str) -> None:
    """With a time for it, SIGTERM comes before SIGKILL; its last words are heard, and it did not end in time."""
    begun = time.monotonic()
    script = f"trap '{trap}' TERM; while :; do sleep 0.05; done"
    assert bounded.run(["sh", "-c", script], 0.3, ask_s=1.0) == (words, "", None)
    assert time.monotonic() - begun < 5


def test_one_that_is_left_goes_on(tmp_path: Path) -> None:
    """At its limit it is told as not ended, it can still print, and does its work to the end."""
    script = f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; echo nobody listens; touch {tmp_path}/done"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert bounded.run(["sh", "-c", f"trap '' PIPE; {script}"], 0.2, leave=True).code is None
        gc.collect()
    (tmp_path / "go").touch()
    end = time.monotonic() + 10
    while not (tmp_path / "done").exists() and time.monotonic() < end:
        time.sleep(0.05)
    assert (tmp_path / "done").exists()


def test_no_ctrl_c_reaches_it() -> None:
    """It has a session of its own, which no terminal signals."""
    code = "import os; print(os.getsid(0) == os.getpid())"
    assert bounded.run([sys.executable, "-S", "-c", code], 10).output == "True\n"


def test_an_interruption_of_ours_leaves_nobody() -> None:
    """When the one who waits is interrupted, the command is killed before the interruption goes on."""
    mark = f"gpucheck-test-interrupted-{os.getpid()}"

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.4)
    try:
        with pytest.raises(KeyboardInterrupt):
            bounded.run(["sh", "-c", f"exec {sleeper(mark)}"], 30)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert not lives(mark)


def test_a_command_that_is_not_there_is_an_error() -> None:
    """What cannot be started was not run: that is the system's error, with the name."""
    with pytest.raises(FileNotFoundError, match="no-such-command"):
        bounded.run(["/no-such-command"], 1)


def test_a_compiler_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gcc, which makes the stand-ins for the driver in the user's own process, has a deadline as all else."""
    (tmp_path / "gcc").write_text("#!/bin/sh\nexec sleep 60\n")
    (tmp_path / "gcc").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(machine, "GCC_S", 0.3)
    with pytest.raises(RuntimeError, match=r"gcc did not end within 0.3 s"):
        machine.build(tmp_path / "built")
