"""The record: one JSON document a line, appended as things happen, valid after every line.

Every other output is a reading of it. A row is one write; a short write (a full disk) is taken back, so that a reader
never sees half a row followed by another. Readers keep keys they do not know and drop a torn last line.
"""

from __future__ import annotations

import datetime
import json
import os
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpucheck import regular
from gpucheck.redact import redacted
from gpucheck.verdict import Because, Finding, NotRun, Result, Subject, Verdict, outcome

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gpucheck.verdict import Policy

SCHEMA = 1
PROBE_VERSION = 1
KEEP = 100
SUFFIX = ".jsonl"
REHEARSAL = "rehearsal-"
"""How the names of rehearsals' records begin: they are no runs of the machine."""


def now() -> str:
    """The time in UTC, to the millisecond."""
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def state_folder() -> Path:
    """Where records go when nobody says otherwise."""
    base = os.environ.get("XDG_STATE_HOME") or Path("~/.local/state").expanduser()
    return Path(base) / "gpucheck"


class Record:
    """Appends rows to a file. When the file takes no row, the rows go to stderr and :attr:`error` says why."""

    def __init__(self, path: Path, run: str) -> None:
        self.path = path
        self.run = run
        self.error: str | None = None

    def append(self, kind: str, row: Mapping[str, Any], *, durable: bool = False) -> dict[str, Any]:
        """Write one row and return it whole. ``durable``: on the disk before this returns."""
        whole = {"kind": kind, "run": self.run, **redacted(dict(row))}
        line = (json.dumps(whole, default=str, ensure_ascii=False) + "\n").encode(errors="replace")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            _append(self.path, line, durable=durable)
        except OSError as error:
            self.error = f"{self.path}: {error.strerror}"
            if sys.stderr is not None:
                sys.stderr.write(line.decode())
        return whole

    def judged(self, result: Result, policy: Policy, spoken: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
        """Write a result, with what ``policy`` makes of it and the words of its findings, where there are any."""
        row = result_row(result)
        row |= {"outcome": outcome(result, policy).value, "probe_version": PROBE_VERSION}
        for finding, said in zip(row["findings"], spoken, strict=True):
            finding.update(said)
        return self.append("result", row)


def _append(path: Path, line: bytes, *, durable: bool) -> None:
    line = (b"\n" if _is_torn(path) else b"") + line
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o644)
    try:
        size = os.fstat(descriptor).st_size
        written = os.write(descriptor, line)
        if written != len(line):
            os.ftruncate(descriptor, size)
            raise OSError(28, "No space left on device")
        if durable:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _is_torn(path: Path) -> bool:
    """Whether a run died in the middle of its last row, to which the next one must not be glued."""
    try:
        size = path.stat().st_size
        return size > 0 and regular.read(path, 1, start=size - 1) != b"\n"
    except OSError:
        return False


def read(path: Path) -> list[Any]:
    """The rows of a record; a torn last line is dropped. Raises OSError, and ValueError for a torn line elsewhere."""
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            rows += [json.loads(line)] if line.strip() else []
        except (ValueError, RecursionError):
            # A run that died may have torn its last line; then the file ends, or the next run begins.
            if number < len(lines) and not lines[number].startswith('{"kind": "run"'):
                raise ValueError(f"{path}, line {number}: not JSON, so not a record") from None
    return rows


def newest(folder: Path) -> Iterator[Path]:
    """The records of a state folder that are runs of the machine, newest first; run ids sort by time."""
    yield from sorted(folder.glob(f"[!{REHEARSAL[0]}]*{SUFFIX}"), reverse=True)


def prune(folder: Path, keep: int = KEEP) -> None:
    """Keep the newest ``keep`` records of the state folder, and as many of rehearsals."""
    rehearsals = sorted(folder.glob(f"{REHEARSAL}*{SUFFIX}"), reverse=True)
    for path in (*list(newest(folder))[keep:], *rehearsals[keep:]):
        with suppress(OSError):
            path.unlink()


def result_row(result: Result) -> dict[str, Any]:
    """A result as the fields of a row; its outcome and the words of its findings are added by the writer."""
    row = asdict(result)
    row["verdict"] = result.verdict.value
    for finding in row["findings"]:
        finding["weight"] = finding["weight"].value
    return row


def result_of(row: Mapping[str, Any]) -> Result:
    """The result that a row of kind ``result`` holds."""
    findings = tuple(
        Finding(
            pitfall=f["pitfall"],
            weight=Verdict(f["weight"]),
            evidence=tuple(f["evidence"]),
            params=f["params"],
            confidence=f["confidence"],
            accepted=f["accepted"],
        )
        for f in row["findings"]
    )
    plain = {
        name: row[name]
        for name in (
            "probe",
            "title",
            "gist",
            "measures",
            "limits",
            "blocked_by",
            "started",
            "duration_s",
            "rehearsal",
        )
    }
    return Result(
        **plain,
        subject=Subject(**row["subject"]),
        verdict=Verdict(row["verdict"]),
        evidence=tuple(row["evidence"]),
        findings=findings,
        legs=tuple(row["legs"]),
        not_run=tuple(NotRun(**n) for n in row["not_run"]),
        because=Because(**row["because"]) if row["because"] else None,
        lacking=tuple(row["lacking"]),
    )
