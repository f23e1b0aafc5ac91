"""The probe container-sees-gpu: an engine that hands out GPUs, or fails to, in each known way.

The machine's driver is a stand-in and a container is a mount namespace that shows the GPUs that its engine hands out;
the payload in it is real. Refusals, and all that needs no GPU, come from the real engine that answers here.
"""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import gpucheck
from gpucheck import owner, scratch
from gpucheck.fakes import machine
from gpucheck.judgement import container_gpu
from gpucheck.judgement.hello import Hello
from gpucheck.process import PAYLOADS, Children, Ended, NoAnswer, Reply, Value, read_answer
from gpucheck.report import Report
from gpucheck.verdict import NotApplicable, Result, Subject, Unable, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

drive: Any = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("drive.py"))))
PROBE = "container_sees_gpu"
DRIVER = "580.95.05"
NO_TOOLKIT = 'could not select device driver "" with capabilities: [[gpu compute utility]]'
NO_CDI = 'could not select device driver "cdi" with capabilities: []'
HELLO: dict[str, Any] = {
    "kind": "docker",
    "version": "28.2.2",
    "runtimes": ["nvidia", "runc"],
    "security": [],
    "cdi_folders": ["/etc/cdi", "/var/run/cdi"],
    "devices": [],
    "root": "/var/lib/docker",
}
rooted = pytest.mark.skipif(os.getuid() != 0, reason="a mount namespace with nodes of its own needs root")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-ins for the driver's libraries."""
    return machine.build(tmp_path_factory.mktemp("built"))


@pytest.fixture(scope="module")
def children() -> Iterator[Children]:
    """Children of this Python."""
    here = owner.this_run()
    with scratch.folder(here) as folder, Children(here.run, folder) as made:
        yield made


class PlayedEngine:
    """Containers of an engine on a machine of two GPUs. ``ways`` says what comes of each way of asking.

    A way's value: "exact", "all" (whatever was asked), "none", or the engine's words of refusal.
    """

    def __init__(self, built: Path, folder: Path, **told: Any) -> None:
        self.built, self.folder = built, folder
        played = machine.load("eight-h100")
        self.machine = replace(played, cards=played.cards[:2])
        self.ways = {"gpus": "exact", "cdi": "exact", "runtime": "exact", "devices": "exact", **told.pop("ways", {})}
        hello = Hello.parse({**HELLO, **told})
        self.engine = SimpleNamespace(hello=hello, label=hello.label)
        self.asked: list[dict[str, Any]] = []

    @property
    def facts(self) -> dict[str, Any]:
        """Of the machine that the engine runs on."""
        told = [
            {"index": card.index, "uuid": card.uuid, "name": card.name, "capability": card.capability}
            | {"mig": False, "mig_devices": [], "unknown": {}}
            for card in self.machine.cards
        ]
        nodes = [f"/dev/nvidia{card.index}" for card in self.machine.cards]
        control = ["/dev/nvidiactl", "/dev/nvidia-uvm"]
        known = {"nvml.gpus": told, "gpu.nodes": nodes, "gpu.control_nodes": control, "machine.container": "none"}
        return {**known, "driver.module_version": DRIVER, "engine.nvidia_runtime": True, "engine.cdi_files": []}

    def __call__(self, payload: str, args: dict[str, Any], **how: Any) -> Reply:
        self.asked.append(how)
        way, which = self.request(how)
        answer = self.ways[way]
        if answer not in ("exact", "all", "none"):
            return Reply(NoAnswer(), Ended("refused"), errors=f"gpucheck-refused: {answer}")
        cards = {"exact": which, "all": self.machine.cards, "none": ()}[answer]
        return self.run(payload, args, tuple(cards))

    def request(self, how: dict[str, Any]) -> tuple[str, tuple[Any, ...]]:
        """The way of asking, and the GPUs asked for."""
        if "devices" in how:
            return "devices", tuple(card for card in self.machine.cards if f"/dev/nvidia{card.index}" in how["devices"])
        if how.get("runtime") == "nvidia":
            return "runtime", self.named(how["env"]["NVIDIA_VISIBLE_DEVICES"].split(","))
        gpus = how["gpus"]
        if gpus["Driver"] == "cdi":
            return "cdi", self.named([name.partition("=")[2] for name in gpus["DeviceIDs"]])
        return "gpus", self.named(gpus.get("DeviceIDs") or ["all"])

    def names(self) -> list[list[str]]:
        """The names by which GPUs were asked for, request by request."""
        requests = [asked["gpus"] for asked in self.asked if "gpus" in asked]
        return [request["DeviceIDs"] for request in requests if "DeviceIDs" in request]

    def named(self, names: list[str]) -> tuple[Any, ...]:
        """GPUs by UUID, number or "all"."""
        return tuple(c for c in self.machine.cards if "all" in names or c.uuid in names or str(c.index) in names)

    def run(self, payload: str, args: dict[str, Any], cards: tuple[Any, ...]) -> Reply:
        """The payload where only these GPUs are: their nodes, and a driver that shows no others."""
        home = Path(tempfile.mkdtemp(dir=self.folder)) / "home"
        shown = replace(self.machine, cards=cards)
        missing = [] if cards else ["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"]
        shown = replace(shown, data={**shown.data, "nodes_missing": missing})
        shown.write(home, self.built)
        argv = [sys.executable, "-B", str(PAYLOADS / "envelope.py"), str(PAYLOADS / f"{payload}.py")]
        argv = shown.enter(home, [*argv, json.dumps(args), "nonce", str(home / "answer")])
        env = os.environ | shown.environment(home)
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=False)
        return Reply(read_answer(home / "answer", "nonce"), Ended("exit", done.returncode), errors=done.stderr)


