"""The probe buffers-fit-shm: each finding provoked by a real `/dev/shm`, in a mount namespace of the test's own."""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import gpucheck
from gpucheck import owner, scratch
from gpucheck.judgement.shm_exchange import End, Seen
from gpucheck.judgement.shm_need import Need
from gpucheck.process import Children
from gpucheck.profile import size_bytes
from gpucheck.verdict import Bug, NotApplicable, Unable

if TYPE_CHECKING:
    from collections.abc import Iterator

DRIVER = Path(__file__).with_name("drive.py")
drive: Any = SimpleNamespace(**runpy.run_path(str(DRIVER)))
HOST = {"machine.container": "none"}
CONTAINER = {"machine.container": "docker"}
GIB = 1 << 30
QUICK = {"level": "quick"}
STDLIB = {"package.torch": None}


def _namespaces() -> bool:
    return bool(shutil.which("unshare")) and subprocess.run(["unshare", "-m", "true"], check=False).returncode == 0


pytestmark = pytest.mark.skipif(not _namespaces(), reason="the kernel gives this user no mount namespace")


def judged(
    setup: str, *, options: dict[str, str] | None = None, facts: dict[str, Any] | None = None, **more: Any
) -> Any:
    """The probe's result, as JSON, in a mount namespace that ``setup`` (shell) prepared; without torch by default."""
    given = {
        "options": options or QUICK,
        "facts": {**HOST, **STDLIB, **(facts or {})},
        "expect": more.get("expect", {}),
        "preload": more.get("preload", []),
    }
    limit = more.get("limit", "")
    # Not exec: what the setup started in the background is ended with the shell.
    script = f'set -e; {setup}\n{limit} "$@" || exit 1; for p in $(jobs -p); do kill $p; done'
    argv = ["unshare", "-m", "--propagation", "private", "sh", "-c", script, "sh"]
    argv += [sys.executable, "-B", str(DRIVER), "buffers_fit_shm", json.dumps(given)]
    env = {**os.environ, "PYTHONPATH": str(Path(gpucheck.__file__).parent.parent)}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def tmpfs(size: str, more: str = "") -> str:
    """Shell: a `/dev/shm` of that size."""
    return f"mount -t tmpfs -o size={size}{more} tmpfs /dev/shm"


def pitfalls(result: Any) -> list[tuple[str, str]]:
    """The findings' ids and weights."""
    return [(finding["pitfall"], finding["weight"]) for finding in result["findings"]]


def text(result: Any) -> str:
    """All evidence, of the result and of its findings."""
    return "\n".join([*result["evidence"], *(line for finding in result["findings"] for line in finding["evidence"])])


# ---------------------------------------------------------------------------------- this host's own


def test_a_roomy_shm_is_ok_and_says_what_was_filled() -> None:
    """Ok lists the file system, the exchange, the need, the three flags, and what it did not look at."""
    result = judged(tmpfs("1g"))
    assert result["verdict"] == "ok", result
    seen = text(result)
    assert "/dev/shm: tmpfs of 1.0 GiB" in seen
    assert "25 segments of 9.2 MiB filled by one process and read back by the other" in seen
    for flag in ("docker run --shm-size=256m", 'shm_size: "256m"', "emptyDir: {medium: Memory, sizeLimit: 256Mi}"):
        assert flag in seen
    assert "2 ranks 256m · 4 ranks 512m · 8 ranks 1g" in seen
    assert {missed["leg"] for missed in result["not_run"]} == {"own-tensors", "sizes", "container"}


@pytest.mark.parametrize(("facts", "weight"), [(HOST, "bad"), (CONTAINER, "degraded")])
def test_64m_is_bad_on_a_host_and_degraded_in_a_container(facts: dict[str, Any], weight: str) -> None:
    """Too small for two ranks; the finding carries what to ask for."""
    result = judged(tmpfs("64m"), facts=facts)
    assert pitfalls(result) == [("shm-too-small", weight)]
    assert result["verdict"] == weight
    assert result["findings"][0]["params"]["shm_need"] == "256m"


