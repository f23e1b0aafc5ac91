"""NCCL's ranks talk to each other in the /dev/shm that a job gets.

Looks at: each GPU alone in a world of its own (that judges torch and NCCL), then two ranks that add up numbers: with
nothing forced, which shows what a job of yours really takes, and with the SHM transport forced for each size of
/dev/shm (--gpucheck-shm), in namespaces and in a container. Every number is checked, and NCCL's own log says by which
transport they went; a run that did not use /dev/shm is no evidence about it. With one GPU NCCL 2.30 and later put both
ranks on it; older ones talk over the network path, whose pools lie in /dev/shm too.
Why it matters: with less than NCCL needs a job dies of "unhandled system error", of a bus error, or hangs until a
watchdog ends it ten minutes later; which of them depends on NCCL's version.
Does not apply when: there is no NVIDIA GPU and nothing expects one, or torch is not installed.
Cost and disturbance: about six seconds a run of ranks, half a gigabyte on each GPU meanwhile; a run that hangs is
killed after 45 seconds. GPUs that are in use are left alone unless --gpucheck-disturb=any. Leaves nothing in /dev/shm.
If it is bad: start the container with the --shm-size that the finding names, or follow what the rank that failed said.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from gpucheck.judgement import nccl_plan, nccl_seen, presence
from gpucheck.judgement.nccl_log import Way
from gpucheck.judgement.nccl_plan import RUN_S, Cards, Plan
from gpucheck.judgement.nccl_seen import End, Seen, took
from gpucheck.judgement.shm_need import Need, size_text
from gpucheck.judgement.visibility import Gpu
from gpucheck.legs.replies import value_of
from gpucheck.process import Failure
from gpucheck.profile import size_bytes
from gpucheck.verdict import Unable, Unexplained

if TYPE_CHECKING:
    from gpucheck.facts import Facts
    from gpucheck.fixtures import Child, Containers
    from gpucheck.judgement.nccl_log import Version
    from gpucheck.process import Reply
    from gpucheck.profile import Options
    from gpucheck.report import Report

pytestmark = pytest.mark.probe(
    subject="host",
    level="default",
    essential=("sizes",),
    extra=("as-it-comes", "container", "all-gpus", "pairs"),
    disturbs="idle",
    deadline_s=400,
    cost_s=12.0,
)
PAYLOAD = "ranks_nccl"
OURS = "nccl-fits-shm"
MARGIN_S = 20.0
PAGE_BYTES = 4096


@pytest.fixture(scope="module")
def asked() -> dict[str, Any]:
    """What each GPU said alone, which the host and each of its GPUs share."""
    return {}


def test_nccl_fits_shm(
    report: Report, host: Facts, options: Options, child: Child, container: Containers, asked: dict[str, Any]
) -> None:
    """The host: two ranks and more talk, and the smallest /dev/shm in which they can."""
    if (absent := presence.nothing_to_ask(host)) is not None:
        raise absent
    cards = nccl_plan.cards_of(host, options["disturb"])
    version = working(cards, child, asked)
    look = Look(report, host, child, container, cards, version, options["shm"])
    for missed in nccl_plan.not_tried(len(cards.free), version, deep=report.deep):
        report.not_run(missed.leg, missed.why)
    for left in cards.left_out:
        report.not_run("a GPU", str(left))
    for leg, at in look.legs():
        with report.leg(leg):
            at()
    look.conclude()


@pytest.mark.probe(subject="gpu", essential=("alone",), disturbs="idle", deadline_s=120, cost_s=6.0)
def test_alone(
    report: Report, host: Facts, options: Options, child: Child, gpu: dict[str, Any], asked: dict[str, Any]
) -> None:
    """One GPU, world size 1: torch and its NCCL make a communicator and add up."""
    cards = nccl_plan.cards_of(host, options["disturb"])
    card = Gpu.parse(gpu)
    if (left := cards.why_not(card)) is not None:
        raise Unable(f"{card}: {left.why}")
    with report.leg("alone"):
        one = each_alone(cards, child, asked)[cards.free.index(card)]
        report.saw(f"world size 1: {one}")
        if not one.works:
            accuse(report, one, f"{card}, world size 1")


def each_alone(cards: Cards, child: Child, asked: dict[str, Any]) -> list[Seen]:
    """What each free GPU came to in a world of its own; asked once. Raises Unable when there is none, or no torch."""
    if not cards.free:
        raise Unable("a GPU that may be touched", *map(str, cards.left_out))
    if "alone" not in asked:
        plan = nccl_plan.by_itself(len(cards.free), cards.visible)
        asked["alone"] = child(PAYLOAD, plan.args, deadline_s=RUN_S + MARGIN_S)
    answer = answer_of(asked["alone"], "NCCL, world size 1")
    asked["version"] = nccl_seen.version_of(answer)
    return [nccl_seen.alone(answer, number, RUN_S) for number in range(len(cards.free))]


def working(cards: Cards, child: Child, asked: dict[str, Any]) -> Version:
    """NCCL's version. Raises Unable where it does not work on a GPU alone: that has a row of its own."""
    failed = [
        f"{gpu}: {one}" for gpu, one in zip(cards.free, each_alone(cards, child, asked), strict=True) if not one.works
    ]
    if failed:
        raise Unable("an NCCL that works on each GPU alone", *failed, blocked_by=OURS)
    version: Version | None = asked["version"]
    if version is None:
        raise Unable("NCCL's version: neither torch nor the log names it")
    return version


