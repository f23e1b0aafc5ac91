"""The hermetic child pytest, in which the probes run.

The controller starts ``python -m pytest -p gpucheck.inner`` with a :class:`~gpucheck.given.Given` in a file; this side
appends rows to the record as they happen, and tells the controller the same in :mod:`~gpucheck.events`.
"""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

from gpucheck import fixtures, pitfalls
from gpucheck.given import EVENTS, GIVEN
from gpucheck.inner.collection import Collection
from gpucheck.inner.protocol import Protocol
from gpucheck.inner.session import NAME, Session


def pytest_configure(config: pytest.Config) -> None:
    """Read what the controller gave, and serve the fixtures."""
    given = pickle.loads(Path(os.environ[GIVEN]).read_bytes())  # noqa: S301 - our own file, in the run's private folder
    try:
        pitfalls.with_site(given.options["probes"])
    except pitfalls.PitfallError as error:
        raise pytest.UsageError(f"{given.options['probes']}: {error}") from None
    session = Session(given, Path(os.environ[EVENTS]))
    for name, plugin in (
        (NAME, session),
        ("gpucheck-collection", Collection(session)),
        ("gpucheck-protocol", Protocol(session)),
        ("gpucheck-fixtures", fixtures),
    ):
        config.pluginmanager.register(plugin, name)
