"""The command line: ``gpucheck run | list | explain``. Exit statuses of a run are pytest's, see the README."""

from __future__ import annotations

import argparse
import io
import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import gpucheck
from gpucheck import interruption, plugin, profile
from gpucheck.redact import redact
from gpucheck.usage import UsageError
from gpucheck.verdict import Exit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpucheck.events import Event
    from gpucheck.profile import Options
    from gpucheck.run import Selection


class Parser(argparse.ArgumentParser):
    """Raises our usage error, whose exit status is 4; argparse's own 2 says "interrupted" here."""

    def error(self, message: str) -> NoReturn:
        """What is wrong with the command line."""
        raise UsageError(f"{self.prog}: {message}; see {self.prog} --help")


def _say(*lines: str, end: str = "\n") -> None:
    """Print, unless nobody takes it any more: a closed pipe or a full disk ends the talk, not the run."""
    if sys.stdout is None:
        return
    try:
        print(*lines, sep="\n", end=end, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(argv: Sequence[str]) -> int:
    parser = Parser(prog="gpucheck run", description="Probe this machine, without a pytest session.")
    texts = {**plugin.TEXTS, **plugin.LISTS, **plugin.FLAGS}
    for option in profile.OPTIONS.values():
        action: dict[str, Any] = {"action": "append" if option.many else "store_true" if option.flag else "store"}
        if not option.flag:
            action["metavar"] = option.name.upper()
        parser.add_argument(f"--{option.name}", f"--gpucheck-{option.name}", help=texts[option.name], **action)
    parser.add_argument("-k", dest="keyword", default="", help="only probes whose name matches this expression")
    parser.add_argument(
        "-x", dest="maxfail", action="store_const", const=1, default=0, help="stop at the first failure"
    )
    args = vars(parser.parse_args(argv))
    from gpucheck.run import Selection

    selection = Selection(args.pop("keyword"), "", args.pop("maxfail"))
    named = {name: args[name.replace("-", "_")] for name in profile.OPTIONS}
    return _perform(profile.resolve(named), selection)


def _perform(options: Options, selection: Selection) -> int:
    from gpucheck import render
    from gpucheck.run import Run

    run = Run(options, selection)
    run.ledger.show = _show
    _say(*render.header(gpucheck.__version__, options["level"], str(run.path), options["rehearse"]))
    with interruption.by_signals():
        try:
            run.perform()
            status = run.status()
        except UsageError:
            run.finish(Exit.USAGE)
            raise
        except KeyboardInterrupt:
            status = Exit.INTERRUPTED
            run.notes.append(run.interruption())
        rows = run.ledger.rows
        _say(*render.ruled_out_lines(rows), "", *render.blocks(rows), *run.closing_lines(), render.counts(rows))
        run.finish(status)
    return int(status)


def _show(event: Event) -> None:
    from gpucheck import render
    from gpucheck.events import Judged

    if sys.stdout is not None and sys.stdout.isatty():
        # Overwritten by the next line; \x1b[K clears what is left of it.
        _say(f"\r{render.progress(event)}\x1b[K", end="\r")
    if isinstance(event, Judged) and not render.is_ruled_out(event.row):
        _say(render.probe_line(event.row), *render.under_lines(event.row))


def _list(argv: Sequence[str]) -> int:
    parser = Parser(prog="gpucheck list", description="List the probes, or the faults to rehearse.")
    parser.add_argument("--pitfalls", action="store_true", help="the knowledge base instead")
    parser.add_argument("--faults", action="store_true", help="the faults of --rehearse instead, and what each needs")
    args = parser.parse_args(argv)
    if args.faults:
        _list_faults()
        return 0
    if args.pitfalls:
        from gpucheck import pitfalls

        for entry in pitfalls.load().values():
            _say(f"{entry.id:<32} {entry.headline}")
        return 0
    from gpucheck import catalogue

    for probe in catalogue.probes():
        _say(f"{probe.id:<24} {probe.level:<8} {probe.title}")
    return 0


def _list_faults() -> None:
    from gpucheck.rehearsal.faults import FAULTS

    for fault in FAULTS.values():
        needs = f"; needs {', '.join(fault.needs)}" if fault.needs else ""
        _say(f"{fault.id:<24} {fault.title}", f"{'':<24} {fault.probe} says {' or '.join(fault.pitfalls)}{needs}")


def _explain(argv: Sequence[str]) -> int:
    from gpucheck import explain

    return explain.main(list(argv))


COMMANDS: dict[str, tuple[Callable[[Sequence[str]], int], str]] = {
    "run": (_run, "probe this machine"),
    "list": (_list, "list the probes or the known pitfalls"),
    "explain": (_explain, "explain a pitfall, or what is wrong in a log"),
}


def _command(name: str, argv: Sequence[str]) -> int:
    try:
        return COMMANDS[name][0](argv)
    except UsageError as error:
        print(f"gpucheck: {error}", file=sys.stderr)
        return int(Exit.USAGE)
    except Exception as error:  # noqa: BLE001 - status 1 would say that this machine is bad
        at = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(at.filename).name}:{at.lineno}"
        print(f"gpucheck: a bug of gpucheck: {type(error).__name__}: {redact(str(error))} ({where})", file=sys.stderr)
        return int(Exit.CRASH)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit status."""
    argv = sys.argv[1:] if argv is None else argv
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal of another encoding shows what it can
    if argv and argv[0] in COMMANDS:
        return _command(argv[0], argv[1:])
    if argv and argv[0] == "--version":
        _say(gpucheck.__version__)
        return 0
    _say("usage: gpucheck COMMAND [ARGUMENTS]\n", *(f"  {name:<10} {text}" for name, (_, text) in COMMANDS.items()))
    asked = bool(argv) and argv[0] in ("-h", "--help")
    if argv and not asked:
        print(f"\ngpucheck: no command is called {argv[0]!r}", file=sys.stderr)
    return 0 if asked else int(Exit.USAGE)


if __name__ == "__main__":
    sys.exit(main())
