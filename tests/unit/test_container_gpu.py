"""Why a container has no GPU: a test a row of the decision table."""

from __future__ import annotations

from typing import Any

import pytest

from gpucheck import pitfalls
from gpucheck.facts import Fact, Facts
from gpucheck.judgement.container_gpu import (
    _REFUSALS,
    Cdi,
    Engine,
    cdi_name,
    inside,
    of_cdi,
    read_cdi,
    refused,
    trouble,
    words,
)
from gpucheck.judgement.hello import Hello

DOCKER = Engine("docker", "28.2.2", ("nvidia", "runc"))
PODMAN = Engine("podman", "4.9.3")
UUID = "GPU-3d9a8e31-9b3c-5f6e-8d53-4f4f0f8e7a11"
OTHER = "GPU-7f0b1c22-1111-5f6e-8d53-4f4f0f8e7a22"
BARE = UUID[4:]

CDI_YAML = """---
cdiVersion: 0.5.0
containerEdits:
  deviceNodes:
  - path: /dev/nvidiactl
  hooks:
  - args:
    - nvidia-cdi-hook
    hookName: createContainer
  mounts:
  - containerPath: /usr/lib/x86_64-linux-gnu/libcuda.so.570.169
    hostPath: /usr/lib/x86_64-linux-gnu/libcuda.so.570.169
devices:
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
  name: "0"
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
  name: GPU-3d9a8e31-9b3c-5f6e-8d53-4f4f0f8e7a11
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
  name: all
kind: nvidia.com/gpu
"""
CDI_JSON = '{"cdiVersion":"0.7.0","kind":"nvidia.com/gpu","devices":[\n{"name": "0"},\n{"name": "all"}]}'


def seen(**changes: Any) -> dict[str, Any]:
    """What the payload says inside a container that got one GPU, with changes."""
    device = {"ordinal": 0, "uuid": BARE, "name": "NVIDIA H100"}
    init = {"code": 0, "name": "CUDA_SUCCESS", "text": ""}
    healthy: dict[str, Any] = {
        "nodes": {"/dev/nvidia0": None, "/dev/nvidiactl": None, "/dev/nvidia-uvm": None},
        "other": None,
        "driver": {"error": None, "init": init, "devices": [device]},
        "nvml": {"error": None, "devices": [UUID]},
        "smi": {"code": 0, "output": f"GPU 0: NVIDIA H100 (UUID: {UUID})"},
        "etc": None,
        "environment": {"NVIDIA_VISIBLE_DEVICES": UUID},
    }
    return healthy | changes


# ------------------------------------------------------------------------- the engine's refusals

REFUSED = [
    # Docker Engine 20.10 without the toolkit, seen; NVIDIA/nvidia-docker#1034
    ('could not select device driver "" with capabilities: [[gpu]]', "toolkit-missing"),
    ('exec: "nvidia-container-cli": executable file not found in $PATH: unknown', "toolkit-missing"),
    # Docker Engine 20.10, seen; NixOS/nixpkgs#305312
    ('could not select device driver "cdi" with capabilities: []', "cdi-not-enabled"),
    # Docker Engine 20.10, seen; NVIDIA/k8s-device-plugin#479
    ("Unknown runtime specified nvidia", "runtime-undeclared"),
    ("unknown or invalid runtime name: nvidia", "runtime-undeclared"),
    # podman 4.3.1, seen
    ("stat nvidia.com/gpu=all: no such file or directory", "cdi-spec-missing"),
    ("CDI device injection failed: unresolvable CDI devices nvidia.com/gpu=0", "cdi-spec-missing"),
    # NVIDIA/nvidia-container-toolkit#1860
    ('failed to parse CDI Spec "/etc/cdi/nvidia.yaml": json: unknown field "additionalGids"', "cdi-version"),
    # NVIDIA/nvidia-container-runtime#85, podman#26233
    ('CDI device injection failed: failed to stat "/dev/nvidia-modeset": no such file or directory', "cdi-stale"),
    ("crun: cannot stat `/usr/lib/x86_64-linux-gnu/libEGL_nvidia.so.570.169`: No such file or directory", "cdi-stale"),
    # NVIDIA/nvidia-docker#1447
    ("nvidia-container-cli: container error: cgroup subsystem devices not found: unknown", "cgroup-devices-missing"),
    # NVIDIA/libnvidia-container#154
    (
        "mount error: failed to add device rules: bpf_prog_query(BPF_CGROUP_DEVICE) failed: operation not permitted",
        "rootless-device-cgroup",
    ),
    # NVIDIA/libnvidia-container#231
    (
        "initialization error: load library failed: libnvidia-ml.so.1: cannot open shared object file: no such file",
        "hook-driver-not-found",
    ),
    ("nvidia-container-cli: initialization error: driver rpc error: timed out", "hook-driver-timeout"),
    (
        "nvidia-container-cli: ldcache error: process /sbin/ldconfig.real failed with error code: 1",
        "hook-ldconfig-failed",
    ),
    ("nvidia-container-cli: requirement error: unsatisfied condition: cuda>=13.0", "driver-requirement-unmet"),
    # NVIDIA/nvidia-container-toolkit#289
    (
        "mount error: file creation failed: /var/lib/docker/overlay2/7/merged/usr/lib/libnvidia-ml.so.1: file exists",
        "driver-libs-in-image",
    ),
]


