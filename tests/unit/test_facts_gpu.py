"""Facts about GPUs, driver and who expects them, read from made trees of /proc, /sys, /dev and /etc."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any

import pytest

from gpucheck.facts import loader
from gpucheck.facts.tree import Tree

ELF = "\x7fELF\x02"
LIBCUDA = "/usr/lib/x86_64-linux-gnu/libcuda.so.1"
IN_DOCKER = "1 0 0:50 / / rw,relatime - overlay overlay rw\n"


def dock(plant: Any, mounts: str = "") -> None:
    """Turn the machine into a docker container."""
    plant.file("/.dockerenv")
    plant.file("/proc/self/mountinfo", IN_DOCKER + mounts)


def expected(plant: Any, **environ: str) -> list[tuple[str, int | None]]:
    """Who expects GPUs, and how many."""
    fact = plant.facts("gpu.expected", **environ)["gpu.expected"]
    assert fact.is_known, fact.why
    return [(row["who"], row["count"]) for row in fact.value]


def test_gpus_on_pci_are_told_from_their_sound_and_usb_functions(plant: Any) -> None:
    """A card's audio and USB functions, and other vendors' cards, are no NVIDIA GPUs."""
    plant.gpu(0)
    plant.gpu(1, class_="0x030000")
    plant.gpu(2, class_="0x040300")
    plant.gpu(3, class_="0x0c0330")
    plant.gpu(4, vendor="0x1002")
    found = plant.facts("gpu.pci", "gpu.pci_count")
    assert found.known("gpu.pci_count") == 2
    assert [gpu["class"] for gpu in found.known("gpu.pci")] == ["0302", "0300"]


def test_the_bound_driver_of_each_gpu_is_read(plant: Any) -> None:
    """nvidia, vfio-pci and nothing are told apart."""
    for number, driver in enumerate(("nvidia", "vfio-pci", "none")):
        plant.gpu(number, driver)
    assert plant.facts("gpu.pci_drivers").known("gpu.pci_drivers") == ["none", "nvidia", "vfio-pci"]


def test_virtual_functions_are_not_gpus_of_their_own(plant: Any) -> None:
    """SR-IOV functions beside their card count as the card; one alone, as a guest sees it, is a GPU."""
    card = plant.gpu(0)
    for number in (1, 2):
        address = plant.gpu(number)
        plant.link(f"/sys/bus/pci/devices/{address}/physfn", f"../{card}")
    plant.gpu(3)
    found = plant.facts("gpu.pci").known("gpu.pci")
    assert len(found) == 2
    assert found[0]["virtual_functions"] == 2


def test_jetsons_gpu_is_found_on_the_platform_bus(plant: Any) -> None:
    """An integrated GPU is on no PCI bus and is a GPU all the same."""
    folder = "/sys/bus/platform/devices/17000000.gpu"
    plant.file(f"{folder}/of_node/compatible", "nvidia,ga10b\0nvidia,gpu\0")
    plant.link(f"{folder}/driver", "../../../bus/platform/drivers/gk20a")
    plant.file("/sys/bus/platform/devices/13e00000.gpu/of_node/compatible", "arm,mali\0")
    assert plant.facts("gpu.pci").known("gpu.pci") == [
        {
            "address": "17000000.gpu",
            "device": "nvidia,ga10b",
            "class": "platform",
            "driver": "gk20a",
            "integrated": True,
        }
    ]


def test_nvswitches_are_counted_and_other_bridges_are_not(plant: Any) -> None:
    """NVSwitches are bridges of class 0680 from NVIDIA; a PCI-to-PCI bridge on a card is none."""
    plant.gpu(0, class_="0x068000")
    plant.gpu(1, class_="0x068000")
    plant.gpu(2, class_="0x060400")
    assert plant.facts("fabric.switches").known("fabric.switches") == 2


def test_without_sysfs_the_gpus_are_unknown(plant: Any) -> None:
    """A tree without /sys does not say that there are no GPUs."""
    plant.path("/sys").rename(plant.root / "elsewhere")
    fact = plant.facts("gpu.pci_count")["gpu.pci_count"]
    assert not fact.is_known
    assert fact.source == "/sys/bus"


def test_a_kernel_without_pci_is_known_to_have_no_gpu_there(plant: Any) -> None:
    """Where sysfs is mounted and lists no PCI bus, there is none."""
    plant.path("/sys/bus/pci").rename(plant.root / "sys/bus/usb")
    assert plant.facts("gpu.pci_count").known("gpu.pci_count") == 0


def test_device_nodes_are_devices_in_the_order_of_their_numbers(plant: Any) -> None:
    """A folder or a file called /dev/nvidia1 is the remains of a wrong bind, not a device."""
    for name in ("nvidia10", "nvidia2", "nvidiactl", "nvidia-uvm"):
        plant.device(f"/dev/{name}")
    plant.path("/dev/nvidia1/x")
    plant.file("/dev/nvidia3")
    plant.device("/dev/nvidia-caps/nvidia-cap1")
    found = plant.facts("gpu.nodes", "gpu.control_nodes", "uvm.node")
    assert found.known("gpu.nodes") == ["/dev/nvidia2", "/dev/nvidia10"]
    assert found.known("gpu.control_nodes") == ["/dev/nvidia-uvm", "/dev/nvidiactl", "/dev/nvidia-caps/nvidia-cap1"]
    assert found.known("uvm.node") is True


def test_the_drivers_own_list_is_read(plant: Any) -> None:
    """Model, UUID and minor number stand in /proc/driver/nvidia; a UUID of question marks is not one yet."""
    plant.driven(1)
    folder = "/proc/driver/nvidia/gpus/0000:99:00.0"
    plant.file(f"{folder}/information", "Model: \t\t H100\nGPU UUID: \t GPU-????????-????\nDevice Minor: \t 9\n")
    first, second = plant.facts("gpu.proc").known("gpu.proc")
    assert first == {"address": "0000:1b:00.0", "model": "NVIDIA H100", "uuid": "GPU-0", "minor": 0}
    assert second == {"address": "0000:99:00.0", "model": "H100", "uuid": None, "minor": 9}


@pytest.mark.parametrize(
    ("words", "kind"), [("Open Kernel Module for x86_64", "open"), ("x86_64 Kernel Module", "proprietary")]
)
def test_version_and_kind_of_the_module_are_read(plant: Any, words: str, kind: str) -> None:
    """The module's version line says which of the two kinds of module is loaded."""
    plant.file(
        "/proc/driver/nvidia/version", f"NVRM version: NVIDIA UNIX {words}  550.54.15  Tue\nGCC version: 12.3.0\n"
    )
    found = plant.facts("driver.module_version", "driver.module_kind")
    assert found.known("driver.module_version") == "550.54.15"
    assert found.known("driver.module_kind") == kind