def test_128m_would_pass_nccl_alone_and_still_is_too_small() -> None:
    """The need is the whole job's, loaders included."""
    assert pitfalls(judged(tmpfs("128m"))) == [("shm-too-small", "bad")]


def test_a_full_shm_is_told_from_a_small_one() -> None:
    """Large, but full of somebody's plain file."""
    result = judged(f"{tmpfs('1g')}; fallocate -l 900m /dev/shm/plain")
    assert pitfalls(result) == [("shm-full", "bad")]
    assert "more than is free" in text(result)


def test_a_shm_that_a_running_job_fills_is_busy_and_not_broken() -> None:
    """The same file, but a living process has it open."""
    result = judged(f"{tmpfs('1g')}; fallocate -l 900m /dev/shm/plain; sleep 60 < /dev/shm/plain >/dev/null 2>&1 &")
    assert pitfalls(result) == [("shm-full", "degraded")]
    assert "held by running processes (sleep" in text(result)


def test_a_large_shm_partly_used_by_the_living_is_ok() -> None:
    """A third of it is somebody's, and two thirds are enough: no finding, and their part is left alone."""
    result = judged(f"{tmpfs('1g')}; fallocate -l 300m /dev/shm/plain; sleep 60 < /dev/shm/plain >/dev/null 2>&1 &")
    assert result["verdict"] == "ok", result


def test_the_last_room_of_running_processes_is_not_taken_for_a_probe() -> None:
    """It would fit, and a running job would die of it meanwhile: unable, with that reason."""
    result = judged(f"{tmpfs('1g')}; fallocate -l 700m /dev/shm/plain; sleep 60 < /dev/shm/plain >/dev/null 2>&1 &")
    assert result["verdict"] == "unable"
    assert "the test would take the last free bytes" in result["lacking"][0]


@pytest.mark.parametrize("name", ["nccl-AbCdEf", "torch_4194999_123_0"])
def test_what_dead_jobs_left_is_named(name: str) -> None:
    """Files of NCCL and torch that nobody living made, opened or mapped, and without which there were room."""
    result = judged(f"{tmpfs('1g')}; fallocate -l 900m /dev/shm/{name}")
    assert pitfalls(result) == [("shm-leftovers", "bad")]
    assert name in text(result)


def test_a_file_that_a_living_process_has_open_is_no_leftover() -> None:
    """The same name, held: the machine is busy."""
    result = judged(f"{tmpfs('1g')}; fallocate -l 900m /dev/shm/nccl-A; sleep 60 < /dev/shm/nccl-A >/dev/null 2>&1 &")
    assert pitfalls(result) == [("shm-full", "degraded")]


def test_a_little_litter_is_evidence_and_no_finding() -> None:
    """There is room enough in spite of it."""
    result = judged(f"{tmpfs('1g')}; fallocate -l 10m /dev/shm/nccl-AbCdEf; : > /dev/shm/torch_4194999_1_0")
    assert result["verdict"] == "ok"
    assert "left over: 2 files, 10.0 MiB" in text(result)


NO_SHM = "mount -t tmpfs tmpfs /dev; mknod /dev/null c 1 3; chmod 666 /dev/null"


@pytest.mark.parametrize(
    ("setup", "said"),
    [
        (NO_SHM, "there is no folder /dev/shm"),
        (tmpfs("1g", ",ro"), "EROFS"),
        ("mount --bind /var/tmp /dev/shm", "is not in memory"),
        (f"{tmpfs('1g', ',nr_inodes=1')}", "ENOSPC"),
    ],
    ids=["missing", "read-only", "on a disk", "no inodes"],
)
def test_a_shm_that_cannot_be_used_is_bad(setup: str, said: str) -> None:
    """No folder, read-only, on a disk, or without inodes: each is named."""
    result = judged(setup)
    assert pitfalls(result) == [("shm-full" if said == "ENOSPC" else "shm-unusable", "bad")]
    assert said in text(result)


