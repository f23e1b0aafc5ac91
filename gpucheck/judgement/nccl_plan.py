"""Which ranks to run over NCCL on the GPUs that are here, with what forced, and what cannot be tried here. Pure.

Two GPUs or more: a rank on each, the SHM transport forced. One GPU: since 2.30 NCCL allows two ranks on it; before,
two ranks that say they are two nodes (``NCCL_HOSTID``) talk over the network path, whose pools lie in /dev/shm too.
Sources: NVIDIA/nccl v2.30.7 (`src/init.cc`, `src/transport/shm.cc`, `src/proxy.cc`, `docs/userguide/source/env.rst`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from gpucheck.judgement import packages
from gpucheck.judgement.computation import in_use
from gpucheck.judgement.initialisation import view_of
from gpucheck.judgement.nccl_log import SUBSYSTEMS
from gpucheck.judgement.shm_need import CHANNELS, Need
from gpucheck.verdict import NotRun

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpucheck.facts import Facts
    from gpucheck.judgement.nccl_log import Version
    from gpucheck.judgement.visibility import Gpu

RUN_S: Final = 45.0
LEAST: Final = 2

_DEBUG: Final = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": SUBSYSTEMS}
# The ranks find each other over this node alone, so that a fault of the network is no fault of the transport.
_HERE: Final = {"NCCL_SOCKET_IFNAME": "lo", "NCCL_SOCKET_FAMILY": None, "NCCL_COMM_ID": None, "NCCL_IB_DISABLE": "1"}
# NCCL_CUMEM_HOST_ENABLE: else driver, capabilities and version decide whether the buffers are in /dev/shm at all.
_ONLY_HOST: Final = {
    "NCCL_P2P_DISABLE": "1",
    "NCCL_P2P_LEVEL": None,
    "NCCL_CUMEM_HOST_ENABLE": "0",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_MIN_NCHANNELS": str(CHANNELS),
    "NCCL_MAX_NCHANNELS": str(CHANNELS),
    "NCCL_MIN_CTAS": None,
    "NCCL_MAX_CTAS": None,
    "NCCL_ALGO": None,
    "NCCL_PROTO": None,
    "NCCL_BUFFSIZE": None,
    "NCCL_SHM_LOCALITY": None,
}
FORCED_SHM: Final[Mapping[str, str | None]] = {
    **_DEBUG,
    **_HERE,
    **_ONLY_HOST,
    "NCCL_SHM_DISABLE": "0",
    "NCCL_HOSTID": None,
}
FORCED_NETWORK: Final[Mapping[str, str | None]] = {
    **_DEBUG,
    **_HERE,
    **_ONLY_HOST,
    "NCCL_SHM_DISABLE": "1",
    "NCCL_HOSTID": "gpucheck-{rank}",
    "NCCL_NET": "Socket",
}
SHARED_GPU: Final[Mapping[str, str | None]] = {**FORCED_SHM, "NCCL_MULTI_RANK_GPU_ENABLE": "1"}


@dataclass(frozen=True, slots=True)
class Plan:
    """One set of ranks: on which CUDA devices, with what environment, in words, and what they take of /dev/shm."""

    words: str
    devices: tuple[int, ...]
    env: Mapping[str, str | None]
    need: Need | None = None
    visible: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def args(self) -> dict[str, Any]:
        """As ``payload/ranks_nccl.py`` takes it."""
        env = dict(self.env)
        asked = {"ranks": len(self.devices), "devices": list(self.devices), "visible": self.visible, "env": env}
        return {**asked, "limit_s": RUN_S, **self.extra}


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A GPU on which no rank is put, and why."""

    gpu: Gpu
    why: str

    def __str__(self) -> str:
        return f"{self.gpu}: {self.why}"


@dataclass(frozen=True, slots=True)
class Cards:
    """The GPUs that ranks may be put on, in the order in which they are made visible, and the others."""

    free: tuple[Gpu, ...]
    left_out: tuple[LeftOut, ...]

    @property
    def visible(self) -> str:
        """As ``CUDA_VISIBLE_DEVICES`` takes them."""
        return ",".join(str(gpu.uuid) for gpu in self.free)

    def why_not(self, gpu: Gpu) -> LeftOut | None:
        """Why no rank is put on that GPU, or None."""
        return next((left for left in self.left_out if left.gpu == gpu), None)