def answer_of(reply: Reply, what: str) -> Any:
    """The ranks' answer. A torch that cannot be imported is another probe's finding."""
    if isinstance(reply.answer, Failure) and reply.answer.type in ("ImportError", "ModuleNotFoundError", "OSError"):
        raise Unable(f"{what}: {reply.answer.type}: {reply.answer.text}", blocked_by="cuda-available")
    return value_of(reply, what)


def accuse(report: Report, seen: Seen, where: str, need: Need | None = None) -> None:
    """What stopped the ranks, as a finding. Raises Unable where it was not the transport's fault."""
    if seen.end is End.NO_CUDA:
        raise Unable(f"{where}: {seen}", blocked_by="cuda-available")
    if seen.pitfall is None:
        raise Unexplained(f"{where}: {seen}", "\n".join(seen.details), *seen.details)
    params = need.params() if need is not None else {}
    report.bad(
        seen.pitfall,
        f"{where}: {seen}",
        *seen.details,
        confidence="high" if seen.end is not End.OTHER else "low",
        **params,
    )


class Look:
    """What was seen so far, and the ways to see more."""

    def __init__(
        self,
        report: Report,
        host: Facts,
        child: Child,
        container: Containers,
        cards: Cards,
        version: Version,
        sizes: tuple[str, ...],
    ) -> None:
        self.report, self.host, self.child, self.container = report, host, child, container
        self.visible, self.gpus, self.version = cards.visible, len(cards.free), version
        self.sizes = sorted(size_bytes(size) for size in sizes if size != "host")
        self.hosts_own = "host" in sizes
        self.plan = nccl_plan.sweep(self.gpus, version, self.visible)
        self.need = Need(max(nccl_plan.LEAST, self.gpus))
        self.tried: dict[int, Seen] = {}
        self.smallest: int | None = None
        self.swept = False
        self.hung: Seen | None = None

    def legs(self) -> list[tuple[str, Any]]:
        """Names and functions, in their order."""
        legs = [("as-it-comes", self.as_it_comes)] if self.gpus >= nccl_plan.LEAST else []
        legs += [("sizes", self.at_sizes), ("container", self.in_container)]
        if self.gpus > nccl_plan.LEAST:
            legs += [("all-gpus", self.all_gpus)]
            legs += [("pairs", self.pairs)] if self.report.deep else []
        return legs

    def run(self, plan: Plan, size: int | None) -> Seen:
        """A run of ranks in a namespace with a /dev/shm of that size; None: in this host's own."""
        how = {} if size is None else {"shm_bytes": size}
        reply = self.child(PAYLOAD, plan.args, deadline_s=RUN_S + MARGIN_S, **how)
        return nccl_seen.seen(answer_of(reply, plan.words), RUN_S)

    def run_privately(self, plan: Plan, size: int | None) -> Seen:
        """The same; in this host's own /dev/shm, too, where the kernel refuses namespaces."""
        if size is None:
            return self.run(plan, None)
        reply = self.child(PAYLOAD, plan.args, deadline_s=RUN_S + MARGIN_S, shm_bytes=size)
        if reply.refusal:
            self.report.saw(
                f"{plan.words}: in this host's own /dev/shm, because namespaces are refused: {reply.refusal}"
            )
            return self.run(plan, None)
        return nccl_seen.seen(answer_of(reply, plan.words), RUN_S)

    @property
    def own_bytes(self) -> int:
        """As much as this host's own /dev/shm has free. Raises Unable when nobody read it."""
        free = self.host["shm.free_bytes"]
        if free.value is None:
            raise Unable(f"the free bytes of /dev/shm: {free.why}")
        return max(PAGE_BYTES, int(free.value) // PAGE_BYTES * PAGE_BYTES)

    # The legs

    def as_it_comes(self) -> None:
        """Nothing forced, in as much /dev/shm as this host has."""
        plan = nccl_plan.as_it_comes(self.gpus, self.visible)
        seen = self.run_privately(plan, self.own_bytes)
        self.report.saw(f"{plan.words} (what a job takes by itself): {seen}{took(seen)}")
        if seen.end is End.HANG and Way.P2P in seen.log.ways:
            self.hung = seen  # whether peer access is to blame is seen when it is off
        elif not seen.works:
            accuse(self.report, seen, plan.words, self.need)
        elif seen.log.ways and Way.SHM not in seen.log.ways:
            self.report.saw(f"such a job goes over {' and '.join(seen.log.ways)}: a small /dev/shm does not stop it")

    def at_sizes(self) -> None:
        """Each size up to the first that works; in the level deep each of them."""
        for size in self.sizes:
            reply = self.child(PAYLOAD, self.plan.args, deadline_s=RUN_S + MARGIN_S, shm_bytes=size)
            if reply.refusal:
                self.report.not_run("namespaces", reply.refusal)
                self.in_own()
                return
            seen = self.tried[size] = nccl_seen.seen(answer_of(reply, self.plan.words), RUN_S)
            self.believe(size_text(size), seen)
            if seen.works and self.smallest is None:
                self.smallest = size
                self.report.measure("smallest_working_shm_bytes", size)
                self.report.measure("shm_taken_bytes", seen.peak_bytes)
            if seen.end is End.HANG or (seen.works and not self.report.deep):
                break
        self.swept = bool(self.sizes)
        if self.hosts_own:
            self.in_own()

    def in_own(self) -> None:
        """In this host's own /dev/shm: where it is named as a size, or there is no other."""
        seen = self.run(self.plan, None)
        self.believe("own /dev/shm", seen)
        if not seen.works:
            accuse(self.report, seen, f"{self.plan.words}, own /dev/shm", self.need)

    def believe(self, where: str, seen: Seen) -> None:
        """Evidence of one size. Raises Unable for a run that says nothing about /dev/shm."""
        self.report.saw(f"{self.plan.words}, {where}: {seen}{took(seen)}")
        if seen.works and not seen.tests_shm:
            raise Unable(f"{where}: the ranks did not use /dev/shm ({seen.log.words}): no evidence about it")
        if not seen.works and seen.pitfall is None:
            raise Unexplained(f"{where}: {seen}", "\n".join(seen.details), *seen.details)

    def in_container(self) -> None:
        """In real containers the size that must fail and the smallest that works, and in the host's own if named."""
        for size in self.sizes if self.smallest is None else dict.fromkeys((self.sizes[0], self.smallest)):
            seen = self.contained(f"--shm-size={size_text(size)}", shm_bytes=size)
            self.tried.setdefault(size, seen)
            if seen.works:
                self.smallest = self.smallest or size
                break
        self.swept = bool(self.sizes)
        if self.hosts_own and not (seen := self.contained("--ipc=host", ipc="host")).works:
            accuse(self.report, seen, f"{self.plan.words}, container with --ipc=host", self.need)

    def contained(self, flag: str, **how: Any) -> Seen:
        """The sweep's ranks in one container, with the GPUs' nodes alone."""
        label = self.container.engine.label
        devices = (*(self.host.known("gpu.nodes") or ()), *(self.host.known("gpu.control_nodes") or ()))
        reply = self.container(PAYLOAD, self.plan.args, devices=devices, **how)
        seen = nccl_seen.seen(answer_of(reply, f"container ({label})"), RUN_S)
        self.believe(f"{label} {flag}", seen)
        return seen

    @property
    def largest(self) -> tuple[int | None, str]:
        """The largest size that was named, and in words; None: this host's own."""
        return (self.sizes[-1], size_text(self.sizes[-1])) if self.sizes else (None, "own /dev/shm")

    def all_gpus(self) -> None:
        """All GPUs at once in the largest size."""
        plan = nccl_plan.everybody(self.gpus, self.visible)
        size, words = self.largest
        seen = self.run_privately(plan, size)
        self.report.saw(f"{plan.words}, {words}: {seen}{took(seen)}")
        if not seen.works:
            accuse(self.report, seen, f"{plan.words}, {words}", self.need)

    def pairs(self) -> None:
        """Every two GPUs, in the largest size; the pairs that failed are named."""
        for devices in nccl_plan.pairs(self.gpus):
            plan = nccl_plan.sweep(self.gpus, self.version, self.visible, devices)
            seen = self.run_privately(plan, self.largest[0])
            self.report.saw(f"{plan.words}: {seen}")
            if not seen.works:
                accuse(self.report, seen, plan.words, self.need)

    # All together

    def conclude(self) -> None:
        """The sweep's finding, the hang of peer access, and the need of a job on all GPUs."""
        if self.hung is not None:
            self.accuse_peer_access(self.hung)
        if self.swept and self.smallest is None:
            self.report.take(nccl_seen.no_size_works(self.tried, self.plan.need, self.need))
        elif self.smallest is not None:
            self.report.saw(f"smallest of those tried in which NCCL works: {size_text(self.smallest)}")
        nccl = f"NCCL {self.version} on {self.need.ranks} ranks"
        self.report.limit("shm_need_bytes", self.need.total_bytes, "NCCL's own sizes, and loaders beside it")
        self.report.saw(f"need of {nccl}: {self.need}")
        self.report.saw("to ask for: " + " · ".join(self.need.flags()))

    def accuse_peer_access(self, hung: Seen) -> None:
        """A hang over P2P where the same ranks work without it is the fault of peer access."""
        works = self.smallest is not None
        after = "with NCCL_P2P_DISABLE=1 the same ranks work" if works else "and without peer access neither"
        evidence = (f"nothing forced: {hung} ({hung.log.words})", after, *hung.details)
        self.report.bad("acs-iommu-p2p" if works else "nccl-hang", *evidence, confidence="medium")