def outcome(function: Any, report: Report, *arguments: Any) -> Result:
    """What a probe's function came to, as the hooks around it take it."""
    try:
        function(report, *arguments)
    except Exception as raised:  # noqa: BLE001 - every exception of a probe is a result
        return report.result(raised)
    return report.result()


def judged(children: Children, engine: Any, facts: dict[str, Any], ways: dict[str, Any] | None = None) -> Result:
    """The engine's row."""
    module = drive.load(PROBE)
    report = drive.new_report(module, "container-sees-gpu", "default")

    def child(payload: str, args: Any, **how: Any) -> Any:
        return children.run(payload, args, **how)

    ways = {} if ways is None else ways
    return outcome(module.test_container_sees_gpu, report, drive.facts_of(facts), child, engine, ways)


def one(children: Children, engine: Any, facts: dict[str, Any], ways: dict[str, Any], number: int = 0) -> Result:
    """The row of one GPU."""
    module = drive.load(PROBE)
    gpu = facts["nvml.gpus"][number]
    report = Report("container-sees-gpu", "a probe", Subject("gpu", gpu["uuid"], "GPU"), essential=("one-gpu",))
    return outcome(module.test_sees_this_one, report, drive.facts_of(facts), children.run, engine, gpu, ways)


def found(result: Result) -> list[tuple[str, str]]:
    """The findings' ids and weights."""
    return [(finding.pitfall, finding.weight.value) for finding in result.findings]


def text(result: Result) -> str:
    """All that a result says."""
    lines = [*result.evidence, *(line for finding in result.findings for line in finding.evidence), *result.lacking]
    return "\n".join([*lines, *(f"{missed.leg}: {missed.why}" for missed in result.not_run)])


@pytest.fixture
def play(built: Path, tmp_path: Path) -> Any:
    """Makes an engine on a machine with two GPUs."""

    def make(**told: Any) -> PlayedEngine:
        return PlayedEngine(built, tmp_path, **told)

    return make


def cdi_file(folder: Path, driver: str) -> str:
    """A CDI file of the toolkit for that driver."""
    path = folder / "nvidia.yaml"
    path.write_text(
        f"cdiVersion: 0.5.0\nkind: nvidia.com/gpu\nmounts:\n- hostPath: /usr/lib/libcuda.so.{driver}\n"
        'devices:\n- name: "0"\n- name: "1"\n- name: all\n'
    )
    return str(path)


# -------------------------------------------------------------------------- engines that hand out


@rooted
def test_an_engine_that_hands_out_gpus_is_ok(children: Children, play: Any) -> None:
    """Both GPUs by --gpus and by the runtime, and by bare nodes; UUIDs in the evidence; CDI is not declared."""
    engine = play()
    result = judged(children, engine, engine.facts)
    assert result.verdict is Verdict.OK, text(result)
    assert result.legs == ("toolkit", "device-nodes")
    seen = text(result)
    for card in engine.machine.cards:
        assert card.uuid[4:] in seen
    assert "docker 28.2.2, --gpus, all GPUs: /dev/nvidia-uvm" in seen
    assert "docker 28.2.2, --runtime=nvidia, all GPUs" in seen
    assert "device nodes alone: /dev/nvidia-uvm" in seen
    assert "CDI: docker 28.2.2 declares none" in seen