def cards_of(host: Facts, disturb: str) -> Cards:
    """The GPUs of this host under ``--gpucheck-disturb``. Raises NotApplicable where no torch is installed."""
    packages.need(host, "torch")
    view = view_of(host)
    told = {gpu["index"]: gpu for gpu in host.known("nvml.gpus") or ()}
    unfit = {gpu: left for gpu in view.shown if (left := _unfit(gpu, told[gpu.index], disturb))}
    hidden = [LeftOut(hidden.gpu, f"hidden on purpose, by {hidden.by}") for hidden in view.hidden]
    return Cards(tuple(gpu for gpu in view.shown if gpu not in unfit), (*hidden, *unfit.values()))


def _unfit(gpu: Gpu, told: Mapping[str, Any], disturb: str) -> LeftOut | None:
    if gpu.uuid is None:
        return LeftOut(gpu, gpu.trouble or "NVML does not name it")
    if gpu.is_split:
        return LeftOut(gpu, "split by MIG, between whose slices NCCL does not talk")
    busy = in_use(told, disturb)
    return LeftOut(gpu, busy) if busy else None


def sweep(gpus: int, version: Version, visible: str, devices: tuple[int, ...] = (0, 1)) -> Plan:
    """The two ranks with which each size of /dev/shm is tried."""
    if gpus >= LEAST:
        where = " and ".join(f"CUDA device {device}" for device in devices)
        return Plan(f"two ranks on {where}, SHM forced", devices, FORCED_SHM, Need(LEAST), visible)
    # The two take turns on the GPU, which makes each step of a collective slow.
    fewer = {"elements": [1 << 10, 1 << 16, 1 << 20]}
    if version.shares_gpu:
        words = "two ranks on one GPU (NCCL_MULTI_RANK_GPU_ENABLE, experimental), SHM forced"
        return Plan(words, (0, 0), SHARED_GPU, Need(LEAST), visible, fewer)
    words = "two ranks on one GPU that pose as two nodes (NCCL_HOSTID), over the network path and its pools"
    return Plan(words, (0, 0), FORCED_NETWORK, Need(LEAST, shm_disabled=True), visible, fewer)


def as_it_comes(gpus: int, visible: str) -> Plan:
    """What a user's job takes by itself: nothing forced, only told."""
    return Plan(f"{gpus} ranks, nothing forced", tuple(range(gpus)), _DEBUG, None, visible)


def everybody(gpus: int, visible: str) -> Plan:
    """All GPUs at once, SHM forced."""
    return Plan(f"{gpus} ranks on all GPUs, SHM forced", tuple(range(gpus)), FORCED_SHM, Need(gpus), visible)


def by_itself(gpus: int, visible: str) -> Plan:
    """Each GPU in a world of its own: nothing is exchanged, so that only the software is judged."""
    return Plan("world size 1", tuple(range(gpus)), {**_DEBUG, **_HERE}, None, visible, {"apart": True})


def pairs(gpus: int) -> list[tuple[int, int]]:
    """Every two GPUs."""
    return [(first, second) for first in range(gpus) for second in range(first + 1, gpus)]


def not_tried(gpus: int, version: Version, *, deep: bool) -> list[NotRun]:
    """What these GPUs and this NCCL do not allow, or this level leaves out."""
    missed = []
    if gpus < LEAST:
        missed.append(NotRun("as-it-comes", "one GPU: NVLink and PCIe peer access have nobody to talk to"))
        if not version.shares_gpu:
            why = f"one GPU, and NCCL {version} puts no two ranks on it (2.30 and later do)"
            missed.append(NotRun("shm-transport", why))
    if gpus <= LEAST:
        missed.append(NotRun("all-gpus", f"{gpus} GPU(s): no more than the sweep has"))
        missed.append(NotRun("pairs", f"{gpus} GPU(s): no other pair"))
    elif not deep:
        missed.append(NotRun("pairs", f"{len(pairs(gpus)) - 1} other pairs: only in the level deep"))
    return missed
