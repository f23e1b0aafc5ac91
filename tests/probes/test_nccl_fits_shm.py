"""The probe nccl-fits-shm on made machines: the ranks are real processes that take real segments and fail for real.

They run in namespaces, and in containers of the engine that answers here; the log that NCCL would write is a recorded
one. What is not shown here is NCCL itself.
"""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import gpucheck
from gpucheck import owner, scratch
from gpucheck.engine import Bind
from gpucheck.judgement import nccl_plan, nccl_seen
from gpucheck.judgement.nccl_log import Version
from gpucheck.judgement.nccl_seen import End
from gpucheck.judgement.shm_need import MIB, Need
from gpucheck.process import Children, Value
from gpucheck.report import Report
from gpucheck.verdict import NotApplicable, Result, Subject, Unable, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__)
drive: Any = SimpleNamespace(**runpy.run_path(str(HERE.with_name("drive.py"))))
DATA = HERE.parents[1] / "data"
WORKER = DATA / "played_ranks.py"
PROBE = "nccl_fits_shm"
LIMIT_S = 4.0
LEFT = "nccl-played-"


def recorded(name: str) -> str:
    """The path of a recorded log."""
    return str(DATA / "nccl" / f"{name}.log")


def gpus(count: int, **changes: Any) -> dict[str, Any]:
    """Facts of a machine with so many GPUs; ``changes`` are those of the last."""
    told = [
        {
            "index": number,
            "uuid": f"GPU-{number}",
            "name": "NVIDIA H100",
            "capability": "9.0",
            "mig": False,
            "mig_devices": [],
            "compute_mode": "default",
            "processes": [],
            "unknown": {},
        }
        for number in range(count)
    ]
    told[-1] |= changes
    return {
        "nvml.gpus": told,
        "gpu.nodes": [f"/dev/nvidia{number}" for number in range(count)],
        "machine.container": "none",
        "package.torch": "2.14.1",
        "shm.free_bytes": 1 << 30,
    }


class Played:
    """What the fixture ``child`` is, with ranks that behave as told: ``forced`` ones, and those by themselves."""

    def __init__(self, children: Children, **told: str) -> None:
        self.children = children
        self.told = {"PLAYED_LOG": recorded("2.30-good"), **told}
        self.asked: list[dict[str, Any]] = []

    def __call__(self, payload: str, args: dict[str, Any], *, deadline_s: float, **how: Any) -> Any:
        del deadline_s
        self.asked.append({**args, **how})
        return self.children.run(payload, self.as_played(args), deadline_s=30, warm=False, **how)

    def as_played(self, args: dict[str, Any]) -> dict[str, Any]:
        """The same arguments for the other worker."""
        env = {**args["env"], **self.told}
        if args.get("apart"):
            env |= {"PLAYED": self.told.get("ALONE", "good"), "SEGMENTS": "0"}
        elif "NCCL_P2P_DISABLE" not in args["env"]:
            env |= {
                "PLAYED": self.told.get("UNFORCED", "good"),
                "PLAYED_LOG": recorded(self.told.get("FREE", "2.30-good")),
            }
        return {**args, "env": env, "worker": str(WORKER), "limit_s": LIMIT_S}


@pytest.fixture(scope="module")
def children() -> Iterator[Children]:
    """Children of this Python."""
    here = owner.this_run()
    with scratch.folder(here) as folder, Children(here.run, folder) as made:
        yield made


@pytest.fixture(autouse=True)
def _leaves_nothing() -> Iterator[None]:
    """After each test: no segment in /dev/shm, no rank alive."""
    yield
    assert [name for name in os.listdir("/dev/shm") if name.startswith(LEFT)] == []
    assert (
        "played_ranks" not in subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    )


def outcome(function: Any, report: Report, *arguments: Any) -> Result:
    """What a probe's function came to, as the hooks around it take it."""
    try:
        function(report, *arguments)
    except Exception as raised:  # noqa: BLE001 - every exception of a probe is a result
        return report.result(raised)
    return report.result()


def judged(child: Any, facts: dict[str, Any], *, container: Any = None, asked: Any = None, **options: str) -> Result:
    """The host's row."""
    module = drive.load(PROBE)
    resolved = drive.options_of({"level": "default", "shm": "64m,128m", **options}, {})
    report = drive.new_report(module, "nccl-fits-shm", resolved["level"])
    container = container or drive.NoEngine()
    host = drive.facts_of(facts)
    return outcome(module.test_nccl_fits_shm, report, host, resolved, child, container, {} if asked is None else asked)


