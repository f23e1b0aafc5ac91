"""Children: however one ends, the reply says how, in time, and nothing of its family is left."""

from __future__ import annotations

import importlib
import os
import socket
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from gpucheck import owner, scratch
from gpucheck.payload import envelope, family
from gpucheck.process import PAYLOADS as OURS
from gpucheck.process import Children, Failure, Garbage, NoAnswer, Reply, TooMuch, Value, supervised

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Go = Callable[..., Reply]

PAYLOADS = {
    "answers": "def main(args):\n    return args['x'] + 1\n",
    "raises": "def main(args):\n    raise LookupError('nothing there')\n",
    "unjson": "def main(args):\n    return object()\n",
    "prints": 'def main(args):\n    print(\'{"gpucheck": 1, "value": 2}\')\n    return 3\n',
    "exits": "import os\ndef main(args):\n    os._exit(7)\n",
    "segv": "import ctypes\ndef main(args):\n    ctypes.string_at(0)\n",
    "bus": (
        "import mmap, os\n"
        "def main(args):\n"
        "    fd = os.open('/dev/shm/gpucheck-test-bus', os.O_RDWR | os.O_CREAT)\n"
        "    os.unlink('/dev/shm/gpucheck-test-bus')\n"
        "    os.ftruncate(fd, 4096)\n"
        "    m = mmap.mmap(fd, 4096)\n"
        "    os.ftruncate(fd, 0)\n"
        "    m[0] = 1\n"
    ),
    "memory": "def main(args):\n    return len(bytearray(1 << 34))\n",
    "hangs": "import time\ndef inner():\n    time.sleep(300)\ndef main(args):\n    inner()\n",
    "deaf": (
        "import signal, time\n"
        "def main(args):\n"
        "    for n in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):\n"
        "        signal.signal(n, signal.SIG_IGN)\n"
        "    time.sleep(300)\n"
    ),
    "floods": (
        "def main(args):\n    for i in range(300000):\n        print('x' * 99)\n    print('the end')\n    return 1\n"
    ),
    "daemon": (
        "import os, time\n"
        "def main(args):\n"
        "    ours, theirs = os.pipe()\n"
        "    if os.fork() == 0:\n"
        "        os.setsid()\n"
        "        if os.fork() == 0:\n"
        "            os.write(theirs, b'%d' % os.getpid())\n"
        "            time.sleep(300)\n"
        "        os._exit(0)\n"
        "    return int(os.read(ours, 99))\n"
    ),
    "huge": "def main(args):\n    return 'x' * (2 << 20)\n",
    "progresses": "import envelope\ndef main(args):\n    envelope.progress('one')\n    envelope.progress('two')\n",
    "forger": (
        "import glob, json, os, sys, time\n"
        "def main(args):\n"
        "    path = os.environ['GPUCHECK_PROGRESS'][:-len('.progress')]\n"
        "    open(path, 'w').write(json.dumps({'gpucheck': 'guess', 'value': 1}))\n"
        "    sys.stdout.flush()\n"
        "    os._exit(0)\n"
    ),
    "tells": "def main(args):\n    raise ValueError('x' * args['before'] + ' ' + args['token'] + ' y' * 99999)\n",
    "prints_at": "def main(args):\n    print('x' * args['before'], args['token'] + ' y' * args['after'], end='')\n",
    "answers_at": (
        "import os\n"
        "def main(args):\n"
        "    path = os.environ['GPUCHECK_PROGRESS'][:-len('.progress')]\n"
        "    open(path, 'w').write('x' * args['before'] + ' ' + args['token'])\n"
        "    os._exit(0)\n"
    ),
    "sees": "import os\ndef main(args):\n    s = os.statvfs('/dev/shm')\n    return s.f_blocks * s.f_frsize\n",
    "limits": "import resource\ndef main(args):\n    return resource.getrlimit(resource.RLIMIT_NOFILE)\n",
    "env": "import os\ndef main(args):\n    return [os.environ.get(n) for n in args['names']]\n",
    "modules": "import sys\ndef main(args):\n    return args['name'] in sys.modules\n",
    "threads": "import os\ndef main(args):\n    return len(os.listdir('/proc/self/task'))\n",
}