def test_no_module_is_known_to_have_no_version(plant: Any) -> None:
    """Without a loaded module there is no version, which is known, not unknown."""
    found = plant.facts("driver.module_version", "driver.module_kind", "driver.modules", "uvm.loaded")
    assert all(fact.is_known for fact in found.values())
    assert found.known("driver.module_version") is None
    assert found.known("driver.modules") == []
    assert found.known("uvm.loaded") is False


def test_modules_that_matter_are_listed(plant: Any) -> None:
    """Loaded modules of NVIDIA's, nouveau and vfio are evidence; others are not."""
    plant.file(
        "/proc/modules", "".join(f"{name} 1 0 - Live 0x0\n" for name in ("nvidia_uvm", "nouveau", "ext4", "vfio_pci"))
    )
    assert plant.facts("driver.modules").known("driver.modules") == ["nouveau", "nvidia_uvm", "vfio_pci"]


def test_a_kernel_without_modules_has_none_loaded(plant: Any) -> None:
    """A kernel that was built without loadable modules has no list of them; /proc not being there is something else."""
    plant.path("/proc/modules").unlink()
    assert plant.facts("driver.modules").known("driver.modules") == []
    plant.path("/proc").rename(plant.root / "elsewhere")
    assert not plant.facts("driver.modules")["driver.modules"].is_known


def test_the_librarys_version_stands_in_its_file_name(plant: Any) -> None:
    """libcuda.so.1 is a link to a file that carries the driver's version."""
    plant.library("/usr/lib/x86_64-linux-gnu/libcuda.so.580.65.06")
    plant.link(LIBCUDA, "libcuda.so.580.65.06")
    found = plant.facts("driver.library_version", "driver.libcuda_path", "driver.libcuda_is_stub")
    assert found.known("driver.library_version") == "580.65.06"
    assert found.known("driver.libcuda_path") == LIBCUDA
    assert found.known("driver.libcuda_is_stub") is False