def alone(child: Any, facts: dict[str, Any], asked: dict[str, Any]) -> Result:
    """The row of the last GPU."""
    module = drive.load(PROBE)
    report = Report("nccl-fits-shm", "a probe", Subject("gpu", "GPU-0", "GPU 0"), essential=("alone",))
    gpu = facts["nvml.gpus"][-1]
    options = drive.options_of({"level": "default"}, {})
    return outcome(module.test_alone, report, drive.facts_of(facts), options, child, gpu, asked)


def found(result: Result) -> list[tuple[str, str]]:
    """The findings' ids and weights."""
    return [(finding.pitfall, finding.weight.value) for finding in result.findings]


def text(result: Result) -> str:
    """All that a result says."""
    lines = [*result.evidence, *(line for finding in result.findings for line in finding.evidence), *result.lacking]
    return "\n".join([*lines, *(f"{missed.leg}: {missed.why}" for missed in result.not_run)])


# ------------------------------------------------------------------------------------ two GPUs


def test_the_sweep_finds_the_smallest_size_in_which_nccl_works(children: Children) -> None:
    """64m has no space for 8 segments, 128m has: ok, with what was taken, the need, the flag, what was not tried."""
    result = judged(Played(children), gpus(2))
    assert result.verdict is Verdict.OK, text(result)
    seen = text(result)
    assert "64m: rank" in seen
    assert "No space left on device" in seen
    assert "128m: 4457472 numbers right in each of 2 rank(s), via SHM/direct on 4 channels (/dev/shm), 73.6 MiB" in seen
    assert "smallest of those tried in which NCCL works: 128m" in seen
    assert "docker run --shm-size=256m" in seen
    assert result.measures["smallest_working_shm_bytes"] == 128 * MIB
    assert result.measures["shm_taken_bytes"] == pytest.approx(8 * 9637892, rel=0.01)
    assert {missed.leg for missed in result.not_run} == {"container", "all-gpus", "pairs"}


def test_without_forcing_it_says_what_a_job_takes(children: Children) -> None:
    """Peer to peer: the row says that a small /dev/shm does not stop such a job."""
    seen = text(judged(Played(children, FREE="2.27-peer-to-peer"), gpus(2)))
    assert "2 ranks, nothing forced (what a job takes by itself)" in seen
    assert "such a job goes over P2P: a small /dev/shm does not stop it" in seen


def test_forced_runs_force_and_pin_what_would_evade_dev_shm(children: Children) -> None:
    """No peer access, no cuMem, four channels; and the run by itself forces nothing."""
    child = Played(children)
    judged(child, gpus(2))
    free, forced = child.asked[1]["env"], child.asked[2]["env"]
    assert set(free) == {"NCCL_DEBUG", "NCCL_DEBUG_SUBSYS"}
    wanted = {
        "NCCL_P2P_DISABLE": "1",
        "NCCL_CUMEM_HOST_ENABLE": "0",
        "NCCL_MIN_NCHANNELS": "4",
        "NCCL_SHM_DISABLE": "0",
    }
    assert wanted.items() <= forced.items()
    assert child.asked[2]["visible"] == "GPU-0,GPU-1"


def test_a_bus_error_is_named_with_rank_and_size(children: Children) -> None:
    """As NCCL 2.12 to 2.18: the file is extended, the page is not there, and NCCL says nothing."""
    child = Played(children, PLAYED="ftruncate", PLAYED_LOG=recorded("2.18-good"), PLAYED_VERSION="2.18.5")
    result = judged(child, gpus(2))
    assert result.verdict is Verdict.OK
    assert "at initialise was killed by SIGBUS" in text(result)


@pytest.mark.parametrize("played", ["good", "ftruncate"])
def test_no_size_that_works_is_bad_with_the_flag(children: Children, played: str) -> None:
    """No space and bus error alike: too small, with the size to ask for."""
    result = judged(Played(children, PLAYED=played), gpus(2), shm="64m")
    assert found(result) == [("nccl-shm-too-small", "bad")]
    assert result.findings[0].params["shm_need"] == "256m"
    assert "what these ranks take by NCCL's own sizes: 73.6 MiB" in text(result)


