"""Facts: what is read about a machine, each with where it was read or why it could not be. No judgement here.

``read()`` reads in this process; ``python -m gpucheck.facts`` is the child in which a run has them read to a deadline.
The readers live in a module per noun, take a :class:`Tree` and touch only pseudo files and small local files. What may
hang (NVML, the driver's own files, the resolver, the judged Python) is asked in a child of its own.
"""

from __future__ import annotations

from gpucheck.facts.catalogue import read
from gpucheck.facts.expectation import Expectation, expect
from gpucheck.facts.fact import Fact, Facts, Json

__all__ = ["Expectation", "Fact", "Facts", "Json", "expect", "read"]
