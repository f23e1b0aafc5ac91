"""A failure in somebody else's words, held against the knowledge base: the finding that explains it, or none.

The same judgement as ``gpucheck explain``: an answer below its floor is none, and its confidence is the finding's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpucheck.diagnose import Truth, diagnose
from gpucheck.verdict import bad

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpucheck.diagnose import Answer
    from gpucheck.facts import Facts
    from gpucheck.verdict import Failed, Finding, Unexplained

_LINES = 2
_LINE_CHARACTERS = 300


def cause_of(told: Unexplained | Failed, facts: Callable[[tuple[str, ...]], Facts] | None) -> Finding | None:
    """What is known to fail in these words on a machine with these facts; None when nothing is, or not surely."""
    found = diagnose(told.text, facts).found
    best = next((answer for answer in found if not told.by_fact or list(_confirming(answer))), None)
    if best is None or best.pitfall.id in told.known:
        return None
    evidence = [told.what, *told.evidence]
    evidence += [line for line in _said(best) if not any(line in earlier for earlier in evidence)]
    return bad(best.pitfall.id, *evidence, *_reasons(best), confidence=best.confidence.value)


def _said(answer: Answer) -> Iterator[str]:
    return (" ".join(place.shown.split())[:_LINE_CHARACTERS] for place in answer.places[:_LINES])


def _reasons(answer: Answer) -> Iterator[str]:
    for text in _confirming(answer):
        yield f"confirmed by: {text}"
    if answer.rivals:
        yield f"the same words fit {', '.join(rival.id for rival in answer.rivals)}; what decides: {answer.pitfall.ask}"


def _confirming(answer: Answer) -> Iterator[str]:
    return (reason.text for reason in answer.reasons if reason.truth is Truth.YES)
