"""One run: read the facts, let the hermetic child pytest run the probes, take in its rows as they happen, clean up.

No pytest here: the user's session (``replay``) and ``gpucheck run`` are two ways of showing the same run.
"""

from __future__ import annotations

import datetime
import importlib.util
import json
import os
import pickle
import re
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gpucheck
from gpucheck import catalogue, cleanup, owner, record, rehearsal, scratch, stage
from gpucheck.account import Account
from gpucheck.facts import Expectation, Facts, expect
from gpucheck.given import Given
from gpucheck.process import Children, Follow
from gpucheck.profile import UsageError
from gpucheck.redact import redact
from gpucheck.stage import Stage
from gpucheck.verdict import Exit, Outcome, Result, Subject, Unable, Verdict, accept, exit_status, outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpucheck.faults import Fault
    from gpucheck.process import Reply
    from gpucheck.profile import Options

PACKAGE = Path(__file__).parent
FACTS_S = 30.0
FACTS_MARGIN_S = 2.0
GRACE_S = 15.0


@dataclass(frozen=True, slots=True)
class Selection:
    """What the user's ``-k``, ``-m`` and ``-x`` ask of the probes."""

    keyword: str = ""
    markers: str = ""
    maxfail: int = 0

    def argv(self) -> list[str]:
        """As arguments of the child pytest."""
        keyword = ["-k", self.keyword] if self.keyword else []
        markers = ["-m", self.markers] if self.markers else []
        return [*keyword, *markers, *([f"--maxfail={self.maxfail}"] if self.maxfail else [])]


