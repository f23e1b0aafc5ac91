"""Until when somebody may wait, handed down to whoever waits, so that all waits of one probe end when its time does."""

from __future__ import annotations

import time
from dataclasses import dataclass

from gpucheck.verdict import Unable


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment on the monotonic clock, in seconds, after which nothing new is waited for."""

    ends: float

    @classmethod
    def within(cls, seconds: float) -> Deadline:
        """So many seconds from now."""
        return cls(time.monotonic() + seconds)

    @property
    def is_over(self) -> bool:
        """Whether it has passed."""
        return time.monotonic() >= self.ends

    def left_s(self, wanted_s: float | None = None) -> float:
        """Seconds for the next wait, ``wanted_s`` at most. Raises Unable when there is no time for one."""
        left_s = self.ends - time.monotonic()
        if left_s <= 0:
            raise Unable("time: the probe's deadline, or the run's budget, is used up")
        return left_s if wanted_s is None else min(left_s, wanted_s)
