"""Our own child processes: pytest over the probes, and the reader of facts, out of reach of the user's project."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import gpucheck
from gpucheck.facts import Facts
from gpucheck.given import EVENTS, GIVEN
from gpucheck.process import own_argv

if TYPE_CHECKING:
    from gpucheck.process import Children, Reply
    from gpucheck.profile import Options
    from gpucheck.rehearsal.stage import Stage

PACKAGE = Path(gpucheck.__file__).parent
FACTS_S = 30.0
FACTS_MARGIN_S = 2.0


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


def has_belt() -> bool:
    """Whether pytest-timeout is installed; our own deadlines hold without it."""
    return importlib.util.find_spec("pytest_timeout") is not None


def probes_argv(options: Options, selection: Selection) -> list[str]:
    """The child pytest."""
    settings = ["-c", str(PACKAGE / "markers.ini"), f"--rootdir={PACKAGE}", "--noconftest", "-q"]
    plugins = [*(["-p", "pytest_timeout"] if has_belt() else []), "-p", "gpucheck.inner"]
    folders = [str(PACKAGE / "probes"), *([options["probes"]] if options["probes"] else [])]
    settings.append("--continue-on-collection-errors")
    return own_argv("pytest", *settings, *plugins, *selection.argv(), *folders)


def probes_environment(given: Path, events: Path) -> dict[str, str]:
    """Where the child pytest finds what it was given, and tells what happens."""
    return {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", GIVEN: str(given), EVENTS: str(events)}


def cleanup_argv(folder: Path) -> list[str]:
    """What the supervisor of the child pytest runs when we are gone before it."""
    return own_argv("gpucheck.cleanup", str(folder), "--settle")


def read_facts(children: Children, folder: Path, options: Options, on: Stage) -> tuple[Facts | None, Reply]:
    """The facts of the machine ``on``, read in a child; None where it wrote none, and how it ended."""
    out = folder / "facts.json"
    out.unlink(missing_ok=True)
    limit_s = max(5.0, min(FACTS_S, options.budget_s))
    # They end by themselves before they are ended: what was read by then is written, whatever hangs.
    argv = own_argv("gpucheck.facts", "--out", str(out), "--deadline", str(limit_s - FACTS_MARGIN_S))
    if options["python"]:
        argv += ["--python", options["python"]]
    reply = children.run_argv(on.argv(argv), deadline_s=limit_s, env=on.env)
    try:
        return Facts.from_json(json.loads(out.read_text(encoding="utf-8"))), reply
    except (OSError, ValueError):
        return None, reply