def test_a_hang_says_which_rank_and_collective_with_stacks_and_nccls_last_lines(children: Children) -> None:
    """The third collective: killed at the limit, both stacks, the sweep ends there."""
    begun = time.monotonic()
    result = judged(Played(children, PLAYED="hang"), gpus(2), shm="128m,256m")
    assert time.monotonic() - begun < 30
    assert found(result) == [("nccl-hang", "bad")]
    seen = text(result)
    assert "rank 0 in collective 3, rank 1 in collective 3" in seen
    assert "in wait_for_peers" in seen
    assert "rank 1: File" in seen
    assert "in never_comes" in seen
    assert "NCCL's last lines: NCCL INFO Connected all rings" in seen
    assert "256m: " not in seen


def test_a_killed_rank_says_nothing_about_the_size(children: Children) -> None:
    """Unable, with the rank, the signal and who waited; not "too small", not a hang."""
    result = judged(Played(children, PLAYED="killed"), gpus(2))
    assert result.verdict is Verdict.UNABLE
    assert "rank 1 in collective 2 was killed by SIGKILL; rank 0 in collective 2 waited for it" in text(result)
    assert found(result) == []


def test_wrong_numbers_are_bad_whatever_the_size(children: Children) -> None:
    """One number of one rank is off."""
    result = judged(Played(children, PLAYED="wrong"), gpus(2), shm="128m")
    assert found(result) == [("wrong-numbers", "bad")]
    assert "1 of 4457472 in rank 1" in text(result)


def test_a_hang_over_peer_access_alone_accuses_peer_access(children: Children) -> None:
    """Nothing forced hangs over P2P, SHM works: ACS or the IOMMU, with the reason for the belief."""
    result = judged(Played(children, UNFORCED="hang", FREE="2.27-peer-to-peer"), gpus(2))
    assert found(result) == [("acs-iommu-p2p", "bad")]
    assert "with NCCL_P2P_DISABLE=1 the same ranks work" in text(result)


def test_a_run_that_did_not_use_dev_shm_is_no_evidence(children: Children) -> None:
    """cuMem's host memory, and nothing taken of /dev/shm: unable, and it says so."""
    child = Played(children, SEGMENTS="0", PLAYED_LOG=recorded("2.27-cumem"))
    result = judged(child, gpus(2), shm="128m")
    assert result.verdict is Verdict.UNABLE
    assert "did not use /dev/shm" in text(result)


def test_what_nccl_complains_of_is_the_finding(children: Children) -> None:
    """A rank that fails with a complaint in its log: the complaint's pitfall, in NCCL's words."""
    for name, pitfall in (("2.21-not-registered", "shm-register-failed"), ("2.30-same-gpu", "nccl-duplicate-gpu")):
        child = Played(children, SEGMENTS="20", PLAYED_LOG=recorded(name))
        assert found(judged(child, gpus(2), shm="128m")) == [(pitfall, "bad")], name


# ----------------------------------------------------------------------------- more GPUs, and one


def test_with_more_than_two_gpus_all_of_them_are_tried_once(children: Children) -> None:
    """Three ranks in the largest size; the pairs that were not tried are counted."""
    child = Played(children, SEGMENTS="1")
    result = judged(child, gpus(3), shm="64m,128m")
    assert result.verdict is Verdict.OK, text(result)
    assert "all-gpus" in result.legs
    assert child.asked[-1]["ranks"] == 3
    assert child.asked[-1]["shm_bytes"] == 128 * MIB
    assert "pairs: 2 other pairs: only in the level deep" in text(result)
    assert f"need of NCCL 2.30.7 on 3 ranks: {Need(3)}" in text(result)


def test_the_hosts_own_dev_shm_is_tried_where_it_is_named(children: Children) -> None:
    """`--gpucheck-shm host`: no size is swept, and each leg that wants one takes place in the host's own."""
    child = Played(children, SEGMENTS="1")
    result = judged(child, gpus(3), shm="host")
    assert result.verdict is Verdict.OK, text(result)
    assert {"sizes", "all-gpus"} <= set(result.legs)
    assert "SHM forced, own /dev/shm: 4457472 numbers right" in text(result)
    assert [asked.get("shm_bytes") for asked in child.asked[2:]] == [None, None]


def test_what_stops_the_ranks_in_the_hosts_own_dev_shm_is_a_finding(children: Children) -> None:
    """As in any size."""
    result = judged(Played(children, SEGMENTS="1", PLAYED="wrong"), gpus(2), shm="host")
    assert found(result) == [("wrong-numbers", "bad")]


