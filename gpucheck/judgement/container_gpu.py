"""Why a container has no GPU, has others than were asked for, or cannot use them: a decision table. Pure.

Three tables: :func:`refused`, what the engine said when the container did not start; :func:`inside`, what was seen in
one that did; :func:`of_cdi`, CDI files read on the host. A row is a known text or state and the pitfall that it is.
The engine's words are those of moby (`daemon/devices.go`), containerd's CDI library, runc and NVIDIA's
libnvidia-container and nvidia-container-toolkit; texts without GPU support were seen on Docker Engine 20.10.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gpucheck.judgement.visibility import bare
from gpucheck.verdict import Finding, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gpucheck.facts import Facts
    from gpucheck.judgement.hello import Hello

KIND: Final = "nvidia.com/gpu"
WORDS: Final = 400


@dataclass(frozen=True, slots=True)
class Engine:
    """What of an engine decides: its kind, what it declares, and how it runs."""

    kind: str = "docker"
    version: str = ""
    runtimes: tuple[str, ...] = ()
    cdi_folders: tuple[str, ...] = ()
    rootless: bool = False
    snap: bool = False

    @classmethod
    def of(cls, hello: Hello, host: Facts) -> Engine:
        """From what the engine says of itself, and what the host's files say of it."""
        rootless = hello.rootless or bool(host.known("engine.rootless"))
        return cls(hello.kind, hello.version, hello.runtimes, hello.cdi_folders, rootless, hello.snap)


@dataclass(frozen=True, slots=True)
class Cdi:
    """One CDI file for NVIDIA's GPUs: the device names that it offers and the driver's version in its paths."""

    path: str
    devices: tuple[str, ...]
    driver: str | None
    schema: str | None


_NAME: Final = re.compile(r"""(?:^|[{,])\s*(?:-\s*)?["']?name["']?\s*:\s*["']?([\w:.-]+)["']?""", re.MULTILINE)
_DRIVER: Final = re.compile(r"lib(?:cuda|nvidia-ml)\.so\.(\d+\.\d+(?:\.\d+)?)")
_SCHEMA: Final = re.compile(r"""["']?cdiVersion["']?\s*:\s*["']?([\d.]+)""")


def read_cdi(path: str, text: str) -> Cdi:
    """A CDI file (YAML or JSON) as far as it matters here."""
    devices = tuple(dict.fromkeys(name for name in _NAME.findall(text) if not name.startswith("NVIDIA_")))
    driver, schema = _DRIVER.search(text), _SCHEMA.search(text)
    return Cdi(path, devices, driver[1] if driver else None, schema[1] if schema else None)


def cdi_name(files: Iterable[Cdi], uuid: str, index: int) -> str | None:
    """The name by which a GPU can be asked for: by its UUID where the files have that, else by its number."""
    offered = {name for file in files for name in file.devices}
    return next((f"{KIND}={name}" for name in (uuid, str(index)) if name in offered), None)


def of_cdi(files: Sequence[Cdi], driver: str | None) -> Finding | None:
    """A CDI file older than the loaded driver: its paths name libraries that are gone."""
    old = [file for file in files if driver and file.driver and file.driver != driver]
    if not old:
        return None
    evidence = tuple(f"{file.path} is made for driver {file.driver}; loaded is {driver}" for file in old)
    return _bad("cdi-stale", *evidence)


# The engine's refusal. Order decides: what names a cause comes before what only names the step.
_REFUSALS: Final = (
    (r"cgroup subsystem devices not found|cannot find cgroup mount destination", "cgroup-devices-missing"),
    (r"bpf_prog_query\(|failed to add device rules|failed to set device access", "rootless-device-cgroup"),
    (r"load library failed: lib(?:nvidia-ml|cuda)|driver not loaded", "hook-driver-not-found"),
    (r"driver (?:rpc )?error: timed out", "hook-driver-timeout"),
    (r"ldcache error|update-ldcache", "hook-ldconfig-failed"),
    (r"unsatisfied condition: ", "driver-requirement-unmet"),
    (r"file creation failed: .*\.so\S*: file exists", "driver-libs-in-image"),
    (r"unknown field |failed to (?:load|parse) CDI Spec", "cdi-version"),
    (r"unknown or invalid runtime name: nvidia|Unknown runtime specified nvidia", "runtime-undeclared"),
    (r'could not select device driver "cdi"', "cdi-not-enabled"),
    (r"CDI device injection failed: .*(?:failed to stat|no such file)|failed to stat CDI host device", "cdi-stale"),
    (r"(?:cannot stat|error mounting) .*(?:nvidia|cuda).*\.so\.\d\S*.*[Nn]o such file", "cdi-stale"),
    (r"unresolvable CDI devices|stat nvidia\.com/gpu=\S*: no such file|failed to inject CDI", "cdi-spec-missing"),
    (r"could not select device driver|nvidia-container-(?:runtime(?:-hook)?|cli)\S*: .*not found", "toolkit-missing"),
)  # fmt: skip
_TABLE: Final = tuple((re.compile(pattern), pitfall) for pattern, pitfall in _REFUSALS)