@rooted
def test_the_toolkits_containers_may_write_etc_and_name_their_capabilities(children: Children, play: Any) -> None:
    """The hook writes /etc/ld.so.cache; an image that names no capability would get utility alone."""
    engine = play()
    judged(children, engine, engine.facts)
    by_gpus, by_runtime, by_nodes = engine.asked
    assert by_gpus["read_only"] is False
    assert by_runtime["read_only"] is False
    assert by_gpus["gpus"]["Capabilities"] == [["gpu", "compute", "utility"]]
    assert by_gpus["env"]["NVIDIA_DRIVER_CAPABILITIES"] == "compute,utility"
    assert "read_only" not in by_nodes
    assert by_nodes["devices"] == ("/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm")


@rooted
def test_one_gpu_comes_by_its_uuid_and_no_other(children: Children, play: Any) -> None:
    """In each way that works for all; the second GPU is asked for by its own UUID."""
    engine = play()
    ways: dict[str, Any] = {}
    judged(children, engine, engine.facts, ways)
    result = one(children, engine, engine.facts, ways, number=1)
    assert result.verdict is Verdict.OK, text(result)
    assert engine.names() == [[engine.machine.cards[1].uuid]]
    assert engine.machine.cards[1].uuid[4:] in text(result)
    assert engine.machine.cards[0].uuid[4:] not in text(result)


@rooted
def test_more_than_was_asked_for_is_found(children: Children, play: Any) -> None:
    """The engine hands out everything whatever is asked: fine for all, bad for one, with the stranger's UUID."""
    engine = play(ways={"gpus": "all"}, runtimes=["runc"])
    facts = {**engine.facts, "engine.nvidia_runtime": False}
    ways: dict[str, Any] = {}
    assert judged(children, engine, facts, ways).verdict is Verdict.OK
    result = one(children, engine, facts, ways)
    assert found(result) == [("gpu-not-isolated", "bad")]
    assert engine.machine.cards[1].uuid[4:] in text(result)


@rooted
def test_cdi_is_asked_by_the_files_names(children: Children, play: Any, tmp_path: Path) -> None:
    """With files and an engine that reads them CDI is a way too, and one GPU goes by its number."""
    engine = play()
    facts = {**engine.facts, "engine.cdi_files": [cdi_file(tmp_path, DRIVER)]}
    ways: dict[str, Any] = {}
    result = judged(children, engine, facts, ways)
    assert result.verdict is Verdict.OK, text(result)
    assert ways["found"] == ["--gpus", "CDI", "--runtime=nvidia"]
    assert one(children, engine, facts, ways, number=1).verdict is Verdict.OK
    assert engine.names() == [["nvidia.com/gpu=all"], [engine.machine.cards[1].uuid], ["nvidia.com/gpu=1"]]


# ------------------------------------------------------------------------------ engines that fail


@rooted
@pytest.mark.parametrize(
    ("told", "changes", "pitfall"),
    [
        ({"ways": {"gpus": NO_TOOLKIT}, "runtimes": ["runc"]}, {}, "toolkit-missing"),
        ({"ways": {"gpus": NO_TOOLKIT}, "runtimes": ["runc"], "root": "/var/snap/docker/x"}, {}, "snap-docker"),
        ({"ways": {"gpus": "cgroup subsystem devices not found"}, "runtimes": ["runc"]}, {}, "cgroup-devices-missing"),
        ({"ways": {"gpus": "bpf_prog_query(BPF_CGROUP_DEVICE) failed"}, "runtimes": []}, {}, "rootless-device-cgroup"),
        ({"ways": {"gpus": "none"}, "runtimes": ["runc"]}, {}, "gpu-not-in-container"),
        ({"ways": {"gpus": "none"}, "runtimes": [], "kind": "podman", "version": "4.9.3"}, {}, "podman-gpus-ignored"),
    ],
)
def test_an_engine_that_hands_out_nothing_is_bad(
    children: Children, play: Any, told: dict[str, Any], changes: dict[str, Any], pitfall: str
) -> None:
    """Each known reason by its own name; rows of single GPUs are blocked by it and no second finding."""
    engine = play(**told)
    facts = {**engine.facts, "engine.nvidia_runtime": False, **changes}
    ways: dict[str, Any] = {}
    assert found(judged(children, engine, facts, ways)) == [(pitfall, "bad")]
    row = one(children, engine, facts, ways)
    assert (row.verdict, row.blocked_by, found(row)) == (Verdict.UNABLE, "container-sees-gpu", [])


