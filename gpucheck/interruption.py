"""SIGTERM and SIGHUP as Ctrl-C: a scheduler that ends a job, a terminal that closes."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def by_signals() -> Iterator[None]:
    """Meanwhile both raise KeyboardInterrupt, so that whoever is interrupted cleans up and closes the record."""
    before = {number: signal.signal(number, _interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(number: int, _: Any) -> None:
    raise KeyboardInterrupt(signal.Signals(number).name)
