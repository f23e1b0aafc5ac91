"""Each verdict of ``gpus-present`` on made machines; then whole runs in a mount namespace that shows such a machine."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from gpucheck.facts import Expectation, Fact, Facts, expect
from gpucheck.probes import test_gpus_present as probe
from gpucheck.report import Report
from gpucheck.verdict import NotApplicable, Result, Subject, Unable, Verdict

if TYPE_CHECKING:
    from pathlib import Path

LIBCUDA = "/usr/lib/x86_64-linux-gnu/libcuda.so.1"
NAMES = (
    *("gpu.pci", "gpu.nodes", "gpu.proc", "gpu.expected", "gpu.hidden_by", "machine.container", "machine.wsl"),
    *("machine.kernel", "machine.secure_boot", "driver.modules", "driver.module_version", "driver.library_version"),
    *("driver.installed", "scheduler.job"),
)


def nvml(count: int = 0, status: str = "ok", **changes: Any) -> list[Fact]:
    """NVML's facts: ``count`` GPUs, the last with ``changes``; or a refusal."""
    if status != "ok":
        return [Fact("nvml.status", status, "NVML"), Fact("nvml.gpus", None, "NVML", status)]
    gpus = [{"index": n, "minor": n, "mig_devices": [], "unknown": {}} for n in range(count)]
    for gpu in gpus[-1:]:
        gpu.update(changes)
    return [Fact("nvml.status", "ok", "NVML"), Fact("nvml.gpus", gpus, "NVML"), Fact("nvml.control_node", "ok")]


NO_LIBRARY = nvml(status="NVML_ERROR_LIBRARY_NOT_FOUND")
LOST = {"handle": "NVML_ERROR_GPU_IS_LOST"}
DENIED = {"handle": "NVML_ERROR_NO_PERMISSION"}


def judge(host: Facts) -> Result:
    """What the probe makes of these facts."""
    report = Report("gpus-present", "", Subject("host", "id", "node7"))
    try:
        probe.test_gpus_present(report, host)
    except (Unable, NotApplicable) as error:
        return report.result(error)
    return report.result()


def judged(plant: Any, said: list[Fact], *extra: Expectation, **environ: str) -> Result:
    """What the probe makes of a made machine on which NVML says this and the operator expects that."""
    return judge(expect(plant.facts(*NAMES, **environ).plus(said), extra))


def dock(plant: Any) -> None:
    """Turn the machine into a docker container."""
    plant.file("/.dockerenv")
    plant.file("/proc/self/mountinfo", "1 0 0:50 / / rw - overlay overlay rw\n")


def found(result: Result) -> list[str]:
    """The pitfalls that were met."""
    return [finding.pitfall for finding in result.findings]


def text(result: Result) -> str:
    """Everything that the findings say."""
    return "\n".join(line for finding in result.findings for line in finding.evidence)


def test_a_machine_without_gpus_is_not_judged(plant: Any) -> None:
    """No device and nobody who expects one is a known reason, in the words that the summary shows."""
    result = judged(plant, NO_LIBRARY)
    assert result.verdict is Verdict.NOT_APPLICABLE
    assert result.because is not None
    assert result.because.value == "no NVIDIA device, and nothing expects one"


def test_a_healthy_machine_is_ok_and_says_who_expected_it(plant: Any) -> None:
    """All sources agree: ok, with the count and everybody who expects it in the evidence."""
    plant.driven(8)
    result = judged(plant, nvml(8), Expectation("the profile", 8))
    assert result.verdict is Verdict.OK
    assert result.evidence[-1] == "8 GPUs can be used; expected by the profile: 8, the loaded kernel module nvidia: 8"
    assert result.measures == {"gpus": 8}


def test_gpus_that_nobody_expects_are_ok(plant: Any) -> None:
    """That nobody asked for the GPUs that are there is no defect."""
    plant.driven(1)
    plant.file("/proc/modules", "")
    plant.path("/proc/driver/nvidia").rename(plant.root / "gone")
    result = judged(plant, nvml(1))
    assert result.verdict is Verdict.OK
    assert "nobody in particular" in result.evidence[-1]