@pytest.fixture(scope="module")
def children(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Children]:
    """Children whose warm server has imported a small library."""
    who = owner.this_run()
    with scratch.folder(who) as folder, Children(who.run, folder, preload=("decimal",)) as made:
        yield made
    assert family.bearers(who.run) == []


@pytest.fixture(scope="module")
def payloads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The payloads above, as files."""
    folder = tmp_path_factory.mktemp("payloads")
    for name, text in PAYLOADS.items():
        (folder / f"{name}.py").write_text(text)
    return folder


@pytest.fixture(params=["warm", "cold"])
def warm(request: pytest.FixtureRequest) -> bool:
    """Both ways of starting a child."""
    return bool(request.param == "warm")


@pytest.fixture
def run(children: Children, payloads: Path, warm: bool) -> Go:
    """Run one of the payloads."""

    def go(name: str, deadline_s: float = 20, **how: Any) -> Reply:
        return children.run(
            str(payloads / f"{name}.py"), {"x": 1, **how.pop("args", {})}, deadline_s=deadline_s, warm=warm, **how
        )

    return go


def test_value(run: Go) -> None:
    """What a payload returns comes back."""
    reply = run("answers")
    assert reply.answer == Value(2)
    assert (reply.ended.kind, reply.ended.code) == ("exit", 0)


def test_failure_is_data(run: Go) -> None:
    """An exception in a payload comes back as its type and text."""
    answer = run("raises").answer
    assert isinstance(answer, Failure)
    assert (answer.type, answer.text) == ("LookupError", "nothing there")
    assert isinstance(run("unjson").answer, Failure)


def test_what_a_payload_prints_is_no_answer(run: Go) -> None:
    """A payload that prints something that looks like an envelope is not believed; its real answer is."""
    reply = run("prints")
    assert reply.answer == Value(3)
    assert "gpucheck" in reply.output


@pytest.mark.parametrize(
    ("name", "kind", "code", "signal"),
    [("exits", "exit", 7, None), ("segv", "signal", None, "SIGSEGV"), ("bus", "signal", None, "SIGBUS")],
)
def test_deaths_are_told_apart(run: Go, name: str, kind: str, code: int | None, signal: str | None) -> None:
    """A payload that dies in the middle gave no answer, and the way it died is known."""
    reply = run(name)
    assert reply.answer == NoAnswer()
    assert (reply.ended.kind, reply.ended.code, reply.ended.signal) == (kind, code, signal)


def test_out_of_memory_is_a_failure(run: Go) -> None:
    """A payload that hits its own address-space limit fails with MemoryError."""
    answer = run("memory", limits={"as": 1 << 32}).answer
    assert isinstance(answer, Failure)
    assert answer.type == "MemoryError"


@pytest.mark.parametrize("name", ["hangs", "deaf"])
def test_hang_ends_at_the_deadline_and_says_where(run: Go, name: str) -> None:
    """A payload that hangs, deaf to signals or not, ends at our deadline with the stack of where it hung."""
    began = time.monotonic()
    reply = run(name, deadline_s=1.0)
    assert time.monotonic() - began < 8
    assert reply.ended.kind == "deadline"
    assert reply.answer == NoAnswer()
    assert any(f"{name}.py" in line for line in reply.ended.where)
    assert not any("supervisor.py" in line for line in reply.ended.where)


def test_flood_costs_nothing(run: Go) -> None:
    """Of thirty megabytes of output the first and the last part are kept, and the gap is marked."""
    reply = run("floods")
    assert reply.answer == Value(1)
    assert len(reply.output) < 300_000
    assert reply.output.rstrip().endswith("the end")
    assert "bytes left out" in reply.output


def test_daemon_does_not_outlive_its_payload(run: Go) -> None:
    """A daemon with a session of its own is found and killed."""
    answer = run("daemon").answer
    assert isinstance(answer, Value)
    assert not Path(f"/proc/{answer.value}/cwd").exists()


def test_too_much(run: Go) -> None:
    """An answer over a megabyte is not read."""
    assert isinstance(run("huge").answer, TooMuch)


def test_forged_answer(run: Go) -> None:
    """An envelope that does not carry our nonce is garbage."""
    assert isinstance(run("forger").answer, Garbage)


def test_progress_is_passed_on(run: Go, children: Children) -> None:
    """Each line of progress is told, once, in order."""
    told: list[str] = []
    children.progress = told.append
    run("progresses")
    children.progress = lambda _: None
    assert told == ["one", "two"]


def test_shared_memory_of_its_own(run: Go) -> None:
    """A payload with shm_bytes sees a /dev/shm of exactly that size, and the host's is untouched."""
    before = os.statvfs("/dev/shm").f_blocks
    reply = run("sees", shm_bytes=64 << 20)
    if reply.refusal:
        pytest.skip(f"the kernel refuses namespaces here: {reply.refusal}")
    assert reply.answer == Value(64 << 20)
    assert os.statvfs("/dev/shm").f_blocks == before


