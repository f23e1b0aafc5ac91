"""The user's terminal, as far as pytest has one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpucheck import render
from gpucheck.events import Event, Judged

if TYPE_CHECKING:
    import pytest


class Screen:
    """Shows the run while it goes on: a line a probe; what is under way, on a line that the next one overwrites."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config

    def lines(self, *texts: str) -> None:
        """Write lines, where there is a terminal reporter."""
        terminal = self.config.pluginmanager.get_plugin("terminalreporter")
        if terminal is not None:
            for text in texts:
                terminal.write_line(text)

    def show(self, event: Event) -> None:
        """One event of the run."""
        if not isinstance(event, Judged):
            if text := render.progress(event):
                self.live(text)
            return
        self.live("")
        if self.verbosity > 0 or not render.is_ruled_out(event.row):
            self.lines(render.probe_line(event.row), *render.under_lines(event.row))

    @property
    def verbosity(self) -> int:
        """How often ``-v`` was given; pytest has no such option where its terminal reporter is switched off."""
        return int(getattr(self.config.option, "verbose", 0))

    def live(self, text: str) -> None:
        """Say what is under way: overwritten on a terminal; elsewhere a line of its own, with ``-v`` only."""
        terminal = self.config.pluginmanager.get_plugin("terminalreporter")
        if terminal is None:
            return
        if terminal.isatty:
            terminal.rewrite(text, erase=True)
            terminal.rewrite("")  # back to the first column, where the next line begins
        elif text and self.verbosity > 0:
            terminal.write_line(text)