@pytest.mark.parametrize("way", ["profile", "driver", "engine", "switches", "job"])
def test_gpus_that_are_expected_and_absent_are_missing(plant: Any, way: str) -> None:
    """Whoever expects the GPU is named in the finding."""
    extra: list[Expectation] = []
    environ: dict[str, str] = {}
    if way == "profile":
        extra = [Expectation("the profile site.toml")]
    elif way == "driver":
        plant.library(LIBCUDA)
    elif way == "engine":
        plant.file("/etc/docker/daemon.json", json.dumps({"runtimes": {"nvidia": {}}}))
    elif way == "switches":
        plant.gpu(0, class_="0x068000")
    else:
        environ = {"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "0,1"}
    result = judged(plant, NO_LIBRARY, *extra, **environ)
    assert result.verdict is Verdict.BAD
    assert found(result) == ["gpu-missing"]
    who = {
        "profile": "site.toml",
        "driver": LIBCUDA,
        "engine": "daemon.json",
        "switches": "NVSwitch",
        "job": "slurm job 7",
    }
    assert who[way] in text(result)


def test_seven_of_eight_are_partial_against_pci(plant: Any) -> None:
    """PCI shows one more than NVML lists."""
    plant.driven(8)
    plant.path("/dev/nvidia7").unlink()
    result = judged(plant, nvml(7))
    assert found(result) == ["gpu-partial"]
    assert "PCI: 8" in text(result)
    assert result.findings[0].params["have"] == "7"
    assert result.findings[0].params["expected"] == "8"


@pytest.mark.parametrize("who", ["the profile", "the record of 2026-11-01"])
def test_a_gpu_that_left_the_bus_is_partial_against_who_remembers_it(plant: Any, who: str) -> None:
    """When PCI itself shows seven, only somebody who says eight knows that one is missing."""
    plant.driven(7)
    assert judged(plant, nvml(7)).verdict is Verdict.OK
    result = judged(plant, nvml(7), Expectation(who, 8))
    assert found(result) == ["gpu-partial"]
    assert f"{who}: 8" in text(result)


def test_a_cdi_file_remembers_how_many_there_were(plant: Any) -> None:
    """The file that the toolkit wrote lists eight; seven are left."""
    plant.driven(7)
    names = "".join(f"- name: '{number}'\n" for number in range(8))
    plant.file("/etc/cdi/nvidia.yaml", f"kind: nvidia.com/gpu\ndevices:\n{names}")
    assert found(judged(plant, nvml(7))) == ["gpu-partial"]


def test_more_gpus_than_expected_are_ok(plant: Any) -> None:
    """An expectation is a least number."""
    plant.driven(8)
    assert judged(plant, nvml(8), Expectation("the profile", 4)).verdict is Verdict.OK


def test_gpus_that_nvml_does_not_list_at_all_are_partial(plant: Any) -> None:
    """The driver holds the device and lists none: "No devices were found" is a defect, not a machine without GPUs."""
    plant.driven(1)
    result = judged(plant, nvml(0))
    assert found(result) == ["gpu-partial"]
    assert result.findings[0].params["have"] == "0"


def test_an_installed_driver_that_lists_nothing_is_missing_its_gpu(plant: Any) -> None:
    """NVML starts and finds nothing, and no bus shows anything."""
    plant.library(LIBCUDA)
    assert found(judged(plant, nvml(0))) == ["gpu-missing"]


def test_a_node_without_a_gpu_behind_it_is_missing_its_gpu(plant: Any) -> None:
    """A device node was handed in, PCI shows nothing, and NVML opens nothing."""
    plant.device("/dev/nvidia0")
    assert found(judged(plant, nvml(0))) == ["gpu-missing"]


@pytest.mark.parametrize(
    ("driver", "installed", "pitfall"),
    [
        ("none", False, "driver-missing"),
        ("none", True, "driver-not-loaded"),
        ("nouveau", False, "nouveau-bound"),
        ("nouveau", True, "nouveau-bound"),
        ("nova-core", True, "nouveau-bound"),
    ],
)
def test_causes_of_an_undriven_gpu_are_told_apart(plant: Any, driver: str, pitfall: str, *, installed: bool) -> None:
    """No driver installed, one that is not loaded, and another that holds the device: three defects, one at a time."""
    address = plant.gpu(0, driver)
    if installed:
        plant.library(LIBCUDA)
    result = judged(plant, NO_LIBRARY)
    assert found(result) == [pitfall]
    assert address in text(result)


def test_secure_boot_is_named_where_a_module_did_not_load(plant: Any) -> None:
    """An unsigned module under Secure Boot is the likeliest reason, and stands in the evidence."""
    plant.gpu(0, "none")
    plant.library(LIBCUDA)
    name = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
    plant.path(name).write_bytes(b"\x06\0\0\0\x01")
    assert "Secure Boot is on" in text(judged(plant, NO_LIBRARY))


def test_a_gpu_that_the_loaded_driver_did_not_take_is_partial(plant: Any) -> None:
    """The module is loaded and one of two devices is bound to nothing."""
    plant.driven(1)
    plant.gpu(1, "none")
    assert found(judged(plant, nvml(1))) == ["gpu-partial"]


def test_gpus_of_a_virtual_machine_are_not_judged(plant: Any) -> None:
    """A host that hands its GPUs to guests is right as it is, also with the driver installed."""
    plant.gpu(0, "vfio-pci")
    plant.library(LIBCUDA)
    result = judged(plant, NO_LIBRARY)
    assert result.verdict is Verdict.NOT_APPLICABLE
    assert result.because is not None
    assert result.because.source == "bound to vfio-pci"


def test_gpus_of_a_virtual_machine_that_the_operator_wants_here_are_bad(plant: Any) -> None:
    """Somebody counts on a GPU that vfio-pci holds."""
    plant.gpu(0, "vfio-pci")
    assert found(judged(plant, NO_LIBRARY, Expectation("the profile", 1))) == ["vfio-bound"]


def test_a_gpu_kept_for_a_virtual_machine_is_not_counted(plant: Any) -> None:
    """One of two goes to a guest: the other one is all there should be."""
    plant.driven(1)
    plant.gpu(1, "vfio-pci")
    assert judged(plant, nvml(1)).verdict is Verdict.OK


def test_a_container_is_given_a_part_of_the_host(plant: Any) -> None:
    """Two of the host's eight were handed in: PCI and /proc show eight, and that is right."""
    plant.driven(8)
    dock(plant)
    for number in range(2, 8):
        plant.path(f"/dev/nvidia{number}").unlink()
    result = judged(plant, nvml(2), NVIDIA_VISIBLE_DEVICES="0,1")
    assert result.verdict is Verdict.OK
    assert "NVIDIA_VISIBLE_DEVICES=0,1: 2" in result.evidence[-1]
    assert found(judged(plant, nvml(2), NVIDIA_VISIBLE_DEVICES="0,1,2")) == ["gpu-partial"]


def test_a_container_without_the_hosts_gpus_is_bad(plant: Any) -> None:
    """The host has GPUs and a loaded driver, and nobody handed them in: the forgotten --gpus."""
    plant.driven(2)
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        plant.path(f"/dev/{name}").unlink()
    dock(plant)
    assert found(judged(plant, NO_LIBRARY, NVIDIA_VISIBLE_DEVICES="all")) == ["gpu-not-in-container"]


@pytest.mark.parametrize("value", ["void", "none"])
def test_a_container_that_was_given_none_on_purpose_is_not_judged(plant: Any, value: str) -> None:
    """NVIDIA_VISIBLE_DEVICES=void says that no GPU is to be handed in."""
    plant.driven(2)
    dock(plant)
    result = judged(plant, NO_LIBRARY, NVIDIA_VISIBLE_DEVICES=value)
    assert result.verdict is Verdict.NOT_APPLICABLE
    assert result.because is not None
    assert result.because.source == f"NVIDIA_VISIBLE_DEVICES={value}"


def test_a_job_is_given_a_part_of_the_node(plant: Any) -> None:
    """Slurm's device cgroup leaves two of eight: what the job was given counts."""
    plant.driven(8)
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "0,1"}
    assert judged(plant, nvml(2), **job).verdict is Verdict.OK
    assert found(judged(plant, nvml(1), **job)) == ["gpu-partial"]