def test_limits_and_environment_are_the_childs_own(run: Go) -> None:
    """Limits and variables reach the child asked for and no later one."""
    assert run("limits", limits={"nofile": 77}).answer == Value([77, 77])
    assert run("env", args={"names": ["A_B"]}, env={"A_B": "c"}).answer == Value(["c"])
    assert run("env", args={"names": ["A_B"]}).answer == Value([None])
    assert run("env", args={"names": ["HOME"]}, env={"HOME": None}).answer == Value([None])


def test_children_keep_their_files_to_themselves(run: Go, children: Children) -> None:
    """Every cache and temporary folder lies inside the run's own folder."""
    names = ["HOME", "TMPDIR", "XDG_CACHE_HOME", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH"]
    answer = run("env", args={"names": names}).answer
    assert isinstance(answer, Value)
    assert all(value.startswith(str(children.folder)) for value in answer.value)


def test_server_that_cannot_import_falls_back_to_cold(payloads: Path) -> None:
    """When the warm server dies while importing, the payload still runs, cold."""
    who = owner.this_run()
    with scratch.folder(who) as folder, Children(who.run, folder, preload=("no_such_module_at_all",)) as made:
        assert made.run(str(payloads / "answers.py"), {"x": 1}, deadline_s=20).answer == Value(2)


def test_server_with_threads_does_not_fork(payloads: Path, tmp_path: Path) -> None:
    """A server that got a second thread refuses to fork, and the payload runs cold."""
    (tmp_path / "threaded.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
    )
    who = owner.this_run()
    with scratch.folder(who) as folder, Children(who.run, folder, preload=("threaded",)) as made:
        made.env["PYTHONPATH"] = str(tmp_path)
        assert made.run(str(payloads / "threads.py"), deadline_s=20).answer == Value(1)


@pytest.fixture
def slow_children(tmp_path: Path) -> Iterator[Children]:
    """Children whose warm server imports for four seconds."""
    (tmp_path / "slow_to_import.py").write_text("import time\ntime.sleep(4)\n")
    who = owner.this_run()
    with scratch.folder(who) as folder, Children(who.run, folder, preload=("slow_to_import",)) as made:
        made.env["PYTHONPATH"] = str(tmp_path)
        yield made


def test_a_slow_server_leaves_a_payload_half_of_its_time(slow_children: Children, payloads: Path) -> None:
    """What does not wait for the server any longer runs cold; when the server is there, it serves later ones."""
    env = str(payloads / "env.py")
    asked = {"names": ["PYTHONPATH"]}
    began = time.monotonic()
    assert isinstance(slow_children.run(env, asked, deadline_s=4).answer, Value)
    assert 2 <= time.monotonic() - began < 4
    loaded = slow_children.run(str(payloads / "modules.py"), {"name": "slow_to_import"}, deadline_s=20)
    assert loaded.answer == Value(True)


def test_a_payload_that_had_half_of_its_time_says_so(slow_children: Children, payloads: Path) -> None:
    """Ended at its deadline after waiting for the server: the reason is not its own alone."""
    reply = slow_children.run(str(payloads / "hangs.py"), deadline_s=2)
    assert reply.ended.kind == "deadline"
    assert "the warm server was still importing slow_to_import, 1 s after its start" in reply.ended.where


def test_commands_end_at_the_deadline_too(children: Children) -> None:
    """A command that is no payload is killed at its deadline, its whole family with it."""
    reply = children.run_argv(["sh", "-c", "sleep 300 & sleep 300"], deadline_s=0.5)
    assert reply.ended.kind == "deadline"
    alive = [Path(f"/proc/{pid}/cmdline").read_text() for pid in family.bearers(children.run_id)]
    assert not any("sleep" in line for line in alive)


def test_a_supervisor_that_is_gone_or_deaf_is_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that nobody takes ends the conversation: in time, and without an exception."""
    monkeypatch.setattr(supervised, "SEND_S", 0.2)
    ours, theirs = socket.socketpair()
    theirs.close()
    with ours:
        assert supervised.Conversation(ours, {"argv": []}).report(5) == {"lost": True}
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert supervised.Conversation(ours, {"argv": ["x" * (8 << 20)]}).report(5) == {"lost": True}


@pytest.mark.parametrize("preload", [(), ("decimal",)])
def test_a_process_that_cannot_be_started_is_data(payloads: Path, preload: tuple[str, ...]) -> None:
    """The kernel's refusal comes back as why the child could not be set up; here of a variable that is too long."""
    who = owner.this_run()
    with scratch.folder(who) as folder, Children(who.run, folder, preload=preload) as made:
        made.env["TOO_LONG"] = "x" * (1 << 20)
        for reply in (
            made.run(str(payloads / "answers.py"), {"x": 1}, deadline_s=9),
            made.run_argv(["true"], deadline_s=9),
        ):
            assert reply.answer == NoAnswer()
            assert "Argument list too long" in (reply.refusal or "")


def test_output_is_redacted(run: Go, monkeypatch: pytest.MonkeyPatch) -> None:
    """A secret that a payload prints or raises does not come back."""
    token = "hf_" + "a1B2" * 9
    reply = run("env", args={"names": [token]})
    assert token not in reply.output + reply.errors


@pytest.mark.parametrize(
    ("payload", "before", "after"),
    [
        pytest.param("tells", 20000 - 12, 0, id="an exception's text"),
        pytest.param("prints_at", (64 << 10) - 12, 1 << 20, id="the head of a flood"),
        pytest.param("prints_at", 1 << 20, (96 << 10) - 6, id="the tail of a flood"),
        pytest.param("answers_at", 200 - 12, 0, id="what is no answer"),
    ],
)
def test_no_half_of_a_secret_is_left_where_a_text_is_cut(run: Go, payload: str, before: int, after: int) -> None:
    """A token that a cut goes through is masked or dropped whole: half of one would no longer be known as one."""
    token = "hf_" + "a1B2" * 9
    reply = run(payload, args={"token": token, "before": before, "after": after})
    said = f"{reply.answer!r}{getattr(reply.answer, 'text', '')}{reply.output}{reply.errors}"
    assert "xxx" in said or "y y" in said
    assert "a1B2" not in said


@pytest.mark.parametrize(
    ("text", "size", "first", "last"),
    [
        ("all of it", 9, "all of it", "all of it"),
        ("one\ntwo three\nfour", 11, "one\n", "four"),
        ("one two three four", 10, "one two ", "four"),
        (b"one two three four", 10, b"one two ", b"four"),
        ("a-single-long-word", 10, "", ""),
    ],
)
def test_a_cut_leaves_whole_lines_or_words(text: Any, size: int, first: Any, last: Any) -> None:
    """What a cut goes through is dropped, a line where there are several, else a word."""
    assert (envelope.first_part(text, size), envelope.last_part(text, size)) == (first, last)


def test_the_log_of_a_container_is_cut_between_its_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kept end of a long log does not begin in the middle of a token."""
    pytest.importorskip("docker")
    monkeypatch.syspath_prepend(OURS)
    engine_call = importlib.import_module("engine_call")
    log = b"begin\n--token hf_" + b"a1B2" * 9 + b"\n" + b"y" * (engine_call.LOG_BYTES - 10) + b"\n"
    client = SimpleNamespace(api=SimpleNamespace(logs=lambda *_, **__: log))
    assert set(engine_call._logs(client, "any").strip()) == {"y"}