def test_a_queue_that_loses_a_batch_although_there_is_room_is_its_own_finding() -> None:
    """A limit on file sizes: segments pass, the batch is dropped in silence, the feeder's reason is the evidence."""
    pytest.importorskip("torch")
    facts = {"package.torch": "2.13.0"}
    options = {"level": "default", "shm": "host"}
    limit = "prlimit --fsize=12000000"
    result = judged(tmpfs("1g"), facts=facts, preload=["torch"], limit=limit, options=options)
    assert pitfalls(result) == [("shm-item-lost", "bad")]
    assert "File too large" in text(result)


def test_with_torch_real_batches_are_sent_too() -> None:
    """The tensors' leg ran, beside as much as the rest of the job takes. Without a size no sweep is told of."""
    pytest.importorskip("torch")
    options = {"level": "default", "shm": "host"}
    result = judged(tmpfs("1g"), facts={"package.torch": "2.13.0"}, preload=["torch"], options=options)
    assert result["verdict"] == "ok", result
    assert result["legs"] == ["own-shm", "own-tensors"]
    assert {"sizes": "no size is named but the host's own"}.items() <= {
        missed["leg"]: missed["why"] for missed in result["not_run"]
    }.items()
    assert "4 batches of 18.4 MiB through a torch" in text(result)


@pytest.mark.parametrize(
    ("setup", "missed"),
    [
        pytest.param("true", [], id="a short place is there"),
        pytest.param("mount --bind /tmp /tmp; mount -o remount,bind,ro /tmp", ["own-tensors"], id="it is not"),
    ],
)
def test_a_long_temporary_folder_is_no_fault_of_the_queue(setup: str, missed: list[str]) -> None:
    """A user's TMPDIR that leaves no room for a socket is gone around, or else named as what is in the way."""
    pytest.importorskip("torch")
    long = "/mnt/" + "a-long-folder-of-a-scheduler" * 2
    setup = f"{tmpfs('1g')}; mount -t tmpfs none /mnt; mkdir {long}; export TMPDIR={long}; {setup}"
    options = {"level": "default", "shm": "host"}
    result = judged(setup, facts={"package.torch": "2.13.0"}, preload=["torch"], options=options)
    assert result["findings"] == []
    lacking = {row["leg"]: row["why"] for row in result["not_run"] if row["leg"] == "own-tensors"}
    assert list(lacking) == missed
    assert all("TMPDIR" in why for why in lacking.values())


def test_too_little_memory_is_unable_and_not_a_kill() -> None:
    """What lies in /dev/shm is memory: with a small limit nothing is filled, and nothing is ok."""
    result = judged(tmpfs("1g"), facts={"memory.limit_bytes": 300 << 20})
    assert result["verdict"] == "unable"
    assert "memory.limit_bytes" in result["lacking"][0]


# -------------------------------------------------------------------------------------------- sweep

SWEEP = {"level": "default", "shm": "64m,128m,256m,1g"}


def test_the_sweep_finds_the_smallest_size_that_works() -> None:
    """64m must fail, in both of NCCL's ways; 256m is the first that holds a job of two ranks."""
    result = judged(tmpfs("1g"), options=SWEEP)
    assert result["verdict"] == "ok", result
    seen = text(result)
    assert re.search("64m: no space after [56] of", seen)  # what the other was making then may not have been told
    assert "with ftruncate, as NCCL 2.12 to 2.18 does it, a process was killed by SIGBUS" in seen
    assert "smallest of those tried that works: 256m" in seen
    assert result["measures"]["smallest_working_shm_bytes"] == 256 << 20
    small = "too small: 64m, 128m; 256m works"
    assert result["gist"] == f"a container for 2 ranks needs --shm-size=256m or more ({small}); this /dev/shm: 1.0 GiB"


def test_the_three_ways_to_fail_are_told_apart() -> None:
    """No space, bus error, and lost in silence, in one sweep."""
    pytest.importorskip("torch")
    options = {"level": "default", "shm": "64m,128m,256m"}
    seen = text(judged(tmpfs("1g"), options=options, facts={"package.torch": "2.13.0"}, preload=["torch"]))
    assert "ENOSPC" in seen
    assert "SIGBUS" in seen
    assert "dropped 2 of 4 batches in silence" in seen


