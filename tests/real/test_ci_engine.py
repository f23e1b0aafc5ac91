"""`ci/engine`: which engine it uses, and that its private dockerd runs containers and goes away again.

Each test has a folder of its own (`GPUCHECK_ENGINE_DIR`) and hides the machine's engine, so none in use is touched.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import signal
import socketserver
import subprocess
import tarfile
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

docker = pytest.importorskip("docker")

ENGINE = Path(__file__).parents[2] / "ci" / "engine"
SBIN = f"{os.environ['PATH']}:/usr/sbin:/sbin"
TIMEOUT_S = 60

needs_dockerd = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("dockerd", path=SBIN) is None,
    reason="a private dockerd needs root and docker.io",
)
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def environment(folder: Path, **more: str) -> dict[str, str]:
    """The environment of a `ci/engine` whose folder is `folder` and that sees no engine of this machine."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("DOCKER_", "GPUCHECK_"))}
    return kept | {"GPUCHECK_ENGINE_DIR": str(folder), "GPUCHECK_ENGINE_SYSTEM": ""} | more


def call(folder: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run `ci/engine`; its pipes must close, or this times out."""
    argv, env = [str(ENGINE), *arguments], environment(folder, **more)
    return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


def processes_of(folder: Path) -> list[int]:
    """Pids of the dockerd and containerd family whose arguments name `folder`."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            family = (process / "comm").read_text().startswith(("dockerd", "containerd"))
            if family and str(folder) in (process / "cmdline").read_text():
                found.append(int(process.name))
    return found


def assert_no_trace(folder: Path) -> None:
    """Neither process, mount nor folder is left of the engine in `folder`."""
    assert processes_of(folder) == []
    assert str(folder) not in Path("/proc/self/mountinfo").read_text()
    assert not folder.exists()


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder for an engine, which is stopped afterwards whatever happened."""
    with tempfile.TemporaryDirectory(prefix="ci-engine-") as parent:  # tmp_path is too long to hold a socket
        folder = Path(parent) / "engine"
        try:
            yield folder
        finally:
            call(folder, "stop")
        assert processes_of(folder) == []


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A docker client of a private dockerd that holds the empty image `empty`."""
    folder = tmp_path_factory.mktemp("shared") / "engine"
    started = call(folder, "start")
    assert started.returncode == 0, started.stderr
    client = docker.DockerClient(base_url=exported(started), timeout=20)
    try:
        client.api.import_image_from_data(empty_image(), repository="empty", tag="1")
        yield client
    finally:
        client.close()
        call(folder, "stop")
    assert_no_trace(folder)


def exported(started: subprocess.CompletedProcess[str]) -> str:
    """The address in the one line that `start` may print on stdout."""
    assert started.stdout.startswith("export DOCKER_HOST="), started.stderr
    assert started.stdout.count("\n") == 1
    return started.stdout.removeprefix("export DOCKER_HOST=").strip()


def empty_image() -> bytes:
    """A tar of folders only, over which the host's are bound."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name in (
            "bin",
            "dev",
            "lib",
            "lib64",
            "proc",
            "run",
            "sbin",
            "sys",
            "tmp",
            "usr",
        ):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
    return buffer.getvalue()


def host_folders() -> list[Any]:
    """The host's program folders, to be bound read-only where the empty image has none."""
    names = [name for name in ("/usr", "/lib", "/lib64", "/bin", "/sbin") if Path(name).exists()]
    return [docker.types.Mount(name, os.path.realpath(name), "bind", read_only=True) for name in names]


def python(client: Any, code: str, **settings: Any) -> tuple[dict[str, Any], str]:
    """Run the host's Python in a container; return its final state and what it printed."""
    mounts = host_folders()
    settings = {"network_mode": "none"} | settings
    container = client.containers.create("empty:1", ["/usr/bin/python3", "-S", "-c", code], mounts=mounts, **settings)
    try:
        container.start()
        container.wait(timeout=20)
        container.reload()
        return container.attrs["State"], container.logs().decode()
    finally:
        container.remove(force=True)


class Pong(socketserver.StreamRequestHandler):
    """Answers a ping as an engine does."""

    def handle(self) -> None:
        """Answer one request."""
        self.rfile.readline()
        self.wfile.write(b"HTTP/1.1 200 OK\r\nServer: Fake/1.0\r\nConnection: close\r\nContent-Length: 2\r\n\r\nOK")


class Drip(socketserver.StreamRequestHandler):
    """Answers a byte at a time, which no time-out per read ends."""

    def handle(self) -> None:
        """Drip until the client leaves."""
        with contextlib.suppress(OSError):
            self.wfile.write(b"HTTP/1.1 200 OK\r\nX-Drip: ")
            while True:
                self.wfile.write(b"x")
                time.sleep(0.1)


@contextlib.contextmanager
def listening(path: Path, handler: type[socketserver.BaseRequestHandler]) -> Iterator[str]:
    """A server on the unix socket `path`; gives its address."""
    with socketserver.ThreadingUnixStreamServer(str(path), handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        yield f"unix://{path}"
        server.shutdown()


def fake_tool(folder: Path, name: str, script: str) -> str:
    """Put a shell script in front of PATH as `name`; return that PATH."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)
    return f"{folder}:{SBIN}"


# Which engine


@pytest.mark.parametrize("arguments", [(), ("begin",), ("start", "now")])
def test_wrong_usage_is_status_2(folder: Path, arguments: tuple[str, ...]) -> None:
    """A wrong command prints the usage and exits 2."""
    result = call(folder, *arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert "ci/engine start" in result.stderr


def test_status_is_1_when_no_engine_answers(folder: Path) -> None:
    """With no engine, status says so and exits 1."""
    result = call(folder, "status")
    assert (result.returncode, result.stdout, result.stderr) == (
        1,
        "",
        "ci/engine: no engine answers\n",
    )


@pytest.mark.parametrize("variable", ["DOCKER_HOST", "GPUCHECK_ENGINE_SYSTEM"])
def test_an_engine_that_answers_is_used_and_never_stopped(folder: Path, tmp_path: Path, variable: str) -> None:
    """Start uses the engine that answers, makes no folder, and stop leaves that engine alone."""
    path = tmp_path / "other.sock"
    with listening(path, Pong) as address:
        here = {variable: address if variable == "DOCKER_HOST" else str(path)}
        assert exported(call(folder, "start", **here)) == address
        assert not folder.exists()
        assert call(folder, "stop", **here).returncode == 0
        status = call(folder, "status", **here)
        assert (status.returncode, status.stdout) == (
            0,
            f"{address}, Fake/1.0, not started by ci/engine\n",
        )


def test_an_engine_that_drips_is_given_up(folder: Path, tmp_path: Path) -> None:
    """An engine that answers a byte at a time counts as silent, within seconds."""
    with listening(tmp_path / "drip.sock", Drip) as address:
        began = time.monotonic()
        result = call(folder, "status", DOCKER_HOST=address)
        assert time.monotonic() - began < 6
    assert result.returncode == 1
    assert f"DOCKER_HOST={address} does not answer" in result.stderr


def test_an_address_that_cannot_be_asked_is_named(folder: Path) -> None:
    """An address that is neither unix nor tcp is refused by name, not taken for an engine."""
    result = call(folder, "status", DOCKER_HOST="ssh://elsewhere")
    assert result.returncode == 1
    assert "ssh://elsewhere: only unix:// and tcp:// can be asked" in result.stderr


# When it cannot


@needs_root
def test_only_root_can_start_one() -> None:
    """Another user is told to use sudo."""
    folder = Path(tempfile.gettempdir()) / "gpucheck-engine-nobody"
    result = subprocess.run(
        [
            "bash",
            "-s",
            "start",
        ],  # from stdin: the project may lie where nobody may look
        input=ENGINE.read_text(),
        env=environment(folder),
        cwd="/",
        user=65534,
        group=65534,
        extra_groups=[],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert (result.returncode, result.stdout) == (1, "")
    assert "only root can start one: sudo " in result.stderr
    assert not folder.exists()


@needs_dockerd
@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo boom; exit 1", "dockerd ended"),
        ("echo boom; while :; do sleep 0.1; done", "1 s"),
    ],
)
def test_a_dockerd_that_fails_shows_its_log_and_leaves_nothing(folder: Path, script: str, words: str) -> None:
    """A dockerd that ends or never answers makes start print the end of its log, clean up and exit 1."""
    path = fake_tool(folder.parent / "tools", "dockerd", script)
    result = call(folder, "start", PATH=path, GPUCHECK_ENGINE_DEADLINE_S="1")
    assert (result.returncode, result.stdout) == (1, "")
    assert words in result.stderr
    assert "\nboom\n" in result.stderr
    assert_no_trace(folder)


@needs_root
def test_a_folder_with_something_else_in_it_is_neither_used_nor_removed(
    folder: Path,
) -> None:
    """Start refuses a folder that holds somebody's files, and stop leaves them."""
    folder.mkdir()
    (folder / "thesis.txt").write_text("years of work")
    result = call(folder, "start")
    assert result.returncode == 1
    assert "is not empty and not ours" in result.stderr
    assert call(folder, "stop").returncode == 0
    assert (folder / "thesis.txt").exists()


def without_dockerd(folder: Path, distribution: str, apt: str) -> subprocess.CompletedProcess[str]:
    """Run start where no dockerd is seen, os-release names `distribution`, and apt-get is the script `apt`."""
    release = folder.parent / "os-release"
    release.write_text(f"ID={distribution}\n")
    dockerd = os.path.realpath(shutil.which("dockerd", path=SBIN) or "")
    path = fake_tool(folder.parent / "tools", "apt-get", apt)
    hide = (
        f"mount --bind /dev/null {dockerd} && mount --bind {release} $(realpath /etc/os-release) && exec {ENGINE} start"
    )
    env = environment(folder, PATH=path, DOCKERD=dockerd)
    argv = ["unshare", "--mount", "sh", "-c", hide]
    return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


@needs_dockerd
def test_elsewhere_than_on_debian_it_says_what_to_install(folder: Path) -> None:
    """On another distribution without docker, start names the packages, runs no apt-get and exits 1."""
    result = without_dockerd(folder, "fedora", "echo apt-get ran")
    assert (result.returncode, result.stdout) == (1, "")
    assert "Install docker.io" in result.stderr
    assert "apt-get ran" not in result.stderr


@needs_dockerd
def test_on_debian_it_installs_docker_and_starts_it(folder: Path) -> None:
    """Without docker on Debian, start installs it with nothing recommended or removed, and goes on."""
    result = without_dockerd(
        folder,
        "debian",
        'echo "apt-get $*"; case $* in *install*) umount "$DOCKERD" ;; esac',
    )
    assert exported(result) == f"unix://{folder}/docker.sock"
    assert "install -y --no-install-recommends --no-remove docker.io iptables ca-certificates\n" in result.stderr


@needs_dockerd
def test_a_failed_installation_is_said(folder: Path) -> None:
    """When apt-get fails, start says so after apt-get's own words and exits 1."""
    result = without_dockerd(folder, "debian", "echo 'E: no network'; exit 100")
    assert (result.returncode, result.stdout) == (1, "")
    assert "E: no network\nci/engine: apt-get could not install docker.io" in result.stderr


# The life of a private dockerd


@needs_dockerd
def test_starts_and_stops_can_be_repeated(folder: Path) -> None:
    """Two starts at once and one more give one dockerd, status knows it as private, and two stops leave nothing."""
    with ThreadPoolExecutor() as pool:
        both = list(pool.map(lambda _: call(folder, "start"), range(2)))
    assert {exported(started) for started in [*both, call(folder, "start")]} == {f"unix://{folder}/docker.sock"}
    assert len(processes_of(folder)) == len(["dockerd", "containerd"])
    status = call(folder, "status")
    assert status.returncode == 0
    assert status.stdout.endswith(f"the private one in {folder}\n")
    assert [call(folder, "stop").returncode for _ in range(2)] == [0, 0]
    assert_no_trace(folder)


@needs_dockerd
def test_it_outlives_the_session_that_started_it(folder: Path) -> None:
    """Killing the whole process group that called start does not end the dockerd."""
    script = f"{ENGINE} start; exec sleep 60"
    with subprocess.Popen(
        ["sh", "-c", script],
        env=environment(folder),
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as wrapper:
        assert wrapper.stdout is not None
        assert wrapper.stdout.readline().startswith("export ")
        os.killpg(wrapper.pid, signal.SIGKILL)
    assert call(folder, "status").returncode == 0


@needs_dockerd
@pytest.mark.parametrize("after_s", [0.03, 0.06, 0.1, 0.15])
def test_a_start_that_is_killed_leaves_nothing_that_stop_cannot_find(folder: Path, after_s: float) -> None:
    """Whenever start is killed, stop finds and removes what it had begun."""
    with subprocess.Popen([str(ENGINE), "start"], env=environment(folder), start_new_session=True) as starting:
        time.sleep(after_s)
        os.killpg(starting.pid, signal.SIGKILL)
    assert call(folder, "stop").returncode == 0
    time.sleep(0.2)  # what stop had missed would be up by now
    assert_no_trace(folder)


@needs_dockerd
def test_a_killed_dockerd_is_cleared_away_with_its_containers(folder: Path) -> None:
    """After a SIGKILL of dockerd, start clears what it left, running containers too, and starts a new one."""
    with contextlib.closing(docker.DockerClient(base_url=exported(call(folder, "start")), timeout=20)) as client:
        client.api.import_image_from_data(empty_image(), repository="empty", tag="1")
        sleeper = client.containers.run(
            "empty:1",
            ["/usr/bin/sleep", "60"],
            mounts=host_folders(),
            network_mode="none",
            detach=True,
        )
        sleeper.reload()
    pid = sleeper.attrs["State"]["Pid"]
    os.kill(int((folder / "dockerd.pid").read_text()), signal.SIGKILL)
    assert exported(call(folder, "start")) == f"unix://{folder}/docker.sock"
    assert not Path(f"/proc/{pid}/exe").exists()  # a zombie that nobody reaps has no exe
    assert call(folder, "stop").returncode == 0
    assert_no_trace(folder)


@needs_dockerd
def test_stop_ends_its_own_dockerd_and_nothing_else(folder: Path) -> None:
    """Stop ends only processes that name its folder, whatever a pid file says."""
    assert call(folder, "start").returncode == 0
    with subprocess.Popen(["sleep", "60"]) as bystander:
        (folder / "dockerd.pid").write_text(str(bystander.pid))
        assert call(folder.with_name("another"), "stop").returncode == 0
        assert call(folder, "status").returncode == 0
        assert call(folder, "stop").returncode == 0
        assert bystander.poll() is None
        bystander.kill()
    assert_no_trace(folder)


@needs_dockerd
def test_git_clean_does_not_lose_it(folder: Path) -> None:
    """A dockerd whose folder was cleaned away under it is still found, stopped and replaced."""
    assert call(folder, "start").returncode == 0
    shutil.rmtree(folder, ignore_errors=True)
    assert call(folder, "stop").returncode == 0
    assert processes_of(folder) == []
    assert call(folder, "start").returncode == 0


@needs_dockerd
@pytest.mark.parametrize("name", ["a folder with spaces", "long-" * 20])
def test_any_folder_will_do(tmp_path: Path, name: str) -> None:
    """Spaces, and a path too long for a socket, are no obstacle; stop leaves nothing in /run either."""
    folder = tmp_path / name / "engine"
    try:
        address = subprocess.run(
            ["bash", "-c", f'eval "$({ENGINE} start)" && printf %s "$DOCKER_HOST"'],
            env=environment(folder),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=True,
        ).stdout
        with contextlib.closing(docker.DockerClient(base_url=address, timeout=20)) as client:
            assert client.info()["DockerRootDir"] == f"{folder}/data"
    finally:
        call(folder, "stop")
    assert_no_trace(folder)
    assert not Path(address.removeprefix("unix://")).parent.exists()


@needs_dockerd
def test_on_an_overlay_it_falls_back_to_vfs(tmp_path: Path) -> None:
    """Where an overlay cannot be stacked, the storage driver is vfs."""
    for name in ("lower", "upper", "work", "merged"):
        (tmp_path / name).mkdir()
    options = ",".join(f"{name}dir={tmp_path / name}" for name in ("lower", "upper", "work"))
    subprocess.run(
        ["mount", "-t", "overlay", "-o", options, "overlay", tmp_path / "merged"],
        check=True,
    )
    try:
        started = call(tmp_path / "merged" / "engine", "start")
        with contextlib.closing(docker.DockerClient(base_url=exported(started), timeout=20)) as client:
            assert client.info()["Driver"] == "vfs"
    finally:
        call(tmp_path / "merged" / "engine", "stop")
        subprocess.run(["umount", tmp_path / "merged"], check=True)


# What the probes need of it


@needs_dockerd
def test_the_hosts_python_runs_as_an_ordinary_user_without_rights(client: Any) -> None:
    """An empty image with the host's /usr bound runs Python as uid 1000, read-only, with no capability to gain."""
    code = (
        "import os; status = open('/proc/self/status')\n"
        "print(os.getuid(), *[line for line in status if line[:6] in {'CapEff', 'NoNewP'}])"
    )
    state, printed = python(
        client,
        code,
        user="1000",
        read_only=True,
        cap_drop=["ALL"],
        security_opt=["no-new-privileges"],
    )
    assert state["ExitCode"] == 0, printed
    assert printed.split() == ["1000", "CapEff:", "0" * 16, "NoNewPrivs:", "1"]


@needs_dockerd
def test_a_read_only_container_has_a_writable_shm_of_the_size_asked_for(
    client: Any,
) -> None:
    """--read-only refuses writes outside /dev/shm, and --shm-size gives its size."""
    code = (
        "import os; s = os.statvfs('/dev/shm'); print(s.f_blocks * s.f_frsize); open('/dev/shm/x', 'w').write('x')\n"
        "try: open('/x', 'w')\nexcept OSError as error: print(error.errno)"
    )
    _, printed = python(client, code, read_only=True, shm_size="64m")
    assert printed.split() == [str(64 << 20), "30"]


@needs_dockerd
def test_a_memory_limit_kills_with_137_and_oomkilled(client: Any) -> None:
    """Beyond the memory limit the kernel kills, and the engine knows why."""
    state, _ = python(client, "bytearray(200 << 20)", mem_limit="32m", memswap_limit="32m")
    assert (state["ExitCode"], state["OOMKilled"]) == (137, True)


@needs_dockerd
def test_pids_and_cpus_are_limited(client: Any) -> None:
    """--pids-limit refuses a fork, and --cpus is in force while the container runs."""
    code = (
        "import os, time\nforks = 0\ntry:\n"
        "    while forks < 50:\n        if os.fork() == 0: time.sleep(5); os._exit(0)\n        forks += 1\n"
        "except OSError: pass\n"
        "began, cpu = time.monotonic(), time.process_time()\n"
        "while time.monotonic() - began < 0.5: pass\n"
        "print(forks, (time.process_time() - cpu) < 0.25)"
    )
    _, printed = python(client, code, pids_limit=10, nano_cpus=200_000_000)
    assert printed.split() == ["9", "True"]


@needs_dockerd
def test_the_networks_are_none_and_host(client: Any) -> None:
    """Network none has the loopback alone, network host the host's interfaces."""
    code = "import os; print(*sorted(os.listdir('/sys/class/net')))"
    assert python(client, code)[1].split() == ["lo"]
    assert python(client, code, network_mode="host")[1].split() == sorted(os.listdir("/sys/class/net"))
