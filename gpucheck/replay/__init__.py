"""The run in the user's own pytest session: an item a row, the gate in front of their tests, summary, status."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from gpucheck import profile
from gpucheck.replay.controller import INPUT, Controller
from gpucheck.replay.hooks import Replay
from gpucheck.run import Run, Selection
from gpucheck.usage import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping


def attach(config: pytest.Config) -> None:
    """Register the run with this pytest: as its controller, or as a worker that is handed the rows."""
    if not config.option.file_or_dir:
        config.args[:] = []
    worker: Mapping[str, Any] | None = getattr(config, "workerinput", None)
    if worker is not None:
        config.pluginmanager.register(Replay(**json.loads(worker.get(INPUT, '{"rows": []}'))), "gpucheck-replay")
        return
    try:
        options = profile.resolve(_command_line(config), config.getini)
        run = Run(options, Selection(config.option.keyword, config.option.markexpr, config.option.maxfail))
    except UsageError as error:
        raise pytest.UsageError(f"gpucheck: {error}") from None
    if config.option.collectonly:
        return
    replay = Replay([])
    config.pluginmanager.register(replay, "gpucheck-replay")
    config.pluginmanager.register(Controller(config, run, replay), "gpucheck-run")


def _command_line(config: pytest.Config) -> dict[str, Any]:
    return {name: getattr(config.option, f"gpucheck_{name.replace('-', '_')}", None) for name in profile.OPTIONS}
