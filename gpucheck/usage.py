"""The operator's mistakes."""

from __future__ import annotations


class UsageError(Exception):
    """The operator asked for something that does not exist; the message says what, where and what does."""
