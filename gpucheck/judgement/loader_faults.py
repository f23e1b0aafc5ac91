"""What a leg of a DataLoader shows, from what ``payload/loader_epochs.py`` reports. Pure, a leaf.

torch's own message often says only that a worker went away; the reason stands on the worker's standard error, or in
how it ended. Both are looked at, in an order: where two phrases appear, the first is the cause and the second follows.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpucheck.verdict import Unexplained

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# (pitfall, phrase): torch 2.4 to 2.14 and Python 3.10 to 3.14 print these.
_ANYWHERE = (
    ("fork-after-cuda", "Cannot re-initialize CUDA in forked subprocess"),
    ("main-guard-missing", "has finished its bootstrapping phase"),
    ("nofile-too-low", "Too many open files"),
    ("nofile-too-low", "items of ancdata"),
    ("shm-too-small", "unable to allocate shared memory"),
    ("shm-too-small", "Unexpected bus error encountered in worker"),
    ("shm-too-small", "is killed by signal: Bus error"),
)
# A worker that cannot unpickle the dataset dies before torch is there to carry its exception to the parent.
_ON_WORKERS_STDERR = ("Can't get attribute", "No module named")
_DIED = re.compile(r"DataLoader worker .*(?:exited unexpectedly|is killed by signal)")
_TIMED_OUT = "DataLoader timed out"
DIED = "dataloader-worker-died"
"""What is said where nothing says why a worker is gone: any cause that can be told is the better answer."""
# A worker's neighbour may find its pipe closed before it is ended, and say so: that is no cause of the death.
_FOLLOWS = (DIED, "broken-pipe-secondary")


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a leg stopped: in which stage (loading, pickling, running), in whose words, how its workers ended.

    ``sample`` is the index at which a worker's dataset raised, where that is known.
    """

    stage: str
    told: str
    exit_codes: tuple[int, ...] = ()
    worker_stderr: str = ""
    where: str = ""
    sample: int | None = None

    @classmethod
    def parse(cls, reported: Mapping[str, Any]) -> Fault:
        """A fault as the payload reports it."""
        return cls(
            stage=reported["stage"],
            told=reported["told"],
            exit_codes=tuple(reported["exit_codes"]),
            worker_stderr=reported["worker_stderr"],
            where=reported.get("where", ""),
            sample=reported.get("sample"),
        )

    def pitfall(self) -> str | None:
        """The pitfall's id; None when this is an exception of the dataset's own."""
        if self.stage == "pickling":
            return "unpicklable-dataset"
        for pitfall, phrase in _ANYWHERE:
            if phrase in self.told or phrase in self.worker_stderr:
                return pitfall
        if any(phrase in self.worker_stderr for phrase in _ON_WORKERS_STDERR):
            return "main-module-not-importable"
        if -signal.SIGBUS in self.exit_codes:
            return "shm-too-small"
        if _DIED.search(self.told):
            return DIED
        return "dataloader-timeout" if _TIMED_OUT in self.told else None

    @property
    def text(self) -> str:
        """Everything that was said, the workers' own words first."""
        return f"{self.worker_stderr}\n{self.told}"

    def unexplained(self, label: str) -> Unexplained:
        """The fault as a question to the knowledge base. Whoever sends SIGKILL leaves no words: a fact must say why."""
        killed = -signal.SIGKILL in self.exit_codes
        return Unexplained(f"{label}: the loader stopped", self.text, *self.evidence(), by_fact=killed, known=_FOLLOWS)

    def evidence(self) -> tuple[str, ...]:
        """Lines for people: what was raised and where, how workers ended, the worker's last line, what is to blame."""
        lines = [f"torch: {self.told.splitlines()[0]}" if self.told else "torch said nothing"]
        if raised := raised_last(self.told):
            at = "a worker" if self.sample is None else f"sample {self.sample}"
            lines = [f"{at}: {raised}"]
        if self.exit_codes:
            lines.append(f"worker: {', '.join(ending(code) for code in self.exit_codes)}")
        if reason := last_error(self.worker_stderr):
            lines.append(f"worker's stderr: {reason}")
        if self.where:
            lines.append(f"what does not pickle: {self.where}")
        return tuple(lines)


def raised_last(told: str) -> str:
    """The exception behind the last frame of a worker's traceback, as it was raised; "" where none is carried."""
    _, frame, rest = told.rpartition('\n  File "')
    ending = [line for line in rest.splitlines()[1:] if line and not line[0].isspace()]
    return ending[0] if frame and ending else ""


def last_error(stderr: str) -> str:
    """The last line of a traceback; where the message begins on the line below, with that line."""
    lines = [line for line in stderr.splitlines() if line.strip()]
    for number, line in reversed(list(enumerate(lines))):
        if not line[0].isspace():
            below = lines[number + 1 : number + 2] if line.rstrip().endswith(":") else []
            return " ".join(part.strip() for part in [line, *below])
    return ""


def ending(code: int) -> str:
    """An exit code of a process as ``multiprocessing`` gives it, in words: ``exit 3``, ``killed by SIGKILL``."""
    if code >= 0:
        return f"exit {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


FIRST = 3
PROCESSES = {"fork": "ForkProcess", "spawn": "SpawnProcess", "forkserver": "ForkServerProcess"}


def slips(leg: Mapping[str, Any], method: str, *, workers: int, epochs: int) -> list[str]:
    """Why an epoch that went well is no evidence: too few epochs, none of the samples, not these workers."""
    found = []
    if len(leg["epochs"]) != epochs:
        found.append(f"{len(leg['epochs'])} epochs instead of {epochs}")
    for epoch in leg["epochs"]:
        if not epoch["expected"]:
            found.append("the dataset is empty")
        elif epoch["workers"] != list(range(workers)) or epoch["processes"] != [PROCESSES[method]]:
            found.append(f"read by workers {epoch['workers']} ({', '.join(epoch['processes'])})")
    return found


def discrepancies(leg: Mapping[str, Any]) -> list[str]:
    """What is wrong with what arrived, a line an epoch; a dataset that answers otherwise each time is not compared."""
    lines = []
    for number, epoch in enumerate(leg["epochs"], 1):
        names = ("missing", "repeated", *(["altered"] if leg["steady"] else []))
        wrong = [f"{name} {_some(epoch[name], epoch['expected'])}" for name in names if epoch[name]]
        if not epoch["in_order"]:
            wrong.append("not in the sampler's order")
        if wrong:
            lines.append(f"epoch {number}: {'; '.join(wrong)}")
    return lines


def _some(indices: Sequence[int], expected: int) -> str:
    first = ", ".join(map(str, indices[:FIRST]))
    return f"{len(indices)} of {expected} samples{', first' if len(indices) > FIRST else ':'} {first}"