@pytest.mark.parametrize(("text", "pitfall"), REFUSED, ids=[f"{pitfall}-{n}" for n, (_, pitfall) in enumerate(REFUSED)])
def test_a_refusal_is_known_by_the_engines_words(text: str, pitfall: str) -> None:
    """Each recorded text is one pitfall, with the engine and its words as evidence."""
    finding = refused(text, DOCKER, [], "580.65.06")
    assert finding is not None
    assert finding.pitfall == pitfall
    assert finding.evidence[0].startswith("docker 28.2.2: ")


def test_every_row_of_the_table_has_a_recorded_text_and_an_entry() -> None:
    """No row without a test, no pitfall without words."""
    assert {pitfall for _, pitfall in _REFUSALS} == {pitfall for _, pitfall in REFUSED}
    assert {pitfall for _, pitfall in _REFUSALS} <= set(pitfalls.load())


def test_words_that_nobody_knows_are_no_finding() -> None:
    """An unknown refusal is left to the operator's eyes."""
    assert refused("no space left on device", DOCKER, [], None) is None


def test_docker_from_a_snap_is_not_a_missing_toolkit() -> None:
    """The same refusal from an engine whose files lie under a snap."""
    finding = refused(REFUSED[0][0], Engine("docker", "27", snap=True), [], None)
    assert finding is not None
    assert finding.pitfall == "snap-docker"


def test_a_file_of_another_driver_explains_an_unresolvable_device() -> None:
    """The refusal says that there is no device; the file on the host says why."""
    old = Cdi("/etc/cdi/nvidia.yaml", ("0",), "570.169", "0.5.0")
    finding = refused("unresolvable CDI devices nvidia.com/gpu=0", DOCKER, [old], "580.65.06")
    assert finding is not None
    assert finding.pitfall == "cdi-stale"
    assert "made for driver 570.169; loaded is 580.65.06" in finding.evidence[-1]


# ------------------------------------------------------------------------- what is seen inside

DENIED = {"/dev/nvidia0": "EPERM", "/dev/nvidiactl": "EPERM", "/dev/nvidia-uvm": None}
NO_UVM = {"/dev/nvidia0": None, "/dev/nvidiactl": None}
LOST_CUDA: dict[str, Any] = {"error": "libcuda.so.1: cannot open shared object file", "init": None, "devices": []}
LOST_NVML: dict[str, Any] = {"error": "libnvidia-ml.so.1: cannot open shared object file", "devices": []}
TWO = [{"ordinal": 0, "uuid": BARE, "name": "A"}, {"ordinal": 1, "uuid": OTHER[4:], "name": "B"}]
OK = {"code": 0, "name": "", "text": ""}


@pytest.mark.parametrize(
    ("changes", "engine", "pitfall", "words_"),
    [
        ({}, DOCKER, None, ""),
        ({"smi": None}, DOCKER, None, ""),
        ({"nodes": {}}, DOCKER, "gpu-not-in-container", "of NVIDIA's nodes it has none"),
        ({"nodes": {"/dev/nvidiactl": None}}, DOCKER, "gpu-not-in-container", "NVIDIA_VISIBLE_DEVICES=GPU-"),
        ({"nodes": {}}, PODMAN, "podman-gpus-ignored", "podman 4.9.3 accepted the request"),
        ({"nodes": DENIED}, DOCKER, "no-cgroups-rootful", "/dev/nvidia0: EPERM"),
        ({"nodes": DENIED}, Engine(rootless=True), "rootless-device-cgroup", "/dev/nvidiactl: EPERM"),
        ({"nodes": NO_UVM}, DOCKER, "uvm-missing", "no /dev/nvidia-uvm"),
        ({"driver": LOST_CUDA}, DOCKER, "driver-capability-missing", "libcuda.so.1"),
        ({"nvml": LOST_NVML}, DOCKER, "driver-capability-missing", "libnvidia-ml.so.1"),
        ({"driver": {"error": None, "init": OK, "devices": TWO}}, DOCKER, "gpu-not-isolated", OTHER[4:]),
        ({"nvml": {"error": None, "devices": [UUID, OTHER]}}, DOCKER, "gpu-not-isolated", "NVML shows 1 GPU(s)"),
        ({"driver": {"error": None, "init": OK, "devices": TWO[1:]}}, DOCKER, "gpu-not-isolated", OTHER[4:]),
        ({"nodes": {}, "other": "/dev/dxg"}, DOCKER, None, ""),
    ],
)
def test_what_is_inside_decides(changes: dict[str, Any], engine: Engine, pitfall: str | None, words_: str) -> None:
    """A row of the table each: nodes, permissions, libraries, identity."""
    finding = inside(seen(**changes), [UUID], engine)
    assert (finding and finding.pitfall) == pitfall
    if finding is not None:
        assert words_ in "\n".join(finding.evidence)
        assert finding.pitfall in pitfalls.load()


