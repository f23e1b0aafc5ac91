"""How much is looked at, and which GPUs may be loaded: ordered words, from the least to the most."""

from __future__ import annotations

from typing import Final

BUDGET_S: Final = {"quick": 20.0, "default": 180.0, "deep": 1800.0}
"""The levels, each with the seconds of a whole run."""
LEVELS: Final = tuple(BUDGET_S)
DISTURBANCE: Final = ("none", "idle", "any")