@dataclass
class Run:
    """One run of the probes on this machine. ``show`` gets each event as it happens, as :mod:`inner` tells it."""

    options: Options
    selection: Selection = field(default_factory=Selection)
    show: Callable[[dict[str, Any]], None] = lambda _: None

    def __post_init__(self) -> None:
        _refuse_namesake()
        self.faults = rehearsal.named(self.options["rehearse"])
        self.owner = owner.this_run()
        self.path = record_path(self.options, self.owner.run)
        self.record = record.Record(self.path, self.owner.run)
        self.facts = Facts()
        self.account = Account()
        self.results: list[Result] = []
        self.rows: list[dict[str, Any]] = []
        self.notes: list[str] = []
        self.rehearsing: str | None = None
        self.rehearsed: list[rehearsal.Outcome] = []
        self.left_behind: list[str] = []
        self.interrupted = False
        self.began = False
        self._refuse_unknown_probes()

    def perform(self) -> None:
        """Run the probes. Raises UsageError; KeyboardInterrupt passes through after the clean-up."""
        ends = time.monotonic() + self.options.budget_s
        with ExitStack() as stack:
            try:
                scratch.sweep(self.owner)
                folder = stack.enter_context(scratch.folder(self.owner))
            except OSError as error:
                self._cannot_begin(error)
                return
            children = stack.enter_context(Children(self.owner.run, folder))
            stack.callback(self._clean, folder)
            try:
                self._probe(children, folder, ends)
            except KeyboardInterrupt:
                self.interrupted = True
                raise
            except OSError as error:
                self._cannot_begin(error)

    def _clean(self, folder: Path) -> None:
        with cleanup.undisturbed():
            self.left_behind = cleanup.conclude(self.owner, folder, {**os.environ, **_own_path()})

    def _probe(self, children: Children, folder: Path, ends: float) -> None:
        self.facts = self._read_facts(children, folder, self.options, Stage())
        self._begin()
        if not self.faults:
            self._perform_on(Stage(), self._given(folder, ends), children)
        for fault in self.faults:
            self._rehearse(fault, children, folder)

    def _perform_on(self, on: Stage, to_give: Given, children: Children) -> None:
        """Run the child pytest in those surroundings, and account for what it was to do."""
        events, given = to_give.folder / "events", to_give.folder / "given"
        events.unlink(missing_ok=True)
        given.write_bytes(pickle.dumps(to_give))
        self.account = Account()
        reply = children.run_argv(
            on.argv(self._argv()),
            deadline_s=max(5.0, to_give.ends - time.monotonic()) + GRACE_S,
            env={**_own_path(), **on.env, "GPUCHECK_GIVEN": str(given), "GPUCHECK_EVENTS": str(events)},
            follow=Follow(events, self._hear),
            after=[sys.executable, "-B", "-m", "gpucheck.cleanup", str(to_give.folder), "--settle"],
        )
        self._close(reply)

    def _rehearse(self, fault: Fault, children: Children, folder: Path) -> None:
        """Bring up one fault, in children of its own, and hold its probe to it."""
        self.rehearsing = fault.id
        before = len(self.results)
        options = fault.options(self.options)
        obstacles = stage.lacking(fault, self.facts, options["engine"])
        if not obstacles:
            try:
                self._on_stage(fault, options, children, folder)
            except Unable as lack:
                obstacles = list(lack.lacking)
        ended = rehearsal.judge(fault, self.results[before:])
        if obstacles:
            ended = rehearsal.Outcome(fault, rehearsal.End.NOT_REHEARSED, tuple(obstacles))
        self._conclude(ended)
        self.rehearsing = None

    def _on_stage(self, fault: Fault, options: Options, children: Children, folder: Path) -> None:
        made = stage.set_up(fault, children, folder, self.facts.known("python.executable") or sys.executable)
        facts = self._read_facts(children, folder, options, made)
        ends = time.monotonic() + options.budget_s
        given = self._given(folder, ends)
        self._perform_on(made, replace(given, options=options, facts=facts, rehearsal=fault.id), children)

    def _conclude(self, ended: rehearsal.Outcome) -> None:
        """A fault that was not seen is a row of its own: unable, or, where the probe looked, our own defect."""
        self.rehearsed.append(ended)
        self.notes.append(f"rehearsal: {ended}")
        if ended.end is rehearsal.End.MISSED:
            self._own_error(f"rehearsal of {ended}")
        elif ended.end is rehearsal.End.NOT_REHEARSED:
            lacking = tuple(f"rehearsal of {ended.fault.id}: {why}" for why in ended.why)
            self._add(
                Result(
                    ended.fault.probe, ended.fault.title, self._host(), Verdict.UNABLE, lacking=lacking, started=now()
                )
            )

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

    def _argv(self) -> list[str]:
        folders = [str(PACKAGE / "probes")]
        if self.options["probes"]:
            folders.append(self.options["probes"])
        settings = [
            "-c",
            str(PACKAGE / "markers.ini"),
            f"--rootdir={PACKAGE}",
            "--noconftest",
            "-q",
            "--continue-on-collection-errors",
        ]
        plugins = [*self._belt(), "-p", "gpucheck.inner"]
        return [sys.executable, "-B", "-m", "pytest", *settings, *plugins, *self.selection.argv(), *folders]

    def _belt(self) -> list[str]:
        """The outer belt, where it is installed; our own deadlines hold without it, and its absence is said."""
        if importlib.util.find_spec("pytest_timeout") is not None:
            return ["-p", "pytest_timeout"]
        self.notes.append("pytest-timeout is not installed here: only gpucheck's own deadlines guard this run")
        return []

    def _read_facts(self, children: Children, folder: Path, options: Options, on: Stage) -> Facts:
        out = folder / "facts.json"
        limit_s = max(5.0, min(FACTS_S, options.budget_s))
        # They end by themselves before they are ended: what was read by then is written, whatever hangs.
        own_s = str(limit_s - FACTS_MARGIN_S)
        argv = [sys.executable, "-B", "-m", "gpucheck.facts", "--out", str(out), "--deadline", own_s]
        if self.options["python"]:
            argv += ["--python", self.options["python"]]
        out.unlink(missing_ok=True)
        reply = children.run_argv(on.argv(argv), deadline_s=limit_s, env={**_own_path(), **on.env})
        try:
            facts = Facts.from_json(json.loads(out.read_text(encoding="utf-8")))
        except (OSError, ValueError):
            where = "; ".join(reply.ended.where[-3:])
            self._own_error(f"the facts of this machine could not be read: {reply.ended} {where} {reply.errors[-400:]}")
            return Facts()
        for failure in facts.failures:
            self._own_error(f"a reader of facts broke: {failure}")
        return expect(facts, _expectations(options))

    def _begin(self) -> None:
        profile = self.options.profile
        self.began = True
        self.record.append(
            "run",
            {
                "schema": record.SCHEMA,
                "version": gpucheck.__version__,
                "started": now(),
                "machine": self._machine(),
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

    def _machine(self) -> dict[str, Any]:
        known = {
            name: self.facts.known(f"machine.{name}") for name in ("id", "hostname", "boot_id", "serial", "container")
        }
        return known | {"scheduler": self.facts.known("scheduler.job")}

    def _hear(self, line: str) -> None:
        try:
            event = json.loads(line)
            self.account.hear(event)
            if "result" in event:
                self._take(event["result"])
                self.record.error = self.record.error or event["record_error"]
        except (ValueError, KeyError, TypeError):
            self._own_error(f"an event that is none: {redact(line[:400])}")
            return
        self.show(event)

    def _take(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        self.results.append(record.result_of(row))

    def _close(self, reply: Reply) -> None:
        """Account for every probe that was planned, or required, and gave no row."""
        if reply.ended.code == Exit.USAGE:
            raise UsageError(_usage_text(reply))
        if not self.account.finished or reply.ended.code not in (0, 1, 5):
            before = "" if self.account.planned else " before it had a plan"
            self._own_error(f"the probes' process ended{before}: {reply.ended}: {_last_words(reply)}")
        for result in self.account.unaccounted(reply, now()):
            self._add(result)
        self._add_required()
        self._add_unused()

    def _add_required(self) -> None:
        """A requirement that nobody looked at is not met, and says so itself."""
        if self.faults:
            return
        reasons = {item["probe"]: item["why"] for item in self.account.left_out}
        reached = {r.probe for r in self.results} | {item["probe"] for item in self.account.plan}
        for probe in sorted(self.options.policy.require - reached):
            why = f"required, and left out of this run: {reasons.get(probe, 'not selected')}"
            self._add(Result(probe, "", self._host(), Verdict.UNABLE, lacking=(why,), started=now()))

    def _add_unused(self) -> None:
        """What the operator named and no probe of this run looks at was not judged."""
        for name in ("image", "dataset", "model"):
            if self.options[name] and name not in self.account.uses and not self.faults:
                why = f"--gpucheck-{name}: no probe of this run judges it (level, -k)"
                self._add(Result("gpucheck", "", self._host(), Verdict.UNABLE, lacking=(why,), started=now()))

    def _own_error(self, text: str) -> None:
        lacking = (text.strip(),)
        self._add(Result("gpucheck", "gpucheck itself works", self._host(), Verdict.CHECKER_ERROR, lacking=lacking))

    def _host(self) -> Subject:
        return Subject("host", self.facts.known("machine.id") or "host", "host")

    def _cannot_begin(self, error: OSError) -> None:
        where = error.filename or "the temporary folder"
        self._own_error(f"no place to work: {where}: {error.strerror}; set TMPDIR to a folder that can be written")

    def _add(self, result: Result) -> None:
        result = replace(accept(result, self.options.policy, now()[:10]), rehearsal=self.rehearsing)
        row = record.result_row(result) | {"outcome": outcome(result, self.options.policy).value, "probe_version": 1}
        row = self.record.append("result", row)
        self._take(row)
        self.show({"result": row})

    def bad(self) -> list[Result]:
        """The results that close the gate in front of the user's tests."""
        failed = [r for r in self.results if outcome(r, self.options.policy) is Outcome.FAILED]
        return [r for r in failed if r.verdict is Verdict.BAD or r.probe in self.options.policy.require]

    def stale_acceptances(self) -> list[str]:
        """A line about each acceptance that is past its date or matches nothing that was found."""
        today = now()[:10]
        met = {f.pitfall for r in self.results for f in r.findings}
        lines = []
        for acceptance in self.options.policy.accept.values():
            if not acceptance.holds(today):
                lines.append(f"the acceptance of {acceptance.pitfall} ended on {acceptance.until}")
            elif acceptance.pitfall not in met:
                lines.append(f"the acceptance of {acceptance.pitfall} matched nothing in this run")
        return lines

    def _refuse_unknown_probes(self) -> None:
        """A requirement on a probe that does not exist would never be looked at."""
        site = Path(self.options["probes"]) if self.options["probes"] else None
        known = {probe.id for probe in (*catalogue.probes(), *(catalogue.probes(site) if site else ()))}
        policy = self.options.policy
        if unknown := sorted((policy.require | policy.allow_unable) - known):
            raise UsageError(f"no probe is called {', '.join(unknown)}; see `gpucheck list`")

    def interruption(self) -> str:
        """What to say when the run was interrupted."""
        planned = f" of {len(self.account.plan)}" if self.account.planned else ""
        left = f"; left behind: {', '.join(self.left_behind)}" if self.left_behind else "; cleaned up"
        return f"gpucheck: interrupted after {len(self.rows)}{planned} probes{left}"

    def closing_lines(self, user_passed: int = 0, user_failed: int = 0) -> list[str]:
        """What is to be said beside the findings: acceptances, notes, an empty run, a failed record or clean-up."""
        lines = [*self.stale_acceptances(), *self.notes]
        if self.status(user_passed, user_failed) is Exit.NOTHING_JUDGED:
            lines.append(self._emptied())
        if self.record.error:
            lines.append(f"the record could not be written ({self.record.error}): its rows went to stderr")
        return lines + [f"left behind: {thing}" for thing in self.left_behind]

    def _emptied(self) -> str:
        left_out = (
            f"{len(self.account.left_out)} left out by level" if self.account.left_out else "none left out by level"
        )
        picked = " ".join(self.selection.argv())
        selected = f"selected by {picked}" if picked else "none could judge anything"
        return f"nothing was judged: {len(self.account.plan)} probes planned, {left_out}, {selected}"

    def status(self, user_passed: int = 0, user_failed: int = 0) -> Exit:
        """The exit status of the run."""
        if self.faults and not user_failed and self.began:
            return rehearsal.exit_of(self.rehearsed)
        status = exit_status(self.results, self.options.policy, user_passed=user_passed, user_failed=user_failed)
        if status is Exit.OK and (self.record.error or self.left_behind):
            return Exit.UNDECIDED
        return status

    def finish(self, status: int, user_passed: int = 0, user_failed: int = 0) -> None:
        """Write the last row."""
        counts: dict[str, int] = {}
        for result in self.results:
            counts[result.verdict.value] = counts.get(result.verdict.value, 0) + 1
        self.record.append(
            "summary",
            {
                "ended": now(),
                "counts": counts,
                "not_reached": self.account.not_reached,
                "machine_verdict": "rehearsal"
                if self.faults
                else _machine_verdict(self.results, self.status(), status),
                "user_tests": {"passed": user_passed, "failed": user_failed},
                "exit": int(status),
            },
        )
        if not self.options["record"]:
            record.prune(self.path.parent)


def _machine_verdict(results: list[Result], own: Exit, status: int) -> str:
    """The machine in one word, whatever the user's own tests did."""
    if status == Exit.INTERRUPTED:
        return "interrupted"
    if own is Exit.OK:
        return "degraded" if any(r.verdict is Verdict.DEGRADED for r in results) else "ok"
    return {Exit.BAD: "bad", Exit.NOTHING_JUDGED: "nothing-judged"}.get(own, "undecided")


def _expectations(options: Options) -> list[Expectation]:
    """Who, beside the machine's own facts, expects GPUs here: the profile."""
    gpus = options.profile.expect.get("gpus")
    return [Expectation(f"the profile {options.profile.path}", gpus)] if gpus else []


def now() -> str:
    """The time in UTC, to the millisecond, as the record writes it."""
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def record_path(options: Options, run: str) -> Path:
    """Where the record of this run goes."""
    if options["record"]:
        return Path(options["record"]).absolute()
    kind = record.REHEARSAL if options["rehearse"] else ""
    return record.state_folder() / f"{kind}{run}{record.SUFFIX}"


def _started_in() -> Path | None:
    try:
        return Path.cwd()
    except FileNotFoundError:
        return None


def _own_path() -> dict[str, str]:
    """Our own children must find this very package, however it got onto the path."""
    path = os.environ.get("PYTHONPATH")
    return {
        "PYTHONPATH": os.pathsep.join([str(PACKAGE.parent), *([path] if path else [])]),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }


def _sha256(path: str) -> str:
    import hashlib

    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def _last_words(reply: Reply) -> str:
    text = reply.errors if reply.errors.strip() else reply.output
    return " ".join(text.split())[-600:]


def _usage_text(reply: Reply) -> str:
    lines = [line for line in (reply.errors + "\n" + reply.output).splitlines() if line.strip()]
    wanted = [re.sub(r"^ERROR:\s*", "", line) for line in lines if "ERROR" in line] or lines[-3:]
    return "; ".join(wanted)[:600]


def _refuse_namesake() -> None:
    """Another distribution on the index ships files of the same names over ours."""
    try:
        metadata.distribution("gpucheck")
    except metadata.PackageNotFoundError:
        return
    raise UsageError(
        "another package named `gpucheck` is installed beside pytest-gpucheck and overwrites its files; run\n"
        "  pip uninstall -y gpucheck pytest-gpucheck && pip install pytest-gpucheck"
    )
