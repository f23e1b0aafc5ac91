"""The command line: ``gpucheck run | list | explain``. Exit statuses of a run are pytest's, see the README."""

from __future__ import annotations

import argparse
import signal
import sys
from typing import TYPE_CHECKING, Any

import gpucheck
from gpucheck.verdict import Exit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpucheck.profile import Options


def _run(argv: Sequence[str]) -> int:
    from gpucheck import profile

    parser = argparse.ArgumentParser(prog="gpucheck run", description="Probe this machine, without a pytest session.")
    for option in profile.OPTIONS.values():
        action: dict[str, Any] = {"action": "append" if option.many else "store_true" if option.flag else "store"}
        if not option.flag:
            action["metavar"] = option.name.upper()
        parser.add_argument(f"--{option.name}", f"--gpucheck-{option.name}", help=option.help, **action)
    parser.add_argument("-k", dest="keyword", default="", help="only probes whose name matches this expression")
    parser.add_argument(
        "-x", dest="maxfail", action="store_const", const=1, default=0, help="stop at the first failure"
    )
    args = vars(parser.parse_args(argv))
    from gpucheck.run import Selection

    selection = Selection(args.pop("keyword"), "", args.pop("maxfail"))
    named = {name: args[name.replace("-", "_")] for name in profile.OPTIONS}
    return _perform(profile.resolve(named), selection)


def _perform(options: Options, selection: Any) -> int:
    from gpucheck import render
    from gpucheck.run import Run

    def show(event: dict[str, Any]) -> None:
        if sys.stdout.isatty():
            # Overwritten by the next line; \x1b[K clears what is left of it.
            print(f"\r{render.progress(event)}\x1b[K", end="\r", flush=True)
        if "result" in event:
            print(render.probe_line(event["result"]), *render.under_lines(event["result"]), sep="\n", flush=True)

    run = Run(options, selection, show)
    for line in render.header(gpucheck.__version__, options["level"], str(run.path), options["rehearse"]):
        print(line)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        run.perform()
        status = run.status()
    except KeyboardInterrupt:
        status = Exit.INTERRUPTED
    print()
    for line in (*render.blocks(run.rows), *run.stale_acceptances(), *run.notes):
        print(line)
    print(render.counts(run.rows))
    run.finish(status)
    return int(status)


def _interrupt(number: int, _: Any) -> None:
    raise KeyboardInterrupt(signal.Signals(number).name)


def _list(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="gpucheck list", description="List the probes, or the faults to rehearse.")
    parser.add_argument("--pitfalls", action="store_true", help="the knowledge base instead")
    parser.add_argument("--faults", action="store_true", help="the faults of --rehearse instead, and what each needs")
    args = parser.parse_args(argv)
    if args.faults:
        _list_faults()
        return 0
    if args.pitfalls:
        from gpucheck import pitfalls

        for entry in pitfalls.load().values():
            print(f"{entry.id:<32} {entry.headline}")
        return 0
    from gpucheck import catalogue

    for probe in catalogue.probes():
        print(f"{probe.id:<24} {probe.level:<8} {probe.title}")
    return 0


def _list_faults() -> None:
    from gpucheck.faults import FAULTS

    for fault in FAULTS.values():
        needs = f"; needs {', '.join(fault.needs)}" if fault.needs else ""
        print(f"{fault.id:<24} {fault.title}")
        print(f"{'':<24} {fault.probe} says {' or '.join(fault.pitfalls)}{needs}")


def _explain(argv: Sequence[str]) -> int:
    from gpucheck import explain

    return explain.main(list(argv))


COMMANDS: dict[str, tuple[Callable[[Sequence[str]], int], str]] = {
    "run": (_run, "probe this machine"),
    "list": (_list, "list the probes or the known pitfalls"),
    "explain": (_explain, "explain a pitfall, or what is wrong in a log"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit status."""
    argv = sys.argv[1:] if argv is None else argv
    if argv and argv[0] in COMMANDS:
        from gpucheck.profile import UsageError

        try:
            return COMMANDS[argv[0]][0](argv[1:])
        except UsageError as error:
            print(f"gpucheck: {error}", file=sys.stderr)
            return int(Exit.USAGE)
    if argv and argv[0] == "--version":
        print(gpucheck.__version__)
        return 0
    print("usage: gpucheck COMMAND [ARGUMENTS]\n")
    for name, (_, text) in COMMANDS.items():
        print(f"  {name:<10} {text}")
    asked = bool(argv) and argv[0] in ("-h", "--help")
    if argv and not asked:
        print(f"\ngpucheck: no command is called {argv[0]!r}", file=sys.stderr)
    return 0 if asked else int(Exit.USAGE)


if __name__ == "__main__":
    sys.exit(main())