def test_the_loaders_path_comes_before_the_default_folders(plant: Any) -> None:
    """LD_LIBRARY_PATH, then the loader's cache, then the default folders: the first file is the one that is loaded."""
    plant.library(LIBCUDA)
    plant.library("/opt/driver/libcuda.so.1")
    write_cache(plant.path("/etc/ld.so.cache"), {"libcuda.so.1": "/opt/driver/libcuda.so.1"})
    assert plant.facts("driver.libcuda_path").known("driver.libcuda_path") == "/opt/driver/libcuda.so.1"
    plant.library("/first/libcuda.so.1")
    found = plant.facts("driver.libcuda_path", LD_LIBRARY_PATH="/nowhere:/first")
    assert found.known("driver.libcuda_path") == "/first/libcuda.so.1"


def write_cache(path: Path, libraries: dict[str, str]) -> None:
    """The loader's cache, in glibc's present format."""
    strings = b""
    entries = b""
    start = 48 + 24 * len(libraries)
    for name, target in libraries.items():
        key = start + len(strings)
        strings += name.encode() + b"\0"
        value = start + len(strings)
        strings += target.encode() + b"\0"
        entries += struct.pack("<iIIIQ", 0x0303, key, value, 0, 0)
    path.write_bytes(
        b"glibc-ld.so.cache1.1" + struct.pack("<II", len(libraries), len(strings)) + bytes(20) + entries + strings
    )


def test_the_real_cache_of_this_machine_is_understood() -> None:
    """The C library that every program here loads is found as the loader finds it."""
    assert loader.find(Tree(Path("/"), {}, "", math.inf), "libc.so.6")


@pytest.mark.parametrize("name", ["empty", "32-bit", "a folder"])
def test_what_cannot_be_loaded_is_passed_over(plant: Any, name: str) -> None:
    """An empty file (left by an image made from a GPU container), a 32-bit library and a folder are no libcuda."""
    content = {"empty": "", "32-bit": "\x7fELF\x01", "a folder": None}[name]
    if content is None:
        plant.path(f"{LIBCUDA}/x")
    else:
        plant.library(LIBCUDA, content)
    assert plant.facts("driver.libcuda_path").known("driver.libcuda_path") is None


@pytest.mark.parametrize("how", ["folder", "another toolkit", "link", "copy"])
def test_a_stub_is_recognised(plant: Any, how: str) -> None:
    """The toolkit's stub for linking: in its folder, linked to, or copied to where the driver's library should be."""
    stub = "/usr/local/cuda/lib64/stubs/libcuda.so"
    plant.library(stub, ELF + "cuGraphicsUnmapResources")
    environ = {}
    if how == "folder":
        plant.link(f"{stub}.1", "libcuda.so")
        environ["LD_LIBRARY_PATH"] = "/usr/local/cuda/lib64/stubs"
    elif how == "another toolkit":
        plant.library(f"{stub}.1")
        environ["LD_LIBRARY_PATH"] = "/usr/local/cuda/lib64/stubs"
    elif how == "link":
        plant.link(LIBCUDA, stub)
    else:
        plant.library(LIBCUDA, ELF + "cuGraphicsUnmapResources")
    found = plant.facts("driver.libcuda_is_stub", "driver.installed", **environ)
    assert found.known("driver.libcuda_is_stub") is True
    assert found.known("driver.installed") is False


def test_wsls_small_library_is_no_stub(plant: Any) -> None:
    """Windows' own libcuda for Linux is small and has the whole API: it is the driver there."""
    path = "/usr/lib/wsl/lib/libcuda.so.1"
    plant.library(path, ELF + "cuGraphicsUnmapResources")
    assert (
        plant.facts("driver.libcuda_is_stub", LD_LIBRARY_PATH="/usr/lib/wsl/lib").known("driver.libcuda_is_stub")
        is False
    )


def test_a_compatibility_library_is_found_and_is_no_driver(plant: Any) -> None:
    """cuda-compat's libcuda stands in a fact of its own and does not say that a driver is installed."""
    plant.library("/usr/local/cuda-13.0/compat/libcuda.so.580.65.06")
    plant.link("/usr/local/cuda-13.0/compat/libcuda.so.1", "libcuda.so.580.65.06")
    environ = {"LD_LIBRARY_PATH": "/usr/local/cuda-13.0/compat"}
    found = plant.facts("driver.compat_path", "driver.installed", "driver.library_version", **environ)
    assert found.known("driver.compat_path") == "/usr/local/cuda-13.0/compat/libcuda.so.1"
    assert found.known("driver.installed") is False
    assert found.known("driver.library_version") is None