def test_a_job_that_does_not_say_whether_it_was_given_gpus_is_undecided(plant: Any) -> None:
    """NVML lists none in a job without GPU variables: a job without GPUs, or a broken node."""
    plant.driven(8)
    result = judged(plant, nvml(0), SLURM_JOB_ID="7")
    assert result.verdict is Verdict.UNABLE


def test_slices_of_a_gpu_count_where_a_scheduler_counts_them(plant: Any) -> None:
    """Seven slices of one card satisfy a job that was given seven."""
    plant.driven(1)
    slices = [{"uuid": f"MIG-{number}"} for number in range(7)]
    job = {"SLURM_JOB_ID": "7", "SLURM_GPUS_ON_NODE": "7"}
    assert judged(plant, nvml(1, mig_devices=slices), **job).verdict is Verdict.OK


def test_a_device_cgroup_that_denies_is_not_judged_or_is_bad(plant: Any) -> None:
    """Denied to a process whom nobody promised a GPU: not applicable. Promised and denied: bad."""
    plant.driven(2)
    plant.file("/sys/fs/cgroup/devices/devices.list", "c 1:3 rwm\n")
    said = [*nvml(status="NVML_ERROR_NO_PERMISSION"), Fact("nvml.control_node", "EPERM")]
    plant.path("/proc/driver/nvidia/gpus").rename(plant.root / "gone")
    assert judged(plant, said).verdict is Verdict.NOT_APPLICABLE
    assert found(judged(plant, said, Expectation("the profile", 2))) == ["gpu-hidden-device"]


