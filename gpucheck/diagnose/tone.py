"""Does a line that holds a symptom speak of a failure? Many healthy logs are full of alarming words.

Judged from the words around the symptom on its line, and from the lines that follow. The answer only ever weakens a
sighting, to a hint: it never makes one.
"""

from __future__ import annotations

import re
from enum import Enum
from functools import lru_cache


class Tone(str, Enum):
    """How a line speaks of the symptom it holds."""

    FAILURE = "failure"
    HARMLESS = "harmless"

    __str__ = str.__str__


AFTER_BYTES = 600
AFTER_LINES = 4


def _any(*words: str) -> str:
    return "(?:" + "|".join(words) + ")"


_QUIET_LEVEL = re.compile(
    r"\b(?:NCCL INFO|INFO|DEBUG|TRACE|VERBOSE|NOTICE|level=(?:info|debug))\b|\s[ID]\d{4} \d\d:|\"(?:level|severity)\":\s?\"(?i:info|debug)"
)
_LOUD = re.compile(r"(?i)\b(?:\w*error|failed|failure|fatal|\w*exception|traceback|critical|panic|warn(?:ing)?)\b")

_NEGATION = _any(
    "no", "not", "never", "without", "zero", "ignor(?:e|es|ed|ing)", "suppress(?:ed|ing)?", "handl(?:e|es|ed|ing)",
    "catch(?:es|ing)?", "caught", r"recover(?:ed|s|ing)?\ from", r"retry(?:ing)?\ (?:on|after)", "expect(?:s|ed|ing)?",
    r"(?:test|check|watch|grep|search)(?:s|ing|ed)?\ for", r"in\ case\ of", "documentation", "see", "unaffected", "last_error",
)  # fmt: skip
_LINK = r"(?:\ (?:a|an|the|any|of|on|from|for|about|more|transient|possible|potential|such|errors?|like|with|is|are|to|by|up)|[:,=])*"
# Right before the symptom: a negation, or the sign of a quotation.
_JUST_BEFORE = re.compile(
    rf"""(?ix)(?:\b{_NEGATION}{_LINK}|\b(?:text|label|title|sample|prompt|completion|question|answer|input|query|rule|alert|pattern|regex|name)s?["']?\s?[=:]?)\s*["'`(\[*/]*\s*$"""
)
# Somewhere before it: the writer tells of what could happen, what happened elsewhere, or what was done about it.
_BEFORE = re.compile(
    r"""(?ix)\b(?:fix(?:es|ed)|resolv(?:es|ed)|avoid(?:s|ed|ing)?|prevent(?:s|ed|ing)?|simulat(?:es?|ed|ing)|inject(?:s|ed|ing)?|rehears(?:al|es?|ed|ing)
    |expected\ to|question:|mock(?:s|ed|ing)?|would\ (?:be|have|exceed)|if\ you\ (?:see|get|hit|run\ into)|you\ (?:may|might|can|could|will)\ (?:see|get|hit)|troubleshoot(?:ing)?|faq|tip:
    |(?:alert|rule)\s?["'][^"']*|(?:prompt|completion|question|answer|instruction)["']:)(?!\w)[^.;]*$|^\s*(?:\+\s*)?(?:\#|//|/\*|<!--)"""
)
_AFTER = re.compile(
    r"""(?ix)^["'`)\]:,.]*\s*(?:(?:count|events?|errors?|s)?["']?\s?[=:]\s*(?:0\b(?!\.\d*[1-9])|false\b|(?:none|no|never|off|n/a)\s*(?:$|[,;)\]}|]))
    |[^.;]{0,10}\b(?:count|total|number|events?|errors?|failures?|over|since|in|last)\b[^.;]{0,30}[:=]\s*(?:0|none)\s*$
    |(?:limits?\ (?:raised|set|increased)|handling|detection|protection|guard|handler|monitor(?:ing)?|alerts?|rule|support|tests?|checks?)\b
    |\(?(?:ignored|ignoring|handled|harmless|benign|non-?fatal|transient|recovered|resolved|fixed|retry|retrying|skipped|simulated)\b
    |(?:was|is|were|has\ been|will\ be)\ (?:ignored|handled|harmless|expected|benign|recovered|resolved|fixed|retried|skipped|inactive))"""
)
_CALM = re.compile(
    r"""(?ix)\b(?:retry(?:ing)?|retries?\ (?:left|remaining)|retr(?:y|ied)\ (?:later|again)|will\ (?:be\ )?retr(?:y|ied)|attempt\ \d+\s?(?:/|of)\s?\d+|trying\ again
    |reconnect(?:ed|ing)|back(?:ing)?[\s-]?off|recovered|succeeded|successfully|(?:safely\ )?ignor(?:ed|ing)|(?:can|may)\ (?:be\ )?(?:safely\ )?ignored?|harmless|non-?fatal|benign
    |self-?test|rehears(?:al|ed)|simulated|falling\ back|fell\ back|using\ fallback|skipp(?:ed|ing)|deprecat(?:ed|ion)|error_rate\s?[=:]\s?0|errors?\s?[=:]\s?0
    |no\ (?:errors?|failures?|problems?|issues?)|0\ (?:errors?|failures?|active|failed)|passed|xfail|all\ good|healthy|as\ (?:expected|configured)|inactive)\b
    |✓|✔|✅|\[\s*ok\s*\]|\.\.\.\s?ok\b|\bok\s*$"""
)
_RECOVERED = re.compile(
    r"""(?ix)\b(?:recovered|retry\ (?:succeeded|ok)|succeeded\ (?:after|on)|(?:re)?connected\ (?:to|after|in)|connection\ (?:re-?)?established
    |resum(?:ed|ing)\ (?:training|normal|from|at|run)|continuing|back\ to\ normal|now\ (?:ready|healthy|available)|attempt\ \d+\s?(?:/\s?\d+)?:?\ (?:succeeded|ok|success)
    |worked\ (?:after|on)|(?:after|on)\ (?:\d+\ retries|retry|attempt\ \d+)|available\ again|completed\ successfully|done\ waiting|was\ retried)\b"""
)
_NOT_ZERO = re.compile(r"\d*[1-9]\d*")
_REACH = 400
_RETRIED_NEXT = re.compile(r"(?i)^\W*(?:retrying\b|will retry\b|trying again\b)")
_WORD = re.compile(r"[A-Za-z]\w{3,}")
_COMMON_WORDS = frozenset(
    {"error", "warning", "warn", "info", "debug", "failed", "from", "with", "this", "that", "runtimeerror"}
)
_GIVEN_UP = re.compile(
    r"(?i)\b(?:giv(?:e|en|ing) up|gave up|exhausted|max(?:imum)? retries|no retries left|abort(?:ed|ing)?|retries exceeded|exit(?:ed)?(?: with)?(?: code| status)? [1-9])"
)


