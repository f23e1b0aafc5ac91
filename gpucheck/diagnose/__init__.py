"""Text and facts in, ranked pitfalls out: pure judgement, no reading of this machine, no words of its own.

A probe calls :func:`diagnose` with the text of a failure; ``gpucheck explain`` streams logs through a :class:`Scan` and
then asks :func:`judge`.
"""

from __future__ import annotations

import io
from functools import cache
from typing import TYPE_CHECKING

from gpucheck.diagnose.case import Confidence
from gpucheck.diagnose.conditions import Origin, Reason, Truth
from gpucheck.diagnose.judge import Answer, Diagnosis, RuledOut, judge, wanted_facts
from gpucheck.diagnose.lexicon import Lexicon
from gpucheck.diagnose.scan import Place, Scan, Sighting
from gpucheck.pitfalls import load

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpucheck.facts import Facts

__all__ = [
    "Answer",
    "Confidence",
    "Diagnosis",
    "Lexicon",
    "Origin",
    "Place",
    "Reason",
    "RuledOut",
    "Scan",
    "Sighting",
    "Truth",
    "diagnose",
    "judge",
    "lexicon",
    "wanted_facts",
]


@cache
def lexicon() -> Lexicon:
    """The patterns of the shipped knowledge base."""
    return Lexicon(load().values())


def diagnose(text: str, facts: Facts | Callable[[tuple[str, ...]], Facts] | None = None) -> Diagnosis:
    """The pitfalls that ``text`` (a message, a traceback, a log) and ``facts`` speak for, best first.

    ``facts`` are those of the machine or container that the text comes from. They may be a function that reads facts by
    name: it is called once, with the names that decide here.
    """
    scan = Scan(lexicon())
    scan.read(io.BytesIO(text.encode("utf-8", errors="replace")), "text")
    pitfalls = scan.lexicon.pitfalls
    names = wanted_facts(scan.sightings, pitfalls)
    known = facts(names) if callable(facts) else facts
    return judge(scan.sightings, pitfalls, known)