@pytest.mark.parametrize(
    ("said", "pitfalls"),
    [
        (nvml(2, unknown=LOST), ["gpu-lost"]),
        (nvml(2, unknown=DENIED), ["gpu-hidden-device"]),
        (nvml(2, minor=5), ["gpu-hidden-device"]),
        (nvml(status="NVML_ERROR_GPU_IS_LOST"), ["gpu-lost"]),
        (nvml(status="NVML_ERROR_LIB_RM_VERSION_MISMATCH"), ["driver-library-mismatch"]),
        ([*nvml(status="NVML_ERROR_UNKNOWN"), Fact("nvml.control_node", "EPERM")], ["gpu-hidden-device"]),
    ],
)
def test_what_nvml_refuses_has_its_own_finding(plant: Any, said: list[Fact], pitfalls: list[str]) -> None:
    """A lost GPU, a denied one, one without its device node, and a driver of two versions: one finding each."""
    plant.driven(2)
    result = judged(plant, said)
    assert result.verdict is Verdict.BAD
    assert found(result) == pitfalls


@pytest.mark.parametrize(
    "status", ["hang", "signal 11", "not installed", "NVML_ERROR_LIBRARY_NOT_FOUND", "NVML_ERROR_UNKNOWN"]
)
def test_a_missing_nvml_is_never_called_healthy(plant: Any, status: str) -> None:
    """Devices are there and NVML gives no list: undecided, saying what NVML said."""
    plant.driven(2)
    result = judged(plant, nvml(status=status))
    assert result.verdict is Verdict.UNABLE
    assert status in result.lacking[0]


def test_wsl_shows_its_gpus_through_nvml_alone(plant: Any) -> None:
    """Under Windows there is neither a PCI device nor a node, and NVML's list counts."""
    plant.file("/proc/sys/kernel/osrelease", "5.15.167.4-microsoft-standard-WSL2\n")
    plant.library("/usr/lib/wsl/lib/libcuda.so.1")
    assert judged(plant, nvml(1), LD_LIBRARY_PATH="/usr/lib/wsl/lib").verdict is Verdict.OK


def test_an_integrated_gpu_without_nvml_is_ok_by_its_nodes(plant: Any) -> None:
    """Jetson's older systems have no NVML: the platform device, its driver and its node are what can be looked at."""
    folder = "/sys/bus/platform/devices/17000000.gpu"
    plant.file(f"{folder}/of_node/compatible", "nvidia,ga10b\0")
    plant.link(f"{folder}/driver", "../../../bus/platform/drivers/gk20a")
    plant.device("/dev/nvidia0")
    assert judged(plant, NO_LIBRARY).verdict is Verdict.OK


