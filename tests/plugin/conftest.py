"""A site's own probes, one a verdict, and a bench that runs ``pytest --gpucheck`` in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from textwrap import dedent, indent
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

# Only our own unit tests need that plugin, and loading it costs more than all else of a short run.
LEAN = ("-p", "no:hypothesispytest")


@dataclass
class Ran:
    """What one run printed, wrote and returned."""

    status: int
    out: str
    err: str
    record: Path

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Every row of the record."""
        return [json.loads(line) for line in self.record.read_text().splitlines()]

    @property
    def verdicts(self) -> dict[str, str]:
        """Verdict by probe."""
        return {row["probe"]: row["verdict"] for row in self.rows if row["kind"] == "result"}


class Bench:
    """A folder of a user's project and a folder of a site's probes."""

    def __init__(self, folder: Path) -> None:
        self.project = folder / "project"
        self.probes = folder / "site"
        self.record = folder / "record.jsonl"
        self.project.mkdir()
        self.probes.mkdir()

    def probe(self, name: str, body: str, mark: str = 'subject="host", level="quick"') -> None:
        """Add a probe whose test function has this body."""
        code = indent(dedent(body).strip(), "    ")
        head = f'"""{name.replace("_", " ")}."""\n\nimport pytest\n\npytestmark = pytest.mark.probe({mark})\n\n\n'
        text = f"{head}def test_{name}(report, host, child, options):\n{code}\n"
        (self.probes / f"test_{name}.py").write_text(text)

    def write(self, **files: str) -> None:
        """Write files of the user's project; ``a_py`` is ``a.py``."""
        for name, text in files.items():
            stem, _, suffix = name.rpartition("_")
            (self.project / f"{stem}.{suffix}").write_text(dedent(text))

    def command(self, *args: str, keyword: str | None = "site") -> list[str]:
        """The command line of a run over the site's probes alone."""
        picked = ["-k", keyword] if keyword else []
        site = [f"--gpucheck-probes={self.probes}"] if any(self.probes.glob("test_*.py")) else []
        flags = [*site, f"--gpucheck-record={self.record}", "--gpucheck-level=quick"]
        return [sys.executable, "-m", "pytest", *LEAN, "--gpucheck", *flags, *picked, *args]

    def run(self, *args: str, keyword: str | None = "site", env: dict[str, str] | None = None) -> Ran:
        """Run it."""
        self.record.unlink(missing_ok=True)
        done = subprocess.run(
            self.command(*args, keyword=keyword),
            cwd=self.project,
            capture_output=True,
            text=True,
            timeout=120,
            env={**os.environ, **(env or {})},
            check=False,
        )
        return Ran(done.returncode, done.stdout, done.stderr, self.record)


@pytest.fixture
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """A fresh bench, in a folder whose name ``-k`` does not match."""
    return Bench(tmp_path_factory.mktemp("bench"))


@pytest.fixture
def full_bench(bench: Bench) -> Bench:
    """A bench with a probe of every verdict."""
    bench.probe("site_ok", "report.saw('looked')")
    bench.probe("site_degraded", "report.degraded('shm-leftovers', 'saw a file')")
    bench.probe("site_bad", "report.bad('shm-too-small', 'saw 64m', shm_need='2g')")
    bench.probe(
        "site_unable",
        """
        from gpucheck.verdict import Unable
        raise Unable('a thing that was not there')
        """,
    )
    bench.probe(
        "site_ruled_out",
        """
        from gpucheck.verdict import NotApplicable
        raise NotApplicable('site.fact', 'no such thing here', 'a file')
        """,
    )
    bench.probe("site_broken", "1 / 0")
    return bench