def refused(text: str, engine: Engine, cdi: Sequence[Cdi], driver: str | None) -> Finding | None:
    """Why the engine refused to start a container with a GPU; None for words that nobody knows."""
    pitfall = next((pitfall for pattern, pitfall in _TABLE if pattern.search(text)), None)
    if pitfall is None:
        return None
    evidence = [f"{engine.kind} {engine.version}: {text.strip()[:WORDS]}"]
    if pitfall == "toolkit-missing" and engine.snap:
        pitfall = "snap-docker"
        evidence.append("its files lie under a snap, which sees no toolkit of the host")
    stale = of_cdi(cdi, driver)
    if stale is not None and pitfall in ("cdi-spec-missing", "cdi-stale"):
        return _bad("cdi-stale", *evidence, *stale.evidence)
    if pitfall == "cdi-stale":
        evidence += [f"{file.path} is made for driver {file.driver or 'unknown'}" for file in cdi]
    return _bad(pitfall, *evidence)


def inside(
    seen: Mapping[str, Any], asked: Sequence[str], engine: Engine, *, by_request: bool = True, whole: bool = True
) -> Finding | None:
    """What is wrong with the GPUs in a container that started; None when they are those ``asked`` for, by UUID.

    ``by_request``: the engine was asked for GPUs (not for bare device nodes). ``whole``: none of them is split by MIG,
    of whose slices CUDA shows one at a time.
    """
    if (finding := _nodes(seen, engine, by_request=by_request)) is not None:
        return finding
    if (finding := _libraries(seen)) is not None:
        return finding
    return _identity(seen, asked) if whole else None


def _nodes(seen: Mapping[str, Any], engine: Engine, *, by_request: bool) -> Finding | None:
    nodes: Mapping[str, str | None] = seen["nodes"]
    if seen["other"]:
        return None
    if not any(re.fullmatch(r"/dev/nvidia\d+", node) for node in nodes):
        told = f"it started, and of NVIDIA's nodes it has {', '.join(nodes) or 'none'}"
        if engine.kind == "podman" and by_request:
            return _bad("podman-gpus-ignored", f"{engine.kind} {engine.version} accepted the request; {told}")
        asks = ", ".join(f"{name}={value}" for name, value in seen["environment"].items()) or "no NVIDIA_* variable"
        return _bad("gpu-not-in-container", told, f"inside: {asks}")
    closed = [f"{node}: {why}" for node, why in nodes.items() if why is not None]
    if any(why in ("EPERM", "EACCES") for why in nodes.values()):
        return _bad("rootless-device-cgroup" if engine.rootless else "no-cgroups-rootful", *closed)
    if "/dev/nvidia-uvm" not in nodes:
        return _bad("uvm-missing", f"inside: {', '.join(nodes)}, and no /dev/nvidia-uvm")
    return None


def _libraries(seen: Mapping[str, Any]) -> Finding | None:
    """The capabilities compute (libcuda) and utility (NVML)."""
    driver, nvml = seen["driver"], seen["nvml"]
    lost = [f"libcuda.so.1: {driver['error']}"] if driver["error"] else []
    lost += [f"libnvidia-ml.so.1: {nvml['error']}"] if nvml["error"] and "nvmlInit" not in nvml["error"] else []
    if lost:
        return _bad("driver-capability-missing", *lost)
    return None


def _identity(seen: Mapping[str, Any], asked: Sequence[str]) -> Finding | None:
    wanted = {bare(uuid) for uuid in asked}
    by_cuda = {device["uuid"] for device in seen["driver"]["devices"] if device["uuid"]}
    by_nvml = {bare(uuid) for uuid in seen["nvml"]["devices"] if uuid}
    for who, found in (("CUDA", by_cuda), ("NVML", by_nvml)):
        if more := sorted(found - wanted):
            return _bad(
                "gpu-not-isolated", f"{who} shows {len(more)} GPU(s) that were not asked for: {', '.join(more)}"
            )
    for who, found in (("CUDA", by_cuda), ("NVML", by_nvml)):
        if found and (less := sorted(wanted - found)):
            return _bad("gpu-partial", f"{who} does not show {', '.join(less)}, asked for by UUID")
    return None


def trouble(seen: Mapping[str, Any]) -> str | None:
    """Why CUDA cannot be judged inside although everything was given: the driver itself does not start."""
    init = seen["driver"]["init"]
    if init is not None and init["code"] != 0:
        return f"cuInit: {init['code']} {init['name'] or ''}".strip()
    if seen["nvml"]["error"]:
        return f"libnvidia-ml.so.1: {seen['nvml']['error']}"
    if not seen["driver"]["devices"]:
        return "the driver starts and shows no device"
    return None


def words(seen: Mapping[str, Any]) -> str:
    """What was found inside, in one line."""
    devices = [device["uuid"] or "no UUID" for device in seen["driver"]["devices"]]
    smi = seen["smi"]
    said = (
        "no nvidia-smi" if smi is None else f"nvidia-smi -L: {'ok' if smi['code'] == 0 else smi['output'].strip()[:80]}"
    )
    return f"{', '.join(seen['nodes']) or 'no node'}; CUDA: {', '.join(devices) or 'no device'}; {said}"


def _bad(pitfall: str, *evidence: str) -> Finding:
    return Finding(pitfall, Verdict.BAD, evidence)
