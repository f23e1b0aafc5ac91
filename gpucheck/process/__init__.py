"""Run a payload or a command to a deadline that we own, and say how it ended: as data, never as an exception.

Each child runs under a small supervisor (``payload/supervisor.py``) that kills its whole family when our end of a
socket closes, so that nothing survives us, however we end. *Warm* children are forked from a server that has imported
the heavy libraries; *cold* ones start a fresh interpreter.
"""

from gpucheck.process.children import Children
from gpucheck.process.deadline import Deadline
from gpucheck.process.once import Once
from gpucheck.process.own import own_argv
from gpucheck.process.reply import (
    Answer,
    Ended,
    Failure,
    Garbage,
    NoAnswer,
    Reply,
    TooMuch,
    Value,
    frames,
    read_answer,
    signal_name,
)
from gpucheck.process.supervised import PAYLOADS, Follow

__all__ = [
    "PAYLOADS",
    "Answer",
    "Children",
    "Deadline",
    "Ended",
    "Failure",
    "Follow",
    "Garbage",
    "NoAnswer",
    "Once",
    "Reply",
    "TooMuch",
    "Value",
    "frames",
    "own_argv",
    "read_answer",
    "signal_name",
]