def test_in_the_level_deep_every_pair_is_tried(children: Children) -> None:
    """Each pair of three GPUs, by the devices given to the ranks."""
    child = Played(children, SEGMENTS="1")
    result = judged(child, gpus(3), level="deep", shm="64m")
    assert "pairs" in result.legs
    assert [asked["devices"] for asked in child.asked[-3:]] == [[0, 1], [0, 2], [1, 2]]


def test_one_gpu_with_2_30_takes_both_ranks(children: Children) -> None:
    """NCCL_MULTI_RANK_GPU_ENABLE, said for what it is; what has no second GPU is named."""
    child = Played(children)
    result = judged(child, gpus(1))
    assert result.verdict is Verdict.OK, text(result)
    assert child.asked[-1]["devices"] == [0, 0]
    assert child.asked[-1]["env"]["NCCL_MULTI_RANK_GPU_ENABLE"] == "1"
    assert "two ranks on one GPU (NCCL_MULTI_RANK_GPU_ENABLE, experimental), SHM forced, 128m" in text(result)
    assert "as-it-comes: one GPU: NVLink and PCIe peer access have nobody to talk to" in text(result)


def test_one_gpu_with_an_older_nccl_goes_over_the_network_and_says_so(children: Children) -> None:
    """Distinct NCCL_HOSTID, the pools in /dev/shm are the evidence, and the SHM transport stands in not_run."""
    child = Played(children, PLAYED_VERSION="2.28.9", PLAYED_LOG=recorded("2.28-network"))
    result = judged(child, gpus(1))
    assert result.verdict is Verdict.OK, text(result)
    env = child.asked[-1]["env"]
    assert (env["NCCL_HOSTID"], env["NCCL_SHM_DISABLE"]) == ("gpucheck-{rank}", "1")
    assert "over the network path and its pools, 128m" in text(result)
    assert "shm-transport: one GPU, and NCCL 2.28.9 puts no two ranks on it" in text(result)


@pytest.mark.parametrize(
    ("gpu_count", "version", "shm_disabled"),
    [(2, Version(2, 21, 5), False), (1, Version(2, 30, 3), False), (1, Version(2, 29, 7), True)],
)
def test_the_plan_by_gpus_and_version(gpu_count: int, version: Version, shm_disabled: bool) -> None:
    """Two GPUs: SHM with any version; one GPU: SHM from 2.30 on, else the network path and its pools."""
    need = nccl_plan.sweep(gpu_count, version, "GPU-0").need
    assert need == Need(2, shm_disabled=shm_disabled)


# ------------------------------------------------------------------------ the software, who may not


def test_world_size_1_is_a_row_of_its_own(children: Children) -> None:
    """It judges the software: each GPU alone, asked once for the host and all of its GPUs."""
    asked: dict[str, Any] = {}
    child = Played(children)
    result = alone(child, gpus(2), asked)
    assert result.verdict is Verdict.OK
    assert "world size 1: 4457472 numbers right in each of 1 rank(s)" in text(result)
    judged(child, gpus(2), asked=asked)
    assert [bool(run.get("apart")) for run in child.asked].count(True) == 1


def test_software_that_fails_alone_is_found_there_and_blocks_the_machines_row(children: Children) -> None:
    """One cause, one finding: the GPU's row has it, the host's row is unable and points to it."""
    asked: dict[str, Any] = {}
    child = Played(children, ALONE="ftruncate", PLAYED_LOG=recorded("2.27-same-gpu"))
    child.as_played = lambda args: {**args, "env": {**args["env"], "PLAYED_VERSION": "broken"}, "worker": str(WORKER)}  # type: ignore[method-assign]
    assert found(alone(child, gpus(1), asked)) == [("nccl-system-error", "bad")]
    result = judged(child, gpus(1), asked=asked)
    assert (result.verdict, result.blocked_by) == (Verdict.UNABLE, "nccl-fits-shm")
    assert found(result) == []