@pytest.mark.parametrize("lost", ["/sys", "/etc/docker/daemon.json", "/proc/modules", "/proc/self/mountinfo"])
def test_what_cannot_be_read_leaves_the_question_open(plant: Any, lost: str) -> None:
    """Without a source that decides, "nothing there" would be a guess; a loop of links refuses root, too."""
    path = plant.path(lost)
    if path.exists():
        path.rename(plant.root / "elsewhere")
    path.symlink_to(path.name)
    result = judged(plant, NO_LIBRARY)
    assert result.verdict is Verdict.UNABLE
    assert lost in result.lacking[0]


def test_an_undriven_gpu_with_an_unreadable_list_of_modules_is_undecided(plant: Any) -> None:
    """Whether the driver is loaded decides between two defects."""
    plant.gpu(0, "none")
    plant.path("/proc/modules").unlink()
    plant.link("/proc/modules", "modules")
    assert judged(plant, NO_LIBRARY).verdict is Verdict.UNABLE


SOURCE = r"""
#include <string.h>
int nvmlInitWithFlags(unsigned flags) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = COUNT; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **gpu) { *gpu = (void *)(long)(index + 1); return 0; }
int nvmlDeviceGetUUID(void *gpu, char *text, unsigned size) { strcpy(text, "GPU-0"); text[4] += (long)gpu; return 0; }
"""


def on_machine(plant: Any, folder: Path, gpus: int | None) -> dict[str, Any]:
    """A whole run on the made machine, in a mount namespace of its own; NVML lists ``gpus``. The row of the result."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    environ = {**os.environ, "XDG_STATE_HOME": str(folder)}
    if gpus is not None:
        (folder / "nvml.c").write_text(SOURCE)
        argv = ["gcc", "-shared", "-fPIC", f"-DCOUNT={gpus}", "-o", f"{folder}/libnvidia-ml.so.1", f"{folder}/nvml.c"]
        subprocess.run(argv, check=True)
        environ["LD_LIBRARY_PATH"] = str(folder)
    record = folder / "record.jsonl"
    arguments = ["--level", "quick", "-k", "gpus_present", "--engine", "none", "--record", str(record)]
    shown = ("/sys/bus/pci/devices", "/proc/driver")
    binds = [f"mount --bind {shlex.quote(str(plant.path(f'{name}/x').parent))} {name}" for name in shown]
    command = f"exec {shlex.join([sys.executable, '-m', 'gpucheck', 'run', *arguments])}"
    argv = ["unshare", "--mount", "sh", "-ec", "\n".join(["mount --make-rprivate /", *binds, command])]
    said = subprocess.run(argv, capture_output=True, text=True, check=False, env=environ, cwd=folder)
    rows = [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []
    [row] = [row for row in rows if row["kind"] == "result"] or [pytest.fail(said.stdout + said.stderr)]
    return dict(row)


def test_a_whole_run_finds_the_missing_eighth_gpu(plant: Any, tmp_path: Path) -> None:
    """PCI and the driver show eight, the real pynvml gets seven from its library."""
    plant.driven(8)
    row = on_machine(plant, tmp_path, 7)
    assert row["verdict"] == "bad"
    assert [finding["pitfall"] for finding in row["findings"]] == ["gpu-partial"]
    assert row["measures"] == {"gpus": 7}


def test_a_whole_run_finds_the_driver_that_is_not_there(plant: Any, tmp_path: Path) -> None:
    """A card on PCI that no driver holds, on a machine where none is installed."""
    plant.gpu(0, "none")
    row = on_machine(plant, tmp_path, None)
    assert [finding["pitfall"] for finding in row["findings"]] == ["driver-missing"]


def test_a_whole_run_names_who_expects_the_missing_gpus(plant: Any, tmp_path: Path) -> None:
    """/proc/driver/nvidia is there, no device is."""
    plant.file("/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue\n")
    row = on_machine(plant, tmp_path, None)
    assert [finding["pitfall"] for finding in row["findings"]] == ["gpu-missing"]
    assert "/proc/driver/nvidia" in str(row["findings"])