STANZA = "Package: {}\nStatus: {} ok {}\nVersion: {}\nDepends: x,\n y\n\n"


@pytest.mark.parametrize("way", ["libcuda", "nvidia-smi", "module", "modprobe", "package"])
def test_an_installed_driver_is_an_expectation(plant: Any, way: str) -> None:
    """Somebody who installs a driver expects a GPU, whichever of its parts shows it."""
    if way == "libcuda":
        plant.library(LIBCUDA)
    elif way == "nvidia-smi":
        plant.file("/usr/bin/nvidia-smi")
    elif way == "module":
        plant.file(
            "/lib/modules/6.1.0-amd64/modules.dep", "kernel/fs/ext4.ko:\nupdates/dkms/nvidia.ko.zst: kernel/x.ko\n"
        )
    elif way == "modprobe":
        plant.file("/etc/modprobe.d/nvidia.conf", "options nvidia-drm modeset=1\n")
    else:
        plant.file(
            "/var/lib/dpkg/status", STANZA.format("nvidia-driver-580", "install", "installed", "580.65.06-0ubuntu1")
        )
    assert plant.facts("driver.installed").known("driver.installed") is True
    [(who, count)] = expected(plant)
    assert who.startswith("the installed driver (")
    assert count is None


@pytest.mark.parametrize(
    "path",
    [
        "/usr/lib/python3/site-packages/nvidia/cu13/lib/libcudart.so.13",
        "/usr/local/cuda/lib64/libcudart.so.13",
        "/etc/modprobe.d/blacklist-nouveau.conf",
        "/lib/modules/6.1.0-amd64/modules.dep",
        "/var/lib/dpkg/status",
    ],
)
def test_cuda_libraries_and_their_like_expect_nothing(plant: Any, path: str) -> None:
    """CUDA from PyPI or a toolkit, a blacklist, nvidiafb and removed or foreign packages are no installed driver."""
    texts = {
        "/etc/modprobe.d/blacklist-nouveau.conf": "blacklist nouveau\noptions nouveau modeset=0\n",
        "/lib/modules/6.1.0-amd64/modules.dep": "kernel/drivers/video/fbdev/nvidia/nvidiafb.ko:\n",
        "/var/lib/dpkg/status": STANZA.format("nvidia-driver-580", "deinstall", "config-files", "580.1.2")
        + STANZA.format("nvidia-driver-assistant", "install", "installed", "0.21.57.08-1")
        + STANZA.format("nvidia-cuda-toolkit", "install", "installed", "12.0.140"),
    }
    plant.file(path, texts.get(path, ELF))
    assert expected(plant) == []


def test_the_images_own_driver_files_expect_nothing_in_a_container(plant: Any) -> None:
    """A libcuda or nvidia-smi that was baked into an image says nothing; one that was mounted in does."""
    plant.library(LIBCUDA)
    plant.file("/usr/bin/nvidia-smi")
    plant.file("/var/lib/dpkg/status", STANZA.format("nvidia-driver-580", "install", "installed", "580.65.06-0ubuntu1"))
    dock(plant)
    assert expected(plant) == []
    dock(plant, "2 1 8:1 /usr/bin/nvidia-smi /usr/bin/nvidia-smi ro - ext4 /dev/sda1 ro\n")
    assert expected(plant) == [("the installed driver (/usr/bin/nvidia-smi)", None)]


def test_a_loaded_module_expects_what_it_has_bound(plant: Any) -> None:
    """The driver's own list says how many GPUs there are, but not how many of them a container or a job was given."""
    plant.driven(2)
    assert expected(plant) == [("the loaded kernel module nvidia", 2)]
    job = {"SLURM_JOB_ID": "7", "SLURM_GPUS_ON_NODE": "1"}
    assert expected(plant, **job) == [
        ("the loaded kernel module nvidia", None),
        ("slurm job 7 (SLURM_GPUS_ON_NODE)", 1),
    ]
    dock(plant)
    assert expected(plant) == [("the loaded kernel module nvidia", None)]


def test_nvidiafb_is_not_the_driver(plant: Any) -> None:
    """A loaded module whose name only begins like the driver's expects nothing."""
    plant.file("/proc/modules", "nvidiafb 1 0 - Live 0x0\nnvidia_wmi_ec_backlight 1 0 - Live 0x0\n")
    assert expected(plant) == []


