"""How much ``/dev/shm`` a job takes, by NCCL's own sizes, and how to ask for it. Pure, a leaf.

Sources, NVIDIA/nccl v2.10.3 to v2.30.7 (`src/transport/shm.cc`, `src/init.cc`, `src/proxy.cc`): a receiver allocates,
for each channel and peer, one file that holds all its protocol buffers, and a sender a small one. Peer-to-peer over
NVLink or PCIe needs none of it; where it is off or impossible, all ranks of a node need it at once.
"""

from __future__ import annotations

from dataclasses import dataclass

KIB = 1 << 10
MIB = 1 << 20
PAGE_BYTES = 4096

# LL: 8 steps x 512 lines x 8 x 16 bytes; LL128: 120 elements x 640 threads x 8 steps x 8 bytes; Simple: 4 MiB.
LL_BYTES = 8 * 512 * 8 * 16
LL128_BYTES = 120 * 640 * 8 * 8
SIMPLE_BYTES = 4 * MIB
STRUCT_BYTES = 4096  # ncclRecvMem and ncclSendMem
COUNTER_BYTES = 4  # appended to each file: how many processes still have it
SEGMENT_BYTES = LL_BYTES + LL128_BYTES + SIMPLE_BYTES + STRUCT_BYTES + COUNTER_BYTES
SENDER_BYTES = STRUCT_BYTES + COUNTER_BYTES
# With NCCL_SHM_DISABLE=1 the NET transport's proxy still takes its pool of operations from /dev/shm (2.28 and later).
POOL_BYTES = 34_210_176

# The search finds at least one ring and doubles it; machines with two find four. NCCL_MIN_NCHANNELS overrides.
CHANNELS = 4
# A common image batch, and what a DataLoader of two workers with the default prefetch_factor=2 keeps in flight.
BATCH_SHAPE = (32, 3, 224, 224)
BATCH_BYTES = 4 * 32 * 3 * 224 * 224
BATCHES_PER_RANK = 2 * 2
# The semaphores of a loader's queues lie in /dev/shm too, a page each.
QUEUES_BYTES = 16 * PAGE_BYTES
LEAST_RANKS = 2
TABLE_RANKS = (2, 4, 8)


def _whole_pages(size_bytes: int) -> int:
    return -(-size_bytes // PAGE_BYTES) * PAGE_BYTES


def size_text(size_bytes: int) -> str:
    """As ``docker run --shm-size`` takes it: ``64m``, ``1g``."""
    for unit_bytes, unit in ((1 << 30, "g"), (MIB, "m"), (KIB, "k")):
        if size_bytes % unit_bytes == 0:
            return f"{size_bytes // unit_bytes}{unit}"
    return str(size_bytes)


def bytes_text(size_bytes: float) -> str:
    """For people, in binary units: ``220.6 MiB``."""
    if size_bytes >= 1 << 30:
        return f"{size_bytes / (1 << 30):.1f} GiB"
    return f"{size_bytes / MIB:.1f} MiB" if size_bytes >= MIB else f"{size_bytes / KIB:.0f} KiB"


@dataclass(frozen=True, slots=True)
class Need:
    """What a job of ``ranks`` processes on one node takes of ``/dev/shm``, in bytes."""

    ranks: int
    channels: int = CHANNELS
    shm_disabled: bool = False

    @property
    def nccl_bytes(self) -> int:
        """NCCL's files: one of each kind for each rank and channel of a ring, or the proxies' pools."""
        if self.shm_disabled:
            return self.ranks * _whole_pages(POOL_BYTES)
        return self.ranks * self.channels * (_whole_pages(SEGMENT_BYTES) + _whole_pages(SENDER_BYTES))

    @property
    def loader_bytes(self) -> int:
        """Batches in flight between data-loading workers and their ranks."""
        return self.ranks * self.rank_loader_bytes

    @property
    def rank_loader_bytes(self) -> int:
        """Batches in flight for one rank, and its queues."""
        return BATCHES_PER_RANK * _whole_pages(BATCH_BYTES) + QUEUES_BYTES

    @property
    def total_bytes(self) -> int:
        """Both, because a job has both at once."""
        return self.nccl_bytes + self.loader_bytes

    @property
    def segments(self) -> int:
        """How many of NCCL's segments the job has at once: at least one a rank."""
        return self.ranks * (1 if self.shm_disabled else self.channels)

    @property
    def segments_for_all(self) -> int:
        """How many of NCCL's segments are as much as the whole job, loaders included."""
        return -(-self.total_bytes // _whole_pages(SEGMENT_BYTES))

    @property
    def flag_bytes(self) -> int:
        """The need, rounded up to a power of two: what to ask for."""
        return 1 << (self.total_bytes - 1).bit_length()

    @property
    def flag(self) -> str:
        """The value of ``--shm-size``."""
        return size_text(self.flag_bytes)

    def params(self) -> dict[str, str]:
        """What a pitfall's commands need."""
        return {
            "shm_need": self.flag,
            "shm_need_kubernetes": f"{self.flag_bytes // MIB}Mi",
            "shm_need_bytes": str(self.total_bytes),
            "ranks": str(self.ranks),
        }

    def flags(self) -> tuple[str, ...]:
        """How to ask for it: docker, compose, Kubernetes."""
        kubernetes = f"{{medium: Memory, sizeLimit: {self.flag_bytes // MIB}Mi}}"
        return (
            f"docker run --shm-size={self.flag}",
            f'compose: shm_size: "{self.flag}"',
            f"Kubernetes: a volume `emptyDir: {kubernetes}` mounted on /dev/shm (counts against the memory limit)",
        )

    def __str__(self) -> str:
        """One line."""
        nccl = f"{self.ranks} ranks x {self.channels} channels of NCCL"
        if self.shm_disabled:
            nccl = f"{self.ranks} proxy pools of NCCL (NCCL_SHM_DISABLE)"
        loader = f"{self.ranks} x {BATCHES_PER_RANK} batches of {bytes_text(BATCH_BYTES)}"
        return f"{bytes_text(self.total_bytes)}: {nccl} {bytes_text(self.nccl_bytes)} + {loader}"


def channels(least: str | None, most: str | None) -> int:
    """Channels to reckon with, by ``NCCL_MIN_NCHANNELS`` and ``NCCL_MAX_NCHANNELS`` where they are numbers."""
    number = CHANNELS
    if least is not None and least.isdigit():
        number = max(number, int(least))
    if most is not None and most.isdigit() and int(most) > 0:
        number = min(number, int(most))
    return number


def table() -> str:
    """What to ask for by ranks, one line: what a machine of unknown GPUs can be told."""
    return " · ".join(f"{ranks} ranks {Need(ranks).flag}" for ranks in TABLE_RANKS)
