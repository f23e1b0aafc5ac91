"""Legs of a DataLoader, judged: what probes of it share. ``payload/loader_epochs.py`` reads, this reports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpucheck.judgement import loader_faults, own_code
from gpucheck.judgement.shm_need import LEAST_RANKS, Need
from gpucheck.legs.replies import died, refuse_long_sockets, value_of
from gpucheck.process import Failure
from gpucheck.verdict import Bug, NotApplicable, Unable, bad

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpucheck.judgement.loader_faults import Fault
    from gpucheck.judgement.own_code import OwnCode
    from gpucheck.process import Reply
    from gpucheck.report import Report

WORKERS = 2
EPOCHS = 2
BATCH = 2
CONTENTS = "contents of samples"


def value(reply: Reply, what: str) -> Any:
    """What the payload returned; torch that is missing, or cannot be imported, is not ours to judge."""
    match reply.answer:
        case Failure(type="ModuleNotFoundError", text="No module named 'torch'" as text):
            raise NotApplicable("package.torch", text, "import in the judged Python")
        case Failure(type="ModuleNotFoundError" | "ImportError" | "OSError" as kind, text=text):
            raise Unable(f"{what}: {kind}: {text}", blocked_by="torch-imports")
    return value_of(reply, what)


def ended_itself(report: Report, label: str, reply: Reply, own: OwnCode, call: str) -> bool:
    """Whether the operator's code ended the process in which it was read; that is a finding, and ``call`` shows it.

    Raises Unable, with the innermost frames, where it did not come back within its time.
    """
    if reply.hung:
        raise Unable(f"{own.spec}: {reply.ended}; its cap is {own_code.TIME_S:.0f} s", *reply.ended.where[:3])
    how = died(reply)
    if how is not None:
        own.refuse_at_cap(reply.errors)
        last = loader_faults.last_error(reply.errors)
        lines = [f"its process: {how}", *([f"its stderr: {last}"] if last else [])]
        report.take(bad(own_code.RAISES, *lines, **(own.params | {"call": call})), label=label)
    return how is not None


def judge(report: Report, label: str, leg: Mapping[str, Any], method: str, own: OwnCode | None = None) -> None:
    """One leg: a fault becomes a finding; samples that arrived are evidence only when all of them are right.

    ``own`` is the operator's dataset; without it the dataset is ours, and what it does wrong is our bug.
    """
    if "fault" in leg:
        stopped(report, label, loader_faults.Fault.parse(leg["fault"]), own)
        return
    if own and not leg["epochs"][0]["expected"]:
        report.take(bad("dataset-empty", f"{own.spec}: len() is 0"), label=label)
        return
    workers = min(WORKERS, -(-leg["epochs"][0]["expected"] // BATCH)) if own else WORKERS
    if slips := loader_faults.slips(leg, method, workers=workers, epochs=EPOCHS):
        raise Bug(f"{label}: {'; '.join(slips)}")
    if wrong := loader_faults.discrepancies(leg):
        held = [f"opened before the workers started: {path}" for path in leg["opened"]]
        shared = own is not None and held and method == "fork"
        report.take(bad("inherited-handle" if shared else "samples-altered", *wrong, *held[:3]), label=label)
        return
    if own and leg["forked_at"]:
        line = f"{leg['forked_at']} starts a process when it is imported; each spawned worker would do so again"
        report.take(bad("main-guard-missing", line), label=label)
    tell(report, label, leg, own)


def tell(report: Report, label: str, leg: Mapping[str, Any], own: OwnCode | None) -> None:
    """Evidence and measures of a leg in which all samples were right."""
    first, last = leg["epochs"][0], leg["epochs"][-1]
    report.measure(f"{label.replace(' ', '_')}_first_batch_s", first["first_batch_s"])
    report.measure(f"{label.replace(' ', '_')}_epoch_s", last["total_s"])
    how = "unaltered" if leg["steady"] else "not compared, because they differ each time they are read"
    some = f" of {leg['samples']}" if leg["samples"] > last["samples"] else ""
    read = f"{last['samples']}{some} samples in each of {EPOCHS} epochs by {WORKERS} workers"
    report.saw(f"{label}: {read}, each once, in order, {how}; first batch after {first['first_batch_s']:.1f} s")
    report.sum_up(f"{read}, each once, in order{', unaltered' if leg['steady'] else ''}")
    if not leg["steady"] and CONTENTS not in {missed.leg for missed in report.missed}:
        report.not_run(CONTENTS, "samples differ each time they are read")
    if own and leg["opened"]:
        report.saw(f"{label}: files open before the workers start: {', '.join(leg['opened'][:3])}")


def stopped(report: Report, label: str, fault: Fault, own: OwnCode | None = None) -> None:
    """A leg that did not end. Our own dataset raises nothing, so one that nothing known explains is our bug."""
    refuse_long_sockets(fault.told + fault.worker_stderr)
    pitfall = fault.pitfall()
    params = own_code.at_loading(own, fault.told or fault.worker_stderr) if own is not None else {}
    if own is not None and fault.stage == "running":
        params["call"] = own.reading(fault.sample)
    if pitfall in (None, loader_faults.DIED) and report.explain(fault.unexplained(label)):
        return
    if pitfall is None and own is None:
        raise Bug(f"{label}: {fault.told} (nothing that is known here explains it)")
    report.take(bad(pitfall or own_code.RAISES, *fault.evidence(), **(params | need(pitfall))), label=label)


def need(pitfall: str | None) -> dict[str, str]:
    """What a job needs of /dev/shm, where that is the finding."""
    return dict(Need(LEAST_RANKS).params()) if pitfall == "shm-too-small" else {}