def test_a_gpu_in_use_is_left_alone(children: Children) -> None:
    """Somebody's process on one of three: two remain, and the third is named; on the only one: unable."""
    busy = {"processes": [{"pid": 77}]}
    child = Played(children, SEGMENTS="1")
    result = judged(child, gpus(3, **busy), shm="64m")
    assert child.asked[-1]["visible"] == "GPU-0,GPU-1"
    assert "a GPU: GPU 2 (NVIDIA H100, GPU-2): 1 process(es) on it (pid 77)" in text(result)
    assert judged(child, gpus(1, **busy)).verdict is Verdict.UNABLE
    assert alone(child, gpus(1, **busy), {}).verdict is Verdict.UNABLE


def test_slices_of_mig_get_no_ranks(children: Children) -> None:
    """NCCL does not talk between MIG's slices."""
    result = judged(Played(children), gpus(1, mig=True))
    assert result.verdict is Verdict.UNABLE
    assert "split by MIG" in text(result)


def test_no_gpu_or_no_torch_is_not_applicable(children: Children) -> None:
    """Known facts rule it out, and nothing is run."""
    child = Played(children)
    names = ("gpu.pci", "gpu.expected", "gpu.nodes", "gpu.hidden_by")
    bare: dict[str, Any] = {"machine.container": "none", **{name: [] for name in names}}
    assert judged(child, bare).verdict is Verdict.NOT_APPLICABLE
    assert judged(child, {**gpus(2), "package.torch": None}).verdict is Verdict.NOT_APPLICABLE
    assert child.asked == []


def test_where_namespaces_are_refused_the_own_shm_is_tried(children: Children) -> None:
    """The kernel says no: one forced run in this host's own /dev/shm, whose ranks leave nothing there."""

    class Refusing(Played):
        def __call__(self, payload: str, args: dict[str, Any], *, deadline_s: float, **how: Any) -> Any:
            if how.pop("shm_bytes", None):
                return SimpleNamespace(refusal="unshare of a user namespace: Operation not permitted")
            return super().__call__(payload, args, deadline_s=deadline_s, **how)

    result = judged(Refusing(children, PLAYED="hang"), gpus(2))
    assert found(result) == [("nccl-hang", "bad")]
    assert "namespaces: unshare of a user namespace" in text(result)
    assert "own /dev/shm" in text(result)


def test_each_rank_gets_its_own_surroundings(children: Children) -> None:
    """`{rank}` in a value is the rank's number, null removes a variable; apart, each is rank 0 of a world of one."""
    env = {"NCCL_HOSTID": "gpucheck-{rank}", "NCCL_ALGO": None, "SEGMENTS": "0"}
    args = {"ranks": 2, "devices": [1, 0], "env": env, "worker": str(WORKER), "limit_s": LIMIT_S}
    for apart, places in ((False, [[0, 2, 1], [1, 2, 0]]), (True, [[0, 1, 1], [0, 1, 0]])):
        asked = {**args, "apart": apart}
        reply = children.run("ranks_nccl", asked, deadline_s=30, warm=False, env={"NCCL_ALGO": "Tree"})
        assert isinstance(reply.answer, Value), reply
        told = [rank["value"] for rank in reply.answer.value["ranks"]]
        assert [value["env"]["NCCL_HOSTID"] for value in told] == ["gpucheck-0", "gpucheck-1"]
        assert [value["place"] for value in told] == places
        assert "NCCL_ALGO" not in told[0]["env"]


# ------------------------------------------------------------------------------- the real worker


def test_the_real_worker_reports_what_torch_says(children: Children) -> None:
    """Without a GPU NCCL cannot start: each rank's exception comes back, in time, as data."""
    pytest.importorskip("torch")
    plan = nccl_plan.sweep(2, Version(2, 30), "")
    reply = children.run("ranks_nccl", {**plan.args, "limit_s": 40}, deadline_s=90, warm=False, shm_bytes=128 * MIB)
    assert isinstance(reply.answer, Value), reply
    seen = nccl_seen.seen(reply.answer.value, 40)
    assert seen.end is End.NO_CUDA, seen
    assert " at CUDA: " in seen.words


def test_cuda_that_does_not_start_is_another_probes_finding(children: Children) -> None:
    """The real worker on a machine without a GPU: unable, blocked by cuda-available, and no finding of NCCL's."""
    pytest.importorskip("torch")

    def child(payload: str, args: dict[str, Any], **how: Any) -> Any:
        return children.run(payload, {**args, "limit_s": 40}, **how)

    result = alone(child, gpus(1), {})
    assert (result.verdict, result.blocked_by) == (Verdict.UNABLE, "cuda-available")
    assert found(result) == []


# ---------------------------------------------------------------------------------- containers