@rooted
def test_a_way_that_fails_beside_one_that_works_is_degraded(children: Children, play: Any) -> None:
    """--gpus has no toolkit, the runtime works."""
    engine = play(ways={"gpus": NO_TOOLKIT})
    ways: dict[str, Any] = {}
    assert found(judged(children, engine, engine.facts, ways)) == [("toolkit-missing", "degraded")]
    assert ways["found"] == ["--runtime=nvidia"]


@rooted
def test_a_runtime_that_only_the_file_declares_is_degraded(children: Children, play: Any) -> None:
    """daemon.json has it, the daemon does not know it: not restarted since."""
    engine = play(runtimes=["runc"])
    assert found(judged(children, engine, engine.facts)) == [("runtime-undeclared", "degraded")]


@rooted
def test_a_cdi_file_older_than_the_driver_is_found(children: Children, play: Any, tmp_path: Path) -> None:
    """Refused because of it, or still accepted: the versions of both are the evidence."""
    path = cdi_file(tmp_path, "570.169")
    for cdi in ("CDI device injection failed: failed to stat CDI host device", "exact"):
        engine = play(ways={"cdi": cdi})
        result = judged(children, engine, {**engine.facts, "engine.cdi_files": [path]})
        assert found(result) == [("cdi-stale", "degraded")]
        assert "is made for driver 570.169; loaded is 580.95.05" in text(result)


@rooted
def test_a_cdi_file_waits_for_an_engine_that_reads_it(children: Children, play: Any, tmp_path: Path) -> None:
    """No toolkit, CDI off: one finding, and what stopped CDI beside it."""
    engine = play(ways={"gpus": NO_TOOLKIT, "cdi": NO_CDI}, runtimes=["runc"], cdi_folders=[])
    facts = {**engine.facts, "engine.nvidia_runtime": False, "engine.cdi_files": [cdi_file(tmp_path, DRIVER)]}
    result = judged(children, engine, facts)
    assert found(result) == [("toolkit-missing", "bad")]
    assert f"CDI: docker 28.2.2: {NO_CDI}" in text(result)


@rooted
def test_podman_that_has_cdi_files_is_only_degraded(children: Children, play: Any, tmp_path: Path) -> None:
    """Its docker-compatible socket ignores requests, its own command line does not."""
    engine = play(ways={"gpus": "none", "cdi": "none"}, runtimes=[], kind="podman", version="4.9.3", cdi_folders=[])
    facts = {**engine.facts, "engine.cdi_files": [cdi_file(tmp_path, DRIVER)]}
    assert found(judged(children, engine, facts)) == [("podman-gpus-ignored", "degraded")]


@rooted
def test_words_that_nobody_knows_are_unable(children: Children, play: Any) -> None:
    """The engine's own words are shown, and nothing is guessed."""
    engine = play(ways={"gpus": "something entirely new"})
    result = judged(children, engine, engine.facts)
    assert result.verdict is Verdict.UNABLE
    assert "something entirely new" in text(result)


@rooted
def test_a_driver_that_does_not_start_is_another_probes_finding(children: Children, play: Any) -> None:
    """Everything is there inside and cuInit fails: unable, blocked by cuda-available."""
    engine = play()
    engine.machine = replace(engine.machine, data={**engine.machine.data, "cuda": {"init": 999}})
    result = judged(children, engine, engine.facts)
    assert (result.verdict, result.blocked_by) == (Verdict.UNABLE, "cuda-available")
    assert "cuInit: 999" in text(result)


# ------------------------------------------------------------------------------- not for here


def test_no_gpu_is_not_applicable_and_asks_no_engine(children: Children) -> None:
    """A known absence; the engine is not even opened."""
    bare = {"gpu.pci": [], "gpu.expected": [], "gpu.nodes": [], "machine.container": "none"}
    assert judged(children, None, bare).verdict is Verdict.NOT_APPLICABLE


