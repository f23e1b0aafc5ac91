"""Rows of a record as lines of text: pure functions, 80 columns, readable without colour."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

from gpucheck.events import Started, Went

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from gpucheck.events import Event

WIDTH = 80
INDENT = 11
Row = dict[str, Any]
ORDER = ("bad", "degraded", "ok", "unable", "checker-error", "not-applicable")
EVIDENCE_LINES = 6
LEGS = 6


def word(verdict: str) -> str:
    """A verdict as people read it."""
    return verdict.replace("not-applicable", "not applicable").replace("checker-error", "checker error")


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def probe_line(row: Row) -> str:
    """One line a result: verdict, probe, subject, seconds."""
    accepted = row["findings"] and row["outcome"] != "failed" and row["verdict"] == "bad"
    verdict = "bad (accepted)" if accepted else word(row["verdict"])
    subject = f"rehearsal: {row['rehearsal']}" if row["rehearsal"] else row["subject"]["label"]
    return f"  {verdict:<15} {row['probe']:<24} {_cut(subject, 26):<26} {row['duration_s']:>7.1f} s"


def progress(event: Event) -> str:
    """What is under way, in less than a line: the probe, and how far it is; empty for other events."""
    match event:
        case Started(probe=probe):
            return _cut(f"    … {probe}", WIDTH - 1)
        case Went(probe=probe, text=text):
            return _cut(f"    … {probe}: {text}", WIDTH - 1)
    return ""


def ruled_out_lines(rows: Iterable[Row]) -> Iterator[str]:
    """The probes that a known fact rules out, together: a line or two a fact instead of a line a probe."""
    reasons: dict[str, dict[str, list[str]]] = {}
    for row in filter(is_ruled_out, rows):
        reasons.setdefault(str(row["because"]["value"]), {}).setdefault(row["probe"], []).append(row["subject"]["kind"])
    for reason, probes in reasons.items():
        named = (f"{probe}[{', '.join(kinds)}]" if len(kinds) > 1 else probe for probe, kinds in probes.items())
        yield from _wrapped("not applicable", f"{', '.join(named)} ({reason})", indent=18)


def is_ruled_out(row: Row) -> bool:
    """Whether a known fact rules the probe out, and nobody required it."""
    return bool(row["because"]) and row["outcome"] == "skipped"


def under_lines(row: Row) -> Iterator[str]:
    """Beneath a probe's line: the gist of what it saw, and what it did not look at."""
    if row["gist"]:
        yield from _wrapped("", row["gist"], indent=18)
    if row["blocked_by"]:
        yield from _wrapped("", f"blocked by {row['blocked_by']}", indent=18)
    reasons: dict[str, list[str]] = {}
    # What a block says below is not said twice; where another probe's finding explains it, there is no block.
    told = _lacks(row) if row["verdict"] == "unable" and not row["blocked_by"] else {}
    for missed in row["not_run"]:
        if not any(missed["leg"] in legs for legs in told.values()):
            reasons.setdefault(missed["why"], []).append(missed["leg"])
    for why, legs in reasons.items():
        yield from _wrapped("", f"not run: {', '.join(legs)} ({why})", indent=18)


def _wrapped(label: str, text: str, indent: int = INDENT) -> Iterator[str]:
    head = f"  {label}".ljust(indent)
    body = textwrap.wrap(" ".join(text.split()), WIDTH - indent, break_long_words=False, break_on_hyphens=False)
    for number, line in enumerate(body or [""]):
        yield (head if number == 0 else " " * indent) + line


def finding_lines(row: Row, finding: Mapping[str, Any]) -> Iterator[str]:
    """One finding as a block: headline, evidence, the usual wrong guess, cause, remedy, what to type."""
    yield f"{finding['weight'].upper()}  {finding['headline']}"
    yield f"  {finding['pitfall']} · {row['probe']} · {row['subject']['label']}"
    for number, line in enumerate(finding["evidence"] or row["evidence"][:EVIDENCE_LINES]):
        yield from _wrapped("seen" if number == 0 else "", line)
    if finding["wrong_guess"]:
        yield from _wrapped("not", finding["wrong_guess"])
    sure = "" if finding["confidence"] == "high" else f" ({finding['confidence']} confidence)"
    yield from _wrapped("cause", finding["cause"] + sure)
    yield from _wrapped("remedy", finding["remedy"])
    note = {"needs-root": "  # needs root", "disrupts-jobs": "  # DISRUPTS RUNNING JOBS"}.get(finding["safety"], "")
    for number, command in enumerate(finding["commands"]):
        # Commands are never wrapped: they are there to be copied.
        yield ("  type".ljust(INDENT) if number == 0 else " " * INDENT) + command
    if note and finding["commands"]:
        yield " " * INDENT + note.strip()


