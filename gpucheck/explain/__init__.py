"""`gpucheck explain`: a pitfall by its id, or what a log says went wrong.

Exit status: 0 nothing found (nothing above low confidence), 1 found, 2 could not read.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpucheck.diagnose import Origin, Scan, judge, lexicon, wanted_facts
from gpucheck.explain.layout import printable
from gpucheck.explain.report import as_json, as_text, entry_as_json, entry_as_text
from gpucheck.explain.sources import Unreadable, facts_of_host, facts_of_record, file_here, read_logs
from gpucheck.language import LANGUAGES, of_locale
from gpucheck.pitfalls import load

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpucheck.facts import Facts

NOTHING, FOUND, UNREADABLE = 0, 1, 2
_USAGE = """\
gpucheck explain [--json] [--facts FILE] [--no-host] [--lang {en,zh}]
                        LOG... | - | ID"""
_DESCRIPTION = """\
Finds out what a log says went wrong: at most three causes, best first, each
with how sure it is, what decides, and what to type. Or explains a pitfall by
its id."""
_EPILOG = """\
examples:
  gpucheck explain train.log              a log, or several of one job
  kubectl logs POD | gpucheck explain -   a pipe
  gpucheck explain --facts run.jsonl train.log
                                          a log of another machine, and the
                                          record of a gpucheck run there
  gpucheck explain shm-too-small          what is known of a pitfall

Without --facts, facts of this host are read; they count only as far as the job
may have run right here. Logs may be packed (gzip, bzip2, xz) and of any size.

exit status: 0 nothing found (or an id explained), 1 found, 2 could not read"""


def main(argv: Sequence[str]) -> int:
    """Runs the command with the arguments after ``explain``; the exit status."""
    options = _parser().parse_args(argv)
    try:
        return _explain(options)
    except Unreadable as problem:
        print(f"gpucheck explain: {printable(str(problem))}", file=sys.stderr)
        return UNREADABLE
    except BrokenPipeError:
        # The reader (head, less) has seen enough; keep the interpreter from complaining at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return UNREADABLE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "gpucheck explain",
        usage=_USAGE,
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "what", nargs="+", metavar="LOG, -, ID", help="log files, - for standard input, or a pitfall's id"
    )
    parser.add_argument("--json", action="store_true", help="print a list of answers, best first")
    parser.add_argument(
        "--facts", metavar="FILE", type=Path, help="judge with the facts of this record, not of this host"
    )
    parser.add_argument("--no-host", action="store_true", help="judge by the text alone; read nothing else here")
    given = os.environ.get("GPUCHECK_LANG") or None
    if given not in (None, *LANGUAGES):
        parser.error(f"GPUCHECK_LANG={given!r}: allowed is {' or '.join(LANGUAGES)}")
    help_ = "language of the answers; default: GPUCHECK_LANG, or by locale"
    parser.add_argument("--lang", choices=LANGUAGES, default=given or of_locale(), help=help_)
    return parser


def _explain(options: argparse.Namespace) -> int:
    recorded = facts_of_record(options.facts) if options.facts else None
    if len(options.what) == 1 and options.what[0] in load():
        return _explain_id(options, recorded)
    for name in options.what:
        if not file_here(name):
            raise Unreadable(_no_such(name))
    return _explain_logs(options, recorded)


def _no_such(name: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name, load(), n=3, cutoff=0.5)
    hint = f"; ids like it: {', '.join(near)}" if near else ""
    return f"{name!r} is neither a pitfall's id nor a file that can be found here{hint}"


def _facts(options: argparse.Namespace, recorded: Facts | None, names: tuple[str, ...]) -> Facts | None:
    if recorded is not None:
        return recorded
    return None if options.no_host else facts_of_host(names)


def _explain_id(options: argparse.Namespace, recorded: Facts | None) -> int:
    pitfall = load()[options.what[0]]
    facts = _facts(options, recorded, pitfall.facts())
    if options.json:
        _print_json([entry_as_json(pitfall, facts, options.lang)])
    else:
        _print(entry_as_text(pitfall, facts, options.lang))
    return NOTHING


def _explain_logs(options: argparse.Namespace, recorded: Facts | None) -> int:
    scan = Scan(lexicon())
    problems = read_logs(scan, options.what)
    pitfalls = scan.lexicon.pitfalls
    facts = _facts(options, recorded, wanted_facts(scan.sightings, pitfalls))
    origin = Origin.HOST if recorded is None else Origin.JOB
    diagnosis = judge(scan.sightings, pitfalls, facts, origin)
    if options.json:
        _print_json([as_json(answer, facts, options.lang) for answer in diagnosis.answers])
    elif diagnosis.found or not problems:
        sources = ", ".join("stdin" if name == "-" else name for name in options.what)
        _print(as_text(diagnosis, facts, options.lang, source=sources, size=_size(scan.bytes_read)))
    for problem in problems:
        print(f"gpucheck explain: could not read {printable(problem)}", file=sys.stderr)
    if problems:
        return UNREADABLE
    return FOUND if diagnosis.found else NOTHING


def _size(size_bytes: int) -> str:
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:.1f} {unit}"
    return f"{size_bytes} B"


def _print_json(answers: list[dict[str, Any]]) -> None:
    _print([json.dumps(answers, ensure_ascii=False, indent=2, default=str)])


def _print(lines: Iterable[str]) -> None:
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A C locale cannot write Chinese; a question mark is better than a traceback.
        sys.stdout.reconfigure(errors="replace")
    sys.stdout.writelines(f"{line}\n" for line in lines)
    sys.stdout.flush()