def test_an_engine_with_an_nvidia_runtime_expects_gpus(plant: Any) -> None:
    """A daemon.json with an nvidia runtime was written for GPUs; one without was not."""
    plant.file("/etc/docker/daemon.json", json.dumps({"log-driver": "json-file"}))
    assert expected(plant) == []
    plant.file("/etc/docker/daemon.json", json.dumps({"runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}}))
    assert expected(plant) == [("docker's nvidia runtime (/etc/docker/daemon.json)", None)]


CDI = """\
cdiVersion: 0.5.0
kind: nvidia.com/gpu
devices:
  - name: "0"
    containerEdits: {{}}
  - name: "1"
  - name: {uuid}
  - name: all
"""


def test_a_cdi_file_says_how_many_gpus_there_were(plant: Any) -> None:
    """The file that was written when all was well counts the GPUs; by number, whatever else it calls them."""
    plant.file("/etc/cdi/nvidia.yaml", CDI.format(uuid="GPU-1234"))
    plant.file("/etc/cdi/other.yaml", "kind: vendor.com/fpga\ndevices:\n- name: '0'\n")
    plant.link("/var/run", "/run")
    plant.file("/run/cdi/nvidia.json", json.dumps({"kind": "nvidia.com/gpu", "devices": [{"name": "all"}]}))
    assert expected(plant) == [("the CDI file /etc/cdi/nvidia.yaml", 2), ("the CDI file /run/cdi/nvidia.json", None)]


def test_a_source_that_cannot_be_read_is_not_a_source_that_expects_nothing(plant: Any) -> None:
    """With an unreadable daemon.json and no other expectation, whether anybody expects GPUs is unknown."""
    plant.file("/etc/docker/daemon.json", "{ not json")
    fact = plant.facts("gpu.expected")["gpu.expected"]
    assert not fact.is_known
    assert "daemon.json: Expecting" in str(fact.why)
    plant.library(LIBCUDA)
    fact = plant.facts("gpu.expected")["gpu.expected"]
    assert [row["who"] for row in fact.value] == [f"the installed driver ({LIBCUDA})"]
    assert "could not be read" in fact.source


def test_switches_expect_gpus(plant: Any) -> None:
    """A machine with NVSwitches was built for GPUs."""
    plant.gpu(0, class_="0x068000")
    assert expected(plant) == [("1 NVSwitches on PCI", None)]


@pytest.mark.parametrize(
    ("name", "text", "count"),
    [
        ("gres.conf", "NodeName=node[1-8] Name=gpu Type=h100 File=/dev/nvidia[0-7]\n", 8),
        ("gres.conf", "Name=gpu Count=2\nName=gpu File=/dev/nvidia2,/dev/nvidia3 # more\n", 4),
        ("gres.conf", "NodeName=node[1-6,8] Name=gpu Count=4\n", None),
        ("gres.conf", "AutoDetect=nvml\n", None),
        ("slurm.conf", "NodeName=DEFAULT Gres=gpu:h100:8\nNodeName=node[01-09] CPUs=64\n", 8),
        ("slurm.conf", "NodeName=login CPUs=8\nNodeName=node7 \\\n  Gres=gpu:a100:4(S:0-1),mps:100 CPUs=64\n", 4),
        ("slurm.conf", "NodeName=node7 Gres=gpu:1g.10gb:7\n", None),
        ("slurm.conf", "NodeName=node7 Gres=gpu\n", 1),
        ("slurm.conf", "NodeName=node70 Gres=gpu:8\n", None),
    ],
)
def test_slurms_configuration_counts_this_nodes_gpus(plant: Any, name: str, text: str, count: int | None) -> None:
    """GRES lines for this node say how many whole GPUs it has; those for other nodes, and slices, say nothing."""
    plant.file(f"/etc/slurm/{name}", text)
    assert [number for _, number in expected(plant)] == ([] if count is None else [count])
    found = plant.facts("scheduler.gres", "scheduler.kind")
    assert found.known("scheduler.gres") == (None if count is None else f"gpu:{count}")
    assert found.known("scheduler.kind") == "slurm"


@pytest.mark.parametrize(
    ("environ", "want"),
    [
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "0,3"}, [("slurm job 7 (SLURM_JOB_GPUS)", 2)]),
        ({"SLURM_JOB_ID": "7", "CUDA_VISIBLE_DEVICES": "NoDevFiles"}, []),
        ({"SLURM_JOB_ID": "7"}, []),
        ({"PBS_JOBID": "9.srv", "CUDA_VISIBLE_DEVICES": "GPU-1,GPU-2"}, [("pbs job 9.srv (CUDA_VISIBLE_DEVICES)", 2)]),
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, []),
    ],
)
def test_a_jobs_gpus_are_what_its_scheduler_says(plant: Any, environ: dict[str, str], want: list[Any]) -> None:
    """In a job its scheduler's variables count, not what the node has; outside, the variable is the user's."""
    if "SLURM_JOB_ID" in environ:
        plant.file("/etc/slurm/gres.conf", "Name=gpu File=/dev/nvidia[0-7]")
    assert expected(plant, **environ) == want


