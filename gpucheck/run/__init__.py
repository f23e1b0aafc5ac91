"""One run: read the facts, let the hermetic child pytest run the probes, take in its rows as they happen, clean up.

No pytest here: the user's session (``replay``) and ``gpucheck run`` are two ways of showing the same run.
"""

from __future__ import annotations

import errno
import hashlib
import pickle
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gpucheck
from gpucheck import catalogue, cleanup, owner, record, rehearsal, scratch, subject
from gpucheck.facts import Facts, expect
from gpucheck.given import Given
from gpucheck.process import Children, Follow
from gpucheck.rehearsal import stage
from gpucheck.rehearsal.stage import Stage
from gpucheck.run import closing, expectations, hermetic, refusals
from gpucheck.run.account import Account
from gpucheck.run.hermetic import Selection
from gpucheck.run.ledger import Ledger
from gpucheck.usage import UsageError
from gpucheck.verdict import Exit, Unable

if TYPE_CHECKING:
    from gpucheck.profile import Options
    from gpucheck.rehearsal.faults import Fault

GRACE_S = 15.0
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)
__all__ = ["Run", "Selection"]


@dataclass
class Run:
    """One run of the probes on this machine. Raises UsageError where it cannot begin."""

    options: Options
    selection: Selection = field(default_factory=Selection)

    def __post_init__(self) -> None:
        refusals.namesake()
        site = self.options["probes"]
        self.probes = catalogue.ids() | (catalogue.ids(Path(site)) if site else set())
        refusals.unknown_probes(self.options, self.probes)
        self.faults = rehearsal.named(self.options["rehearse"])
        self.owner = owner.this_run()
        self.path = record_path(self.options, self.owner.run)
        self.ledger = Ledger(self.options, record.Record(self.path, self.owner.run))
        self.facts = Facts()
        self.notes: list[str] = []
        self.rehearsed: list[rehearsal.Outcome] = []
        self.left_behind: list[str] = []
        self.interrupted = False
        self.began = False

    def perform(self) -> None:
        """Run the probes. Raises UsageError; KeyboardInterrupt passes through after the clean-up."""
        ends = time.monotonic() + self.options.budget_s
        try:
            with ExitStack() as stack:
                scratch.sweep(self.owner)
                folder = stack.enter_context(scratch.folder(self.owner))
                children = stack.enter_context(Children(self.owner.run, folder))
                stack.callback(self._clean, folder)
                self._probe(children, folder, ends)
        except KeyboardInterrupt:
            self.interrupted = True
            raise
        except OSError as error:
            self.ledger.own_error(_told(error))

    def _clean(self, folder: Path) -> None:
        with cleanup.undisturbed():
            self.left_behind = cleanup.conclude(self.owner, folder)

    def _probe(self, children: Children, folder: Path, ends: float) -> None:
        self.facts = self._read_facts(children, folder, self.options, Stage())
        self.ledger.host = subject.of_kind("host", self.facts)
        self._begin()
        if not self.faults:
            self._perform_on(Stage(), self._given(folder, ends), children)
            self.ledger.add_unlooked()
        for fault in self.faults:
            self._rehearse(fault, children, folder)

    def _read_facts(self, children: Children, folder: Path, options: Options, on: Stage) -> Facts:
        facts, reply = hermetic.read_facts(children, folder, options, on)
        if facts is None:
            where = "; ".join(reply.ended.where[-3:])
            why = f"{reply.ended} {where} {reply.errors[-400:]}"
            self.ledger.own_error(f"the facts of this machine could not be read: {why}")
            return Facts()
        for failure in facts.failures:
            self.ledger.own_error(f"a reader of facts broke: {failure}")
        return expect(facts, expectations.of(options, _machine(facts)))

    def _perform_on(self, on: Stage, to_give: Given, children: Children) -> None:
        """Run the child pytest in those surroundings, and account for what it was to do."""
        events, given = to_give.folder / "events", to_give.folder / "given"
        events.unlink(missing_ok=True)
        given.write_bytes(pickle.dumps(to_give))
        self.ledger.account = Account()
        reply = children.run_argv(
            on.argv(hermetic.probes_argv(self.options, self.selection)),
            deadline_s=max(5.0, to_give.ends - time.monotonic()) + GRACE_S,
            env={**hermetic.probes_environment(given, events), **on.env},
            follow=Follow(events, self.ledger.hear),
            after=hermetic.cleanup_argv(to_give.folder),
        )
        self.ledger.close(reply)

    def _given(self, folder: Path, ends: float) -> Given:
        return Given(
            run=self.owner.run,
            folder=folder,
            owner=self.owner,
            options=self.options,
            facts=self.facts,
            record=self.path,
            ends=ends,
            started_in=_started_in(),
        )

    def _rehearse(self, fault: Fault, children: Children, folder: Path) -> None:
        """Bring up one fault, in children of its own, and hold its probe to it."""
        self.ledger.rehearsing = fault.id
        before = len(self.ledger.results)
        options = fault.options(self.options)
        obstacles = stage.lacking(fault, self.facts, options["engine"])
        if not obstacles:
            try:
                self._on_stage(fault, options, children, folder)
            except Unable as lack:
                obstacles = list(lack.lacking)
        ended = rehearsal.judge(fault, self.ledger.results[before:])
        if obstacles:
            ended = rehearsal.Outcome(fault, rehearsal.End.NOT_REHEARSED, tuple(obstacles))
        self._conclude(ended)
        self.ledger.rehearsing = None

    def _on_stage(self, fault: Fault, options: Options, children: Children, folder: Path) -> None:
        made = stage.set_up(fault, children, folder, self.facts.known("python.executable") or sys.executable)
        facts = self._read_facts(children, folder, options, made)
        given = self._given(folder, time.monotonic() + options.budget_s)
        self._perform_on(made, replace(given, options=options, facts=facts, rehearsal=fault.id), children)

    def _conclude(self, ended: rehearsal.Outcome) -> None:
        """A fault that was not seen is a row of its own: unable, or, where the probe looked, our own defect."""
        self.rehearsed.append(ended)
        self.notes.append(f"rehearsal: {ended}")
        if ended.end is rehearsal.End.MISSED:
            self.ledger.own_error(f"rehearsal of {ended}")
        elif ended.end is rehearsal.End.NOT_REHEARSED:
            lacking = (f"rehearsal of {ended.fault.id}: {why}" for why in ended.why)
            self.ledger.unable(ended.fault.probe, *lacking, title=ended.fault.title)

    def _begin(self) -> None:
        profile = self.options.profile
        self.began = True
        self.ledger.record.append(
            "run",
            {
                "schema": record.SCHEMA,
                "version": gpucheck.__version__,
                "started": record.now(),
                "machine": _machine(self.facts),
                "python": {
                    "executable": sys.executable,
                    "version": sys.version.partition(" ")[0],
                    "judged": self.facts.known("python.executable") or sys.executable,
                },
                "level": self.options["level"],
                "options": self.options.to_json(),
                "profile": {"path": profile.path, "sha256": _sha256(profile.path)} if profile.path else None,
                "rehearsal": list(self.options["rehearse"]) or None,
                "facts": self.facts.to_json()["facts"],
            },
        )

    def status(self, user_passed: int = 0, user_failed: int = 0) -> Exit:
        """The exit status of the run; a rehearsal's is 1 when every probe went red."""
        if self.faults and not user_failed and self.began:
            status, good = rehearsal.exit_of(self.faults, self.rehearsed), Exit.BAD
        else:
            status, good = self.ledger.status(user_passed, user_failed), Exit.OK
        return Exit.UNDECIDED if status is good and (self.ledger.record.error or self.left_behind) else status

    def closing_lines(self, user_passed: int = 0, user_failed: int = 0) -> list[str]:
        """What is to be said beside the findings: acceptances, notes, an empty run, a failed record or clean-up."""
        return list(closing.lines(self, self.status(user_passed, user_failed)))

    def interruption(self) -> str:
        """What to say when the run was interrupted."""
        return closing.interruption(self)

    def finish(self, status: int, user_passed: int = 0, user_failed: int = 0) -> None:
        """Write the last row of a run that has begun."""
        if not self.began:
            return
        interrupted = "interrupted" if status == Exit.INTERRUPTED else ""
        verdict = "rehearsal" if self.faults else interrupted or self.ledger.in_a_word()
        self.ledger.record.append(
            "summary",
            {
                "ended": record.now(),
                "counts": self.ledger.counts(),
                "not_reached": self.ledger.account.not_reached,
                "machine_verdict": verdict,
                "user_tests": {"passed": user_passed, "failed": user_failed},
                "exit": int(status),
            },
        )
        if not self.options["record"]:
            record.prune(self.path.parent)


def record_path(options: Options, run: str) -> Path:
    """Where the record of this run goes."""
    if options["record"]:
        try:
            return Path(options["record"]).absolute()
        except FileNotFoundError:
            raise UsageError(f"record = {options['record']!r}: the current folder is gone; name a whole path") from None
    kind = record.REHEARSAL if options["rehearse"] else ""
    return record.state_folder() / f"{kind}{run}{record.SUFFIX}"


def _machine(facts: Facts) -> dict[str, Any]:
    known = {name: facts.known(f"machine.{name}") for name in ("id", "hostname", "boot_id", "serial", "container")}
    return known | {"scheduler": facts.known("scheduler.job")}


def _started_in() -> Path | None:
    try:
        return Path.cwd()
    except FileNotFoundError:
        return None


def _sha256(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def _told(error: OSError) -> str:
    """Why the run broke off, in words for whoever has to make room for it."""
    # tempfile says ENOENT, of no file in particular, where none of its folders can be written.
    if error.errno in _NO_ROOM or (error.errno == errno.ENOENT and error.filename is None):
        where = error.filename or "the temporary folder"
        return f"no place to work: {where}: {error.strerror}; set TMPDIR to a folder that can be written"
    return f"the run broke off: {error}"