def tone(line: str, start: int, end: int, after: str) -> Tone:
    """How ``line`` speaks of the symptom at ``start``:``end``; ``after`` holds the lines that follow it."""
    # A log repeats its lines with other numbers; whether a number is zero is all that matters here.
    parts = (
        _NOT_ZERO.sub("7", line[max(0, a) : b]) for a, b in ((start - _REACH, start), (start, end), (end, end + _REACH))
    )
    how = _spoken(*parts)
    return Tone.HARMLESS if how is Tone.FAILURE and _went_on(line, after) else how


@lru_cache(maxsize=4096)
def _spoken(before: str, symptom: str, behind: str) -> Tone:
    around = f"{before} ~ {behind}"
    if _GIVEN_UP.search(around):
        return Tone.FAILURE
    if _JUST_BEFORE.search(before) or _BEFORE.search(before) or _AFTER.search(behind) or _CALM.search(around):
        return Tone.HARMLESS
    if _QUIET_LEVEL.search(before) and not _LOUD.search(f"{before}{symptom}{behind}"):
        return Tone.HARMLESS
    return Tone.FAILURE


def _went_on(line: str, after: str) -> bool:
    """Whether one of the next lines says that the same thing worked in the end."""
    if not _RECOVERED.search(after) and not _RETRIED_NEXT.search(after.lstrip()):
        return False
    following = [text for text in after.splitlines() if text.strip()][:AFTER_LINES]
    if following and _RETRIED_NEXT.search(following[0]):
        return True
    told = [text for text in following if _RECOVERED.search(text)]
    return bool(told) and any(_words(line) & _words(text) for text in told)


def _words(text: str) -> frozenset[str]:
    return frozenset(word.lower() for word in _WORD.findall(text)) - _COMMON_WORDS