@pytest.mark.parametrize(
    ("value", "want"),
    [
        ("all", []),
        ("void", []),
        ("", []),
        ("0,1", [("NVIDIA_VISIBLE_DEVICES=0,1", 2)]),
        ("0:0,0:1", [("NVIDIA_VISIBLE_DEVICES=0:0,0:1", 1)]),
        ("GPU-1", [("NVIDIA_VISIBLE_DEVICES=GPU-1", 1)]),
        ("MIG-1,MIG-2", [("NVIDIA_VISIBLE_DEVICES=MIG-1,MIG-2", None)]),
    ],
)
def test_a_containers_list_of_devices_is_an_expectation(plant: Any, value: str, want: list[Any]) -> None:
    """A list was chosen by somebody; ``all`` stands in every CUDA image, with or without GPUs."""
    dock(plant)
    assert expected(plant, NVIDIA_VISIBLE_DEVICES=value) == want


def hidden(plant: Any, **environ: str) -> list[str]:
    """What hides GPUs, in words."""
    return [f"{row['what']}: {row['source']}" for row in plant.facts("gpu.hidden_by", **environ).known("gpu.hidden_by")]


def test_a_device_for_virtual_machines_is_hidden(plant: Any) -> None:
    """A GPU on vfio-pci is handed to a virtual machine, not missing."""
    address = plant.gpu(0, "vfio-pci")
    plant.gpu(1)
    assert hidden(plant) == [f"{address}: bound to vfio-pci, for a virtual machine"]


@pytest.mark.parametrize(("value", "hides"), [("void", True), ("none", True), ("all", False), ("", False)])
def test_void_hides_every_gpu_in_a_container_alone(plant: Any, value: str, *, hides: bool) -> None:
    """NVIDIA_VISIBLE_DEVICES speaks to the container runtime; on a machine it hides nothing."""
    assert hidden(plant, NVIDIA_VISIBLE_DEVICES=value) == []
    dock(plant)
    want = [f"every GPU: NVIDIA_VISIBLE_DEVICES={value}"] if hides else []
    assert hidden(plant, NVIDIA_VISIBLE_DEVICES=value) == want


@pytest.mark.parametrize(
    ("rules", "hides"), [("c 1:3 rwm\n", True), ("c 1:3 rwm\nc 195:* rw\n", False), ("a *:* rwm\n", False)]
)
def test_a_device_cgroup_without_nvidias_number_hides_every_gpu(plant: Any, rules: str, *, hides: bool) -> None:
    """Nodes that the device cgroup does not allow are there and cannot be opened."""
    plant.device("/dev/nvidiactl")
    plant.file("/sys/fs/cgroup/devices/devices.list", rules)
    assert bool(hidden(plant)) is hides


def test_a_running_fabric_manager_is_told_from_a_stopped_one(plant: Any) -> None:
    """The pid file must name a living process of that name; a container cannot see the host's service."""
    assert plant.facts("fabric.manager").known("fabric.manager") == "absent"
    plant.file("/usr/bin/nv-fabricmanager")
    plant.file("/run/nvidia-fabricmanager/nv-fabricmanager.pid", "812\n")
    assert plant.facts("fabric.manager").known("fabric.manager") == "stopped"
    plant.file("/proc/812/comm", "nv-fabricmanage\n")
    assert plant.facts("fabric.manager").known("fabric.manager") == "running"
    dock(plant)
    assert not plant.facts("fabric.manager")["fabric.manager"].is_known


def test_the_fabric_managers_version_comes_from_its_package(plant: Any) -> None:
    """The file that dpkg keeps names the version; without a package and without a binary there is none."""
    assert plant.facts("fabric.manager_version")["fabric.manager_version"].is_known
    status = STANZA.format("nvidia-fabricmanager-580", "install", "installed", "580.65.06-1")
    plant.file("/var/lib/dpkg/status", status)
    assert plant.facts("fabric.manager_version").known("fabric.manager_version") == "580.65.06"