def test_no_engine_is_not_applicable(children: Children) -> None:
    """Two GPUs and nothing that runs containers."""
    gpus = [{"index": 0, "uuid": "GPU-0"}]
    result = judged(children, drive.NoEngine(), {"nvml.gpus": gpus, "gpu.nodes": ["/dev/nvidia0"]})
    assert result.verdict is Verdict.NOT_APPLICABLE


def test_as_typed_without_a_gpu_it_is_not_applicable(tmp_path: Path) -> None:
    """`gpucheck run` on a machine without GPUs: a row for the engine and one for the GPU that is not there."""
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has a GPU")
    record = tmp_path / "record.jsonl"
    argv = [sys.executable, "-B", "-m", "gpucheck", "run", "-k", "container-sees-gpu", "--record", str(record)]
    env = {**os.environ, "PYTHONPATH": str(Path(gpucheck.__file__).parent.parent)}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=120, check=False)
    rows = [json.loads(line) for line in record.read_text().splitlines()]
    results = [row for row in rows if row["kind"] == "result"]
    assert [row["verdict"] for row in results] == ["not-applicable"] * 2, done.stdout + done.stderr


# ---------------------------------------------------------------------------- the real engine


@pytest.fixture(scope="module")
def container(docker_host: str) -> Iterator[Any]:
    """Containers of the engine that answers here, which knows no toolkit."""
    before = os.environ.get("DOCKER_HOST")
    os.environ["DOCKER_HOST"] = docker_host
    try:
        with drive.containers() as made:
            if "nvidia" in made.engine.hello.runtimes:
                pytest.skip("this engine hands out GPUs")
            yield made
    except (NotApplicable, Unable) as none:
        pytest.skip(f"no container engine: {none}")
    finally:
        os.environ.pop("DOCKER_HOST") if before is None else os.environ.update(DOCKER_HOST=before)


HOST = {
    "nvml.gpus": [
        {
            "index": 0,
            "uuid": "GPU-0",
            "name": "a GPU",
            "capability": "9.0",
            "mig": False,
            "mig_devices": [],
            "unknown": {},
        }
    ],
    # A node that exists on every machine stands in for the GPU's: the engine passes it on, and it is no GPU's inside.
    "gpu.nodes": ["/dev/full"],
    "gpu.control_nodes": [],
    "machine.container": "none",
    "driver.module_version": DRIVER,
    "engine.cdi_files": [],
    "engine.nvidia_runtime": False,
}


def test_a_real_engine_without_the_toolkit_is_told(container: Any, children: Children) -> None:
    """Its own refusal is toolkit-missing, and bare nodes that are no GPU's are none inside; nothing is left."""
    result = judged(children, container, HOST)
    assert found(result) == [("toolkit-missing", "bad"), ("gpu-not-in-container", "bad")]
    assert 'could not select device driver "" with capabilities' in text(result)
    assert "device nodes alone: it started, and of NVIDIA's nodes it has none" in text(result)
    marked = container.engine.call("marked", container.deadline)
    mine = [thing["kind"] for thing in marked if thing["labels"]["gpucheck.run"] == container.engine.owner.run]
    assert set(mine) <= {"image"}


@pytest.mark.parametrize(
    ("how", "pitfall"),
    [
        ({"gpus": {"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=all"]}}, "cdi-not-enabled"),
        ({"gpus": {"Driver": "", "Count": -1, "Capabilities": [["gpu"]]}}, "toolkit-missing"),
    ],
)
def test_a_real_engines_refusals_are_in_the_table(container: Any, how: dict[str, Any], pitfall: str) -> None:
    """What the engine that answers here says is known."""
    reply = container("gpu_in_container", {}, read_only=False, **how)
    finding = container_gpu.refused(reply.refusal, container_gpu.Engine(), [], DRIVER)
    assert finding is not None, reply
    assert finding.pitfall == pitfall


def test_in_a_real_container_without_a_gpu_the_payload_finds_none(container: Any) -> None:
    """No node, no driver, an /etc that may be written as the toolkit's hook needs it; read-only it may not."""
    reply = container("gpu_in_container", {}, read_only=False)
    assert isinstance(reply.answer, Value), (reply, reply.errors)
    seen = reply.answer.value
    assert seen["nodes"] == {}
    assert seen["etc"] is None
    assert seen["driver"]["error"]
    assert seen["nvml"]["error"]
    assert container("gpu_in_container", {}).answer.value["etc"] == "EROFS"