@pytest.fixture(scope="module")
def container(docker_host: str) -> Iterator[Any]:
    """Containers of the engine that answers here, with the played ranks bound in."""
    before = os.environ.get("DOCKER_HOST")
    os.environ["DOCKER_HOST"] = docker_host
    try:
        with drive.containers() as made:
            yield made
    except (NotApplicable, Unable) as none:
        pytest.skip(f"no container engine: {none}")
    finally:
        os.environ.pop("DOCKER_HOST") if before is None else os.environ.update(DOCKER_HOST=before)


@pytest.mark.parametrize(
    ("played", "size", "end", "words"),
    [
        ("good", 128 * MIB, End.WORKS, "4457472 numbers right in each of 2 rank(s)"),
        ("good", 64 * MIB, End.NO_SPACE, "[Errno 28] No space left on device"),
        ("ftruncate", 64 * MIB, End.BUS_ERROR, "was killed by SIGBUS"),
        ("hang", 128 * MIB, End.HANG, "rank 0 in collective 3, rank 1 in collective 3"),
        ("killed", 128 * MIB, End.KILLED, "rank 1 in collective 2 was killed by SIGKILL"),
    ],
)
def test_in_a_container_each_end_is_named_within_the_deadline(
    container: Any, played: str, size: int, end: End, words: str
) -> None:
    """Real processes in a real container of that --shm-size; the engine has nothing left of them after."""
    env = {"PLAYED": played, "PLAYED_LOG": "/played/nccl/2.30-good.log"}
    args = {"ranks": 2, "worker": "/played/played_ranks.py", "limit_s": LIMIT_S, "env": env}
    reply = container("ranks_nccl", args, shm_bytes=size, binds=(Bind(str(DATA), "/played"),))
    assert isinstance(reply.answer, Value), (reply, reply.errors)
    seen = nccl_seen.seen(reply.answer.value, LIMIT_S)
    assert seen.end is end, seen
    assert words in seen.words
    assert reply.answer.value["spent_s"] < 3 * LIMIT_S
    marked = container.engine.call("marked", container.deadline)
    mine = [thing["kind"] for thing in marked if thing["labels"]["gpucheck.run"] == container.engine.owner.run]
    assert set(mine) <= {"image"}


def test_the_containers_leg_tries_the_size_that_must_fail_and_the_smallest(container: Any, children: Children) -> None:
    """The leg itself, with the played ranks: 64m has no space, 128m works, and so does the host's own, which is named.

    GPUs' nodes are asked for by name.
    """
    devices: list[Any] = []

    class InContainer:
        engine = container.engine

        def __call__(self, payload: str, args: dict[str, Any], **how: Any) -> Any:
            devices.append(how.pop("devices"))
            env = {**args["env"], "PLAYED_LOG": "/played/nccl/2.30-good.log"}
            told = {**args, "env": env, "worker": "/played/played_ranks.py", "limit_s": LIMIT_S}
            return container(payload, told, binds=(Bind(str(DATA), "/played"),), **how)

    result = judged(Played(children), gpus(2), container=InContainer(), shm="64m,128m,host")
    assert result.verdict is Verdict.OK, text(result)
    assert "--shm-size=64m: rank" in text(result)
    assert "--shm-size=128m: 4457472 numbers right" in text(result)
    assert "--ipc=host: 4457472 numbers right" in text(result)
    assert devices == [("/dev/nvidia0", "/dev/nvidia1")] * 3


# -------------------------------------------------------------------------------------- as typed


def test_as_typed_without_a_gpu_it_is_not_applicable(tmp_path: Path) -> None:
    """`gpucheck run` on a machine without GPUs: a row for the host and one for the GPU that is not there."""
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has a GPU")
    record = tmp_path / "record.jsonl"
    argv = [sys.executable, "-B", "-m", "gpucheck", "run", "-k", "nccl-fits-shm", "--engine", "none"]
    env = {**os.environ, "PYTHONPATH": str(Path(gpucheck.__file__).parent.parent)}
    done = subprocess.run(
        [*argv, "--record", str(record)], env=env, capture_output=True, text=True, timeout=120, check=False
    )
    rows = [json.loads(line) for line in record.read_text().splitlines()]
    results = [row for row in rows if row["kind"] == "result"]
    assert [row["verdict"] for row in results] == ["not-applicable"] * 2, done.stdout + done.stderr
