"""A job's buffers fit into /dev/shm.

Looks at: this host's own /dev/shm (type, size, free bytes, files that dead processes left), and exchanges between two
processes through it: segments of NCCL's size and number, filled and read back, and torch tensors of an image batch's
size through a queue; then the same for each size of a sweep (--gpucheck-shm), in namespaces and in a container.
Why it matters: a container gets 64 MB unless told otherwise. NCCL and data-loading workers die there of a bus error, or
of "no space left on device", or hang for ever because a queue dropped a batch in silence; the network is blamed.
Does not apply when: never. Where the kernel refuses namespaces, or no engine is there, those legs are not run.
Cost and disturbance: two to four seconds; takes what a job of the expected number of GPUs takes (221 MiB for two) for
half a second, unless that is the last room of running processes. Leaves nothing, even when it is killed.
If it is bad: start the container with the --shm-size that the finding names, or remove what the dead left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from gpucheck.judgement import packages
from gpucheck.judgement import shm_exchange as exchange
from gpucheck.judgement.shm_need import LEAST_RANKS, Need, bytes_text, channels, size_text, table
from gpucheck.judgement.shm_room import Room, judge, room_of
from gpucheck.legs.replies import refuse_long_sockets, value_of
from gpucheck.profile import size_bytes
from gpucheck.verdict import Bug, NotApplicable, Unable, Unexplained, Verdict

if TYPE_CHECKING:
    from gpucheck.facts import Facts
    from gpucheck.fixtures import Child, Containers
    from gpucheck.judgement.shm_exchange import Seen
    from gpucheck.profile import Options
    from gpucheck.report import Report

pytestmark = pytest.mark.probe(
    subject="host",
    level="quick",
    essential=("own-shm",),
    extra=("own-tensors", "sizes", "container"),
    disturbs="none",
    deadline_s=90,
    cost_s=1.0,
)
# What a sender copies before it shares, beside the shared bytes themselves.
MEMORY_FACTOR = 1.5


def test_buffers_fit_shm(report: Report, host: Facts, options: Options, child: Child, container: Containers) -> None:
    """The probe."""
    need, who = need_of(host)
    report.limit("shm_need_bytes", need.total_bytes, f"NCCL's own sizes; {who}")
    quick = options["level"] == "quick"
    look = Look(report, host, child, container, need, sizes_of(options, need))
    with report.leg("own-shm"):
        look.at_own_shm(with_tensors=not quick)
    more = (("own-tensors", look.at_own_tensors), ("sizes", look.at_sizes), ("container", look.at_container))
    for leg, at in more:
        if quick:
            report.not_run(leg, "not in the level quick")
            continue
        with report.leg(leg):
            at()
    look.conclude(options.profile.expect.get("shm"))
    report.saw(f"need of {need.ranks} ranks ({who}): {need}")
    report.saw("to ask for: " + " · ".join(need.flags()))
    report.saw(f"by ranks: {table()}")


def sizes_of(options: Options, need: Need) -> tuple[str, ...]:
    """The sizes of the sweep; where the operator names none, the need of a machine with many GPUs is one of them."""
    sizes: tuple[str, ...] = options["shm"]
    named = options.settings["shm"].origin != "default"
    return sizes if named or need.flag_bytes <= max(map(size_bytes, sizes)) else (*sizes, need.flag)


def need_of(host: Facts) -> tuple[Need, str]:
    """What a job on all GPUs that are seen or expected here takes, and who says how many they are."""
    counts = [(len(host.known("nvml.gpus") or ()), "NVML"), (host.known("gpu.pci_count") or 0, "the PCI bus")]
    counts += [(expected["count"] or 0, expected["who"]) for expected in host.known("gpu.expected") or ()]
    number, who = max(counts, key=lambda pair: pair[0])
    ranks = max(LEAST_RANKS, number)
    lanes = channels(host.known("env.NCCL_MIN_NCHANNELS"), host.known("env.NCCL_MAX_NCHANNELS"))
    said = f"{number} GPUs by {who}" if number >= LEAST_RANKS else "the least that exchange anything"
    return Need(ranks, lanes, shm_disabled=host.known("env.NCCL_SHM_DISABLE") == "1"), said


class Look:
    """What was seen so far, and the ways to see more."""

    def __init__(
        self, report: Report, host: Facts, child: Child, container: Containers, need: Need, sizes: tuple[str, ...]
    ) -> None:
        self.report, self.host, self.child, self.container, self.need = report, host, child, container, need
        self.sizes = sorted(size_bytes(size) for size in sizes if size != "host")
        self.hosts_own = "host" in sizes
        self.torch = host.known("package.torch")
        self.fits = False
        self.own = ""
        self.tried: dict[int, Seen] = {}
        self.smallest: int | None = None

    # This host's own

    def at_own_shm(self, *, with_tensors: bool) -> None:
        """Census first: a fill where there is no room for it would take that of others.

        ``with_tensors``: the tensors' share of the need is filled by tensors, where there is a torch, in the next leg.
        """
        room = room_of(value_of(self.child("shm_census", {}, warm=False), "/dev/shm"))
        self.report.saw(str(room))
        if room.total_bytes:
            self.own = f"; this /dev/shm: {bytes_text(room.total_bytes)}"
        finding = judge(room, self.need, contained=self.host.known("machine.container") not in (None, "none"))
        self.report.take(finding)
        if finding is not None and (finding.weight is Verdict.BAD or not room.holds(self.need.total_bytes)):
            return
        self.need_memory()
        self.need_room_for_others(room)
        plan = exchange.segments_plan(self.need, whole=not (with_tensors and self.torch))
        seen = exchange.segments_seen(value_of(self.child("shm_segments", plan, warm=False), "own /dev/shm"), plan)
        self.fits = self.accept("own /dev/shm", seen)

    def at_own_tensors(self) -> None:
        """The batches of one rank, while what the rest of the job takes is held."""
        packages.must_know(self.host, "torch")
        packages.need(self.host, "torch")
        if not self.fits:
            raise Unable("skipped: the segment test on /dev/shm failed")
        plan = exchange.tensors_plan(self.need)
        self.accept("own /dev/shm", self.through_tensors(plan))

    def through_tensors(self, plan: dict[str, Any], **how: Any) -> Seen:
        """What became of the batches. Raises Unable where the queue could have no socket."""
        answer = value_of(self.child("shm_tensors", plan, **how), "tensors")
        refuse_long_sockets(str(answer.get("error")))
        return exchange.tensors_seen(answer, plan)

    def accept(self, where: str, seen: Seen) -> bool:
        """Evidence of an exchange that had room enough; what stopped it is a finding."""
        self.report.saw(f"{where}: {seen.words}")
        if seen.works:
            return True
        if seen.pitfall is None:
            raise Unexplained(f"{where}: {seen.words}", seen.words)
        self.report.bad(seen.pitfall, f"{where}: {seen.words}", **self.need.params())
        return False

    def need_memory(self) -> None:
        """What lies in /dev/shm is memory, and counts against the memory limit of a container or pod."""
        wanted = MEMORY_FACTOR * self.need.total_bytes
        for name in ("memory.available_bytes", "memory.limit_bytes"):
            found = self.host.known(name)
            if found is not None and found < wanted:
                raise Unable(f"memory: a fill of {bytes_text(wanted)} with {name} at {bytes_text(found)}")

    def need_room_for_others(self, room: Room) -> None:
        """Running processes must be able to go on meanwhile."""
        if room.used and not room.holds(2 * self.need.total_bytes):
            users = ", ".join(room.holders) or "running processes"
            raise Unable(f"skipped: the test would take the last free bytes of /dev/shm, which {users} use")

    # The sweep

    def at_sizes(self) -> None:
        """Each size in a namespace of its own, up to the first that works; in the level deep each of them."""
        if not self.sizes:
            raise NotApplicable("option shm", "no size is named but the host's own", "--gpucheck-shm")
        self.need_memory()
        for size in self.sizes:
            seen = self.tried[size] = self.at_size(size)
            self.report.saw(f"{size_text(size)}: {seen.words}")
            if seen.works and self.smallest is None:
                self.smallest = size
                self.report.measure("smallest_working_shm_bytes", size)
                if not self.report.deep:
                    return

    def at_size(self, size: int) -> Seen:
        """Segments and tensors; the words of both, the end of the first that failed."""
        ways = ("fallocate", "ftruncate") if size < self.need.nccl_bytes else ("fallocate",)
        plan = exchange.segments_plan(self.need, whole=not self.torch, ways=ways)
        answer = value_of(self.child("shm_segments", plan, warm=False, shm_bytes=size), "namespace")
        exchange.check_size(answer, size)
        seen = exchange.segments_seen(answer, plan)
        if self.torch:
            plan = exchange.tensors_plan(self.need, size)
            seen = exchange.both(seen, self.through_tensors(plan, shm_bytes=size))
        return self.believed(size, seen)

    def believed(self, size: int, seen: Seen) -> Seen:
        """Raises Bug when less space than was to be filled was enough, Unable when the machine did not let us see."""
        if seen.works and size < self.need.total_bytes:
            raise Bug(f"{bytes_text(self.need.total_bytes)} were exchanged in a /dev/shm of {size_text(size)}")
        if not seen.works and seen.pitfall is None:
            raise Unexplained(f"{size_text(size)}: {seen.words}", seen.words)
        return seen

    def at_container(self) -> None:
        """In real containers the size that must fail and the smallest that works; all, where namespaces are refused."""
        label = self.container.engine.label
        plan = exchange.segments_plan(self.need, whole=True)
        for size in self.sizes if self.smallest is None else (self.sizes[0], self.smallest):
            answer = value_of(self.container("shm_segments", plan, shm_bytes=size), f"container ({label})")
            exchange.check_size(answer, size)
            seen = self.believed(size, exchange.segments_seen(answer, plan))
            self.report.saw(f"{label}, --shm-size={size_text(size)}: {seen.words}")
            self.tried.setdefault(size, seen)
            if seen.works:
                self.smallest = self.smallest or size
                break
        if self.hosts_own:
            answer = value_of(self.container("shm_segments", plan, ipc="host"), f"container ({label})")
            self.report.saw(f"{label}, --ipc=host: {exchange.segments_seen(answer, plan).words}")

    # All together

    def conclude(self, profiles: str | None) -> None:
        """The sweep's finding, and the profile's size against the need."""
        if self.tried and self.smallest is None:
            # A sweep that was cut off has seen the sizes that must fail, and says nothing of the others.
            if set(self.sizes) <= set(self.tried):
                self.no_size_works()
        elif self.smallest is not None:
            smallest = size_text(self.smallest)
            self.report.saw(f"smallest of those tried that works: {smallest}")
            fails = [size_text(size) for size in sorted(self.tried) if not self.tried[size].works]
            failing = f" (too small: {', '.join(fails)}; {smallest} works)" if fails else ""
            told = f"a container for {self.need.ranks} ranks needs --shm-size={self.need.flag} or more{failing}"
            self.report.sum_up(f"{told}{self.own}")
        if profiles and profiles != "host" and size_bytes(profiles) < self.need.total_bytes:
            evidence = f"the profile gives jobs a /dev/shm of {profiles}; {self.need.ranks} ranks take {self.need}"
            self.report.degraded("shm-too-small", evidence, *self.need.flags(), **self.need.params())

    def no_size_works(self) -> None:
        """Too small where all were; where the largest had room enough it is what stopped the exchange."""
        largest = max(self.tried)
        enough = largest >= self.need.total_bytes
        pitfall = self.tried[largest].pitfall if enough else "shm-too-small"
        evidence = [f"{size_text(size)}: {seen.words}" for size, seen in sorted(self.tried.items())]
        self.report.bad(pitfall or "shm-unusable", *evidence, *self.need.flags(), **self.need.params())