def test_a_gpu_that_was_asked_for_and_does_not_come_is_named() -> None:
    """Two asked for, one there."""
    finding = inside(seen(), [UUID, OTHER], DOCKER)
    assert finding is not None
    assert finding.pitfall == "gpu-partial"
    assert OTHER[4:] in finding.evidence[0]


def test_of_migs_slices_cuda_shows_one() -> None:
    """With a split GPU the UUIDs are not compared."""
    assert inside(seen(), [OTHER], DOCKER, whole=False) is None


def test_podman_with_bare_nodes_was_not_asked_for_gpus() -> None:
    """Nodes that did not come are no ignored request."""
    finding = inside(seen(nodes={}), [UUID], PODMAN, by_request=False)
    assert finding is not None
    assert finding.pitfall == "gpu-not-in-container"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, None),
        (
            {"driver": {"error": None, "init": {"code": 999, "name": "CUDA_ERROR_UNKNOWN"}, "devices": []}},
            "cuInit: 999",
        ),
        ({"driver": {"error": None, "init": OK, "devices": []}}, "shows no device"),
        ({"nvml": {"error": "nvmlInit: error 18", "devices": []}}, "nvmlInit: error 18"),
    ],
)
def test_a_driver_that_does_not_start_is_not_the_engines_fault(changes: dict[str, Any], why: str | None) -> None:
    """Everything was given and nothing starts: said as it is, for another probe to judge."""
    told = trouble(seen(**changes))
    assert (told is None) == (why is None)
    assert (why or "") in (told or "")


def test_the_evidence_names_nodes_devices_and_nvidia_smi() -> None:
    """One line for the row."""
    assert words(seen()) == f"/dev/nvidia0, /dev/nvidiactl, /dev/nvidia-uvm; CUDA: {BARE}; nvidia-smi -L: ok"
    assert words(seen(nodes={}, smi=None, driver=LOST_CUDA)) == "no node; CUDA: no device; no nvidia-smi"


# --------------------------------------------------------------------------------- CDI files


def test_a_cdi_file_is_read_as_yaml_and_as_json() -> None:
    """Devices, the driver's version in its paths, the schema."""
    assert read_cdi("a", CDI_YAML) == Cdi("a", ("0", UUID, "all"), "570.169", "0.5.0")
    assert read_cdi("b", CDI_JSON) == Cdi("b", ("0", "all"), None, "0.7.0")


def test_a_gpu_is_asked_for_by_uuid_where_the_file_has_it() -> None:
    """Else by its number; else there is no name."""
    assert cdi_name([read_cdi("a", CDI_YAML)], UUID, 0) == f"nvidia.com/gpu={UUID}"
    assert cdi_name([read_cdi("b", CDI_JSON)], UUID, 0) == "nvidia.com/gpu=0"
    assert cdi_name([read_cdi("b", CDI_JSON)], UUID, 3) is None
    assert cdi_name([], UUID, 0) is None


@pytest.mark.parametrize(("driver", "stale"), [("580.65.06", True), ("570.169", False), (None, False)])
def test_a_cdi_file_older_than_the_driver_is_stale(driver: str | None, stale: bool) -> None:
    """By the version in the paths; an unknown driver proves nothing."""
    finding = of_cdi([read_cdi("/etc/cdi/nvidia.yaml", CDI_YAML)], driver)
    assert (finding is not None) is stale
    if finding is not None:
        assert finding.pitfall == "cdi-stale"
    assert of_cdi([read_cdi("b", CDI_JSON)], driver) is None


# ------------------------------------------------------------------------------- the engine

HELLO = {
    "kind": "docker",
    "version": "28",
    "runtimes": ["runc"],
    "cdi_folders": ["/etc/cdi"],
    "devices": [],
    "security": [],
    "root": "/var/lib/docker",
}


@pytest.mark.parametrize(
    ("changes", "facts", "engine"),
    [
        ({}, {}, Engine("docker", "28", ("runc",), ("/etc/cdi",))),
        ({"security": ["name=rootless"]}, {}, Engine("docker", "28", ("runc",), ("/etc/cdi",), rootless=True)),
        ({}, {"engine.rootless": True}, Engine("docker", "28", ("runc",), ("/etc/cdi",), rootless=True)),
        (
            {"root": "/var/snap/docker/common/var-lib-docker"},
            {},
            Engine("docker", "28", ("runc",), ("/etc/cdi",), snap=True),
        ),
    ],
)
def test_an_engine_by_what_it_says_and_what_files_say(
    changes: dict[str, Any], facts: dict[str, Any], engine: Engine
) -> None:
    """Rootless by its own word or by its socket; a snap by where its files lie."""
    host = Facts(Fact(name, value, "the test") for name, value in facts.items())
    assert Engine.of(Hello.parse({**HELLO, **changes}), host) == engine