def test_no_size_that_works_is_bad_with_the_size_to_ask_for() -> None:
    """The sizes that were tried are all too small."""
    result = judged(tmpfs("1g"), options={"level": "default", "shm": "64m,128m"})
    assert pitfalls(result) == [("shm-too-small", "bad")]
    assert "128m: " in text(result)
    assert result["findings"][0]["params"]["shm_need"] == "256m"


@pytest.mark.parametrize(
    ("facts", "ranks", "who"),
    [
        ({"gpu.pci_count": 8}, 8, "8 GPUs by the PCI bus"),
        (
            {"gpu.expected": [{"who": "the profile", "count": 4}, {"who": "m", "count": None}]},
            4,
            "4 GPUs by the profile",
        ),
        ({"nvml.gpus": [{"index": n} for n in range(8)], "gpu.pci_count": 2}, 8, "8 GPUs by NVML"),
        ({"gpu.pci_count": 1}, 2, "the least that exchange anything"),
        ({}, 2, "the least that exchange anything"),
    ],
)
def test_the_need_is_that_of_the_gpus_here_or_expected(facts: dict[str, Any], ranks: int, who: str) -> None:
    """The highest count that anybody gives, and two at least: one rank alone exchanges nothing."""
    need, said = drive.load("buffers_fit_shm").need_of(drive.facts_of(facts))
    assert (need.ranks, said) == (ranks, who)


def test_nccls_own_variables_change_the_need() -> None:
    """Channels that the job's environment asks for are reckoned with."""
    facts = drive.facts_of({"env.NCCL_MIN_NCHANNELS": "16", "env.NCCL_SHM_DISABLE": "1"})
    need, _ = drive.load("buffers_fit_shm").need_of(facts)
    assert need.channels == 16
    assert need.shm_disabled


def test_what_is_enough_for_two_gpus_fails_for_eight() -> None:
    """Eight GPUs: 256m fails, and 1g is the smallest that works."""
    options = {"level": "default", "shm": "256m,1g"}
    result = judged(tmpfs("2g"), options=options, facts={"gpu.pci_count": 8})
    assert result["verdict"] == "ok", result
    assert "smallest of those tried that works: 1g" in text(result)


def look(child: Any = None, container: Any = None, sizes: tuple[str, ...] = ("64m",)) -> Any:
    """The probe's ways of asking, over these ways to run a payload."""
    module = drive.load("buffers_fit_shm")
    report = drive.new_report(module, "buffers-fit-shm", "default")
    return module.Look(report, drive.facts_of(STDLIB), child, container, Need(2), sizes)


def test_a_sweep_that_was_cut_off_accuses_nobody() -> None:
    """The time ended behind the size that must fail: nothing is known of the others."""
    here = owner.this_run()
    with scratch.folder(here) as folder, Children(here.run, folder) as children:

        def child(payload: str, args: Any, *, shm_bytes: int, **how: Any) -> Any:
            if shm_bytes > 64 << 20:
                raise Unable("time: it is used up")
            return children.run(payload, args, deadline_s=60, shm_bytes=shm_bytes, **how)

        asked = look(child, sizes=("64m", "128m", "256m"))
        with pytest.raises(Unable, match="time"):
            asked.at_sizes()
    asked.conclude(None)
    assert asked.report.findings == []
    assert list(asked.tried) == [64 << 20]


def test_a_machine_with_many_gpus_is_given_the_size_that_they_need() -> None:
    """Sixteen GPUs need more than the largest of the usual sizes; what the operator names stays as it is."""
    module = drive.load("buffers_fit_shm")
    need = module.need_of(drive.facts_of({"gpu.pci_count": 16}))[0]
    assert size_bytes(module.sizes_of(drive.options_of({}, {}), need)[-1]) >= need.total_bytes
    assert module.sizes_of(drive.options_of({"shm": "64m"}, {}), need) == ("64m",)


def test_a_size_that_was_not_applied_is_our_mistake_and_not_a_result() -> None:
    """The children get this host's own /dev/shm instead of 64m: no verdict about 64m comes of that."""
    here = owner.this_run()
    with scratch.folder(here) as folder, Children(here.run, folder) as children:

        def child(payload: str, args: Any, *, shm_bytes: int, **how: Any) -> Any:
            del shm_bytes
            return children.run(payload, args, deadline_s=60, **how)

        with pytest.raises(Bug, match="64m"):
            look(child).at_sizes()