def accepted_line(row: Row, finding: Mapping[str, Any]) -> str:
    """An accepted finding stays visible, on one line."""
    return f"accepted   {finding['pitfall']} ({row['probe']} · {row['subject']['label']}): {finding['accepted']}"


def lack_lines(row: Row) -> Iterator[str]:
    """A probe that could not look, or was wrong itself: what was missing, once, with the legs that lack it."""
    yield f"{word(row['verdict']).upper()}  {row['probe']} · {row['subject']['label']}"
    for number, (reason, legs) in enumerate(_lacks(row).items()):
        more = f" and {len(legs) - LEGS} more" if len(legs) > LEGS else ""
        text = f"{', '.join(legs[:LEGS])}{more}: {reason}" if legs else reason
        yield from _wrapped("lacking" if number == 0 else "", text)
    if row["verdict"] == "checker-error":
        yield from _wrapped(
            "note",
            "this is gpucheck's own mistake, or one of its helpers returned something unreadable; it says nothing "
            "about the machine",
        )


def _lacks(row: Row) -> dict[str, list[str]]:
    """What was missing, and the legs that did not run for it; none where it is the whole probe's."""
    missed = {leg["leg"]: leg["why"] for leg in row["not_run"]}
    found: dict[str, list[str]] = {}
    for item in row["lacking"]:
        leg, _, reason = item.partition(": ")
        of_a_leg = reason and reason in missed.get(leg, "")
        found[reason if of_a_leg else item] = [leg for leg, why in missed.items() if of_a_leg and reason in why]
    return found


def _blocked(row: Row, rows: Sequence[Row]) -> bool:
    return bool(row["blocked_by"]) and any(r["probe"] == row["blocked_by"] and r["findings"] for r in rows)


def blocks(rows: Sequence[Row]) -> Iterator[str]:
    """Every finding, the worst first, and every "could not look", each as a block; then what is accepted, a line each.

    What another finding explains stands under it.
    """
    found = [(row, finding) for row in rows for finding in row["findings"]]
    for row, finding in sorted(found, key=lambda pair: ORDER.index(pair[1]["weight"])):
        if finding["accepted"]:
            continue
        yield from finding_lines(row, finding)
        blocked = [r["probe"] for r in rows if r["blocked_by"] == row["probe"] and r is not row]
        if blocked and finding is row["findings"][0]:
            yield from _wrapped("blocks", ", ".join(dict.fromkeys(blocked)))
        yield ""
    for row in rows:
        if row["verdict"] in ("unable", "checker-error") and not _blocked(row, rows):
            yield from lack_lines(row)
            yield ""
        elif row["because"] and not is_ruled_out(row):
            yield f"NOT APPLICABLE  {row['probe']} · {row['subject']['label']}"
            yield from _wrapped("lacking", f"required here, and ruled out: {row['because']['value']}")
            yield ""
    yield from (accepted_line(row, finding) for row, finding in found if finding["accepted"])


def counts(rows: Iterable[Row]) -> str:
    """``5 ok · 1 degraded · 3 not applicable``; why not where that is one reason, and short."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row["verdict"], []).append(row)
    parts = [f"{len(found[kind])} {word(kind)}{_reasons(found[kind])}" for kind in ORDER if kind in found]
    return " · ".join(parts) or "no probe ran"


def _reasons(rows: Sequence[Row]) -> str:
    reasons = {str(r["because"]["value"]) for r in rows if r["because"]}
    return f" ({reasons.pop()})" if len(reasons) == 1 else ""


def header(version: str, level: str, record: str, rehearsal: Sequence[str]) -> Iterator[str]:
    """The first lines of a run."""
    yield f"gpucheck {version} · level {level} · record {record}"
    if rehearsal:
        yield f"REHEARSAL of {', '.join(rehearsal)}: what follows says nothing about this machine"


def junit_text(row: Row) -> str:
    """A row's failure for JUnit and tracebacks: begins with the verdict."""
    lines = [f"{row['verdict']}: {_headline(row)}"]
    for finding in row["findings"]:
        lines += ["", *finding_lines(row, finding)]
    if not row["findings"]:
        lines += ["", *lack_lines(row)]
    return "\n".join(lines)


def _headline(row: Row) -> str:
    if row["findings"]:
        return "; ".join(f"{f['pitfall']}: {f['headline']}" for f in row["findings"])
    return str(row["lacking"][0] if row["lacking"] else row["title"])