def test_less_space_than_was_to_be_filled_cannot_have_been_enough() -> None:
    """Whoever says that a job fits into 64m has not filled it."""
    with pytest.raises(Bug, match="in a /dev/shm of 64m"):
        look().believed(64 << 20, Seen(End.WORKS, "all is well"))


def test_a_process_that_the_kernel_killed_says_nothing_about_a_size() -> None:
    """Out of memory is not too small a /dev/shm."""
    with pytest.raises(Unable, match="SIGKILL"):
        look().believed(64 << 20, Seen(End.KILLED, "killed by SIGKILL"))


@pytest.fixture(scope="module")
def container() -> Iterator[Any]:
    """Containers of the engine that answers here; without one these tests are skipped."""
    try:
        with drive.containers() as made:
            yield made
    except (NotApplicable, Unable) as none:
        pytest.skip(f"no container engine: {none}")


def test_in_real_containers_64m_fails_and_the_smallest_size_of_the_namespaces_works(container: Any) -> None:
    """The engine applies the sizes that it is asked for, and they mean there what they mean in a namespace."""
    asked = look(container=container, sizes=("64m", "128m", "256m"))
    asked.smallest = 256 << 20
    asked.at_container()
    refused, works = asked.report.evidence
    assert re.search(r"--shm-size=64m: no space after [56] of 25 NCCL segments \(ENOSPC\)", refused)
    assert "--shm-size=256m: 25 segments of 9.2 MiB filled by one process and read back by the other" in works


def test_where_namespaces_are_refused_containers_do_the_sweep(container: Any) -> None:
    """Size by size up to the first that works; `host` is tried when it is named."""
    asked = look(container=container, sizes=("64m", "128m", "256m", "1g", "host"))
    asked.at_container()
    assert asked.smallest == 256 << 20
    assert [line.split(":")[0].rpartition(" ")[2] for line in asked.report.evidence] == [
        "--shm-size=64m",
        "--shm-size=128m",
        "--shm-size=256m",
        "--ipc=host",
    ]


def test_in_the_level_deep_every_size_is_tried() -> None:
    """The sweep does not stop at the first that works."""
    result = judged(tmpfs("1g"), options={"level": "deep", "shm": "64m,256m,512m"})
    assert "512m: " in text(result)
    assert result["measures"]["smallest_working_shm_bytes"] == 256 << 20


def test_a_profile_that_gives_jobs_too_little_is_degraded() -> None:
    """The machine is right, what its jobs are started with is not."""
    result = judged(tmpfs("1g"), expect={"shm": "64m"})
    assert pitfalls(result) == [("shm-too-small", "degraded")]
    assert pitfalls(judged(tmpfs("1g"), expect={"shm": "256m"})) == []


# ------------------------------------------------------------------------------ the whole, as typed


def test_as_typed_the_run_says_what_to_type_and_leaves_nothing(tmp_path: Path) -> None:
    """`gpucheck run` with 64m: the finding's words and command, the exit status of its weight, an empty /dev/shm."""
    record = tmp_path / "record.jsonl"
    run = f"{sys.executable} -B -m gpucheck run -k buffers --level quick --engine none --record {record}"
    script = f"{tmpfs('64m')}; {run}; echo status $?; ls -A /dev/shm"
    done = subprocess.run(
        ["unshare", "-m", "--propagation", "private", "sh", "-c", script],
        env={**os.environ, "PYTHONPATH": str(Path(gpucheck.__file__).parent.parent)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    rows = [json.loads(line) for line in record.read_text().splitlines()]
    (result,) = [row for row in rows if row["kind"] == "result"]
    assert [finding["pitfall"] for finding in result["findings"]] == ["shm-too-small"], done.stdout + done.stderr
    assert "docker run --shm-size=256m" in done.stdout
    assert done.stdout.endswith({"bad": "status 1\n", "degraded": "status 0\n"}[result["verdict"]])
