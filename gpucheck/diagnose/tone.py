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
_REACH_CHARACTERS = 400


class _Phrase:
    """Alternatives of a pattern, whatever their case, compiled when first looked for: most logs never need them."""

    def __init__(self, *alternatives: str, before: str = "", after: str = "") -> None:
        self._text = f"(?i){before}(?:{'|'.join(alternatives)}){after}"
        self._compiled: re.Pattern[str] | None = None

    def found_in(self, text: str) -> bool:
        """Whether ``text`` holds one of them."""
        if self._compiled is None:
            self._compiled = re.compile(self._text)
        return self._compiled.search(text) is not None


# A field that names the level means it; the word alone may stand in a line that reports an error all the same.
_QUIET_FIELD = _Phrase(r"\blevel=(?:info|debug)\b", r'"(?:level|severity)":\s?"(?:info|debug)')
_QUIET_WORD = _Phrase(r"\b(?-i:NCCL INFO|INFO(?!: task )|DEBUG|TRACE|VERBOSE|NOTICE)\b", r"\s(?-i:[ID])\d{4} \d\d:")
_LOUD = _Phrase(
    r"\w*error", "failed", "failure", "fatal", r"\w*exception", "traceback", "critical", "panic", "warn(?:ing)?",
    before=r"\b", after=r"\b",
)  # fmt: skip

_LINK = (
    r"(?: (?:a|an|the|any|of|on|from|for|about|more|transient|possible|potential|such|errors?|like|with|is|are|to"
    r"|by|up)|[:,=])*"
)
# Right before the symptom: a negation, or what announces a quotation.
_DENIED = _Phrase(
    "no", "not", "never", "without", "zero", "ignor(?:e|es|ed|ing)", "suppress(?:ed|ing)?", "handl(?:e|es|ed|ing)",
    "catch(?:es|ing)?", "caught", "recover(?:ed|s|ing)? from", "retry(?:ing)? (?:on|after)", "expect(?:s|ed|ing)?",
    "(?:test|check|watch|grep|search)(?:s|ing|ed)? for", "in case of", "documentation", "see", "unaffected",
    "last_error", "earlier", "previous", "former",
    before=r"\b", after=_LINK + r"""\s*["'`(\[*/]*\s*$""",
)  # fmt: skip
_QUOTED = _Phrase(
    "text", "label", "title", "sample", "prompt", "completion", "question", "answer", "input", "query", "rule", "alert",
    "pattern", "regex", "name",
    before=r"\b", after=r"""s?["']?\s?[=:]?\s*["'`(\[*/]*\s*$""",
)  # fmt: skip
# Somewhere before it, in the same clause: what could happen, what happened elsewhere, what was done about it.
_TOLD = _Phrase(
    "fix(?:es|ed)", "resolv(?:es|ed)", "avoid(?:s|ed|ing)?", "prevent(?:s|ed|ing)?", "simulat(?:es?|ed|ing)",
    "inject(?:s|ed|ing)?", "rehears(?:al|es?|ed|ing)", "expected to", "mock(?:s|ed|ing)?", "would (?:be|have|exceed)",
    "if you (?:see|get|hit|run into)", "you (?:may|might|can|could|will) (?:see|get|hit)", "troubleshoot(?:ing)?",
    "faq", r"select\b.*\bfrom", "tip:", "question:", r"""(?:alert|rule)\s?["'][^"']*""",
    r"""(?:prompt|completion|question|answer|instruction)["']:""",
    r"""(?:summary|description|expr)["']?:\s?["'][^"']*""",
    before=r"\b", after=r"(?!\w)[^.;]*$",
)  # fmt: skip
# The same in Chinese, which has no word boundaries.
_TOLD_CHINESE = _Phrase(
    "如果.{0,6}(?:出现|遇到|看到|报)", "常见问题", "没有", "未(?:发现|出现|见)",
    "不再", "避免", "防止", "已?修复了?", "模拟",
    after=r"[^。；，]*$",
)  # fmt: skip
_CALM_CHINESE = _Phrase("正在重试", "将重试", "重试成功", "已恢复", "可以?忽略", "不影响", "属于?正常")
_COMMENT = _Phrase("#", "//", r"/\*", "<!--", r"[*-]?\s*(?:bug)?fix(?:\([^)]*\))?:", before=r"^\s*(?:\+\s*)?")
# Right after it: nothing of the kind was counted, or somebody dealt with it.
_NONE = _Phrase(
    r"""(?:count|events?|errors?|s)?["']?\s?[=:]\s*(?:0\b(?!\.\d*[1-9])|false\b|(?:none|no|never|off|n/a)\s*(?:$|[,;)\]}|]))""",
    r"[^.;]{0,10}\b(?:count|total|number|events?|errors?|failures?|over|since|in|last)\b[^.;]{0,30}[:=]\s*(?:0|none)\s*$",
    before=r"""^["'`)\]:,.]*\s*""",
)
_DEALT_WITH = _Phrase(
    "limits? (?:raised|set|increased)", "handling", "detection", "protection", "guard", "handler", "monitor(?:ing)?",
    "alerts?", "rule", "support", "tests?", "checks?", "ignored", "ignoring", "handled", "harmless", "benign",
    "non-?fatal", "transient", "recovered", "resolved", "fixed", "retry", "retrying", "skipped", "simulated",
    "(?:was|is|were|has been|will be) (?:ignored|handled|harmless|expected|benign|recovered|resolved|fixed|retried"
    "|skipped|inactive)",
    before=r"""^["'`)\]:,.]*\s*\(?""", after=r"\b",
)  # fmt: skip
_CALM = _Phrase(
    "retry(?:ing)?", "retries? (?:left|remaining)", "retr(?:y|ied) (?:later|again)", "will (?:be )?retr(?:y|ied)",
    r"attempt \d+\s?(?:/|of)\s?\d+", "trying again", "reconnect(?:ed|ing)", r"back(?:ing)?[\s-]?off", "recovered",
    "succeeded", "successfully", "ignor(?:ed|ing)", "(?:can|may) (?:be )?(?:safely )?ignored?", "harmless",
    "non-?fatal", "benign", "self-?test", "rehears(?:al|ed)", "simulated", "falling back", "fell back",
    "using fallback", "trying (?:a )?(?:smaller |lower )?batch",
    "skipp(?:ed|ing)", r"error_rate\s?[=:]\s?0", r"errors?\s?[=:]\s?0",
    "no (?:errors?|failures?|problems?|issues?)", "0 (?:errors?|failures?|active|failed)", "passed", "xfail",
    "all good",
    "healthy", "as (?:expected|configured)", "inactive",
    before=r"\b", after=r"\b",
)  # fmt: skip
_DEPRECATED = _Phrase("deprecat(?:ed|ion)", before=r"\b", after=r"\b")
_RAISED = _Phrase("Error", "Exception", before=r"\b\w*", after=r":\s")
_GOOD_MARK = _Phrase("✓", "✔", "✅", r"\[\s*ok\s*\]", r"\.\.\.\s?ok\b", r"\bok\s*$")
_GIVEN_UP = _Phrase(
    "giv(?:e|en|ing) up", "gave up", "exhausted", "max(?:imum)? retries", "no retries left", "abort(?:ed|ing)?",
    "retries exceeded", "exit(?:ed)?(?: with)?(?: code| status)? [1-9]",
    before=r"\b",
)  # fmt: skip
# On a later line.
_RECOVERED = _Phrase(
    "recovered", "retry (?:succeeded|ok)", "succeeded (?:after|on)", "(?:re)?connected (?:to|after|in)",
    "connection (?:re-?)?established", "resum(?:ed|ing) (?:training|normal|from|at|run)", "continuing",
    "back to normal",
    "now (?:ready|healthy|available)", r"attempt \d+\s?(?:/\s?\d+)?:? (?:succeeded|ok|success)", "worked (?:after|on)",
    r"(?:after|on) (?:\d+ retries|retry|attempt \d+)", "available again", r"server \S+ ok", "completed successfully",
    "done waiting", "was retried",
    before=r"\b", after=r"\b",
)  # fmt: skip
_TRIED_AGAIN = _Phrase("retrying", "will retry", "trying again", before=r"^\W*", after=r"\b")
_NOT_ZERO = re.compile(r"\d*[1-9]\d*")
_WORD = re.compile(r"[A-Za-z]\w{3,}")
_COMMON_WORDS = frozenset(
    {"error", "warning", "warn", "info", "debug", "failed", "from", "with", "this", "that", "runtimeerror"}
)


def tone(line: str, start: int, end: int, after: str) -> Tone:
    """How ``line`` speaks of the symptom at ``start``:``end``; ``after`` holds the lines that follow it."""
    # A log repeats its lines with other numbers; whether a number is zero is all that matters here.
    before, symptom, behind = (
        _NOT_ZERO.sub("7", text)
        for text in (
            line[max(0, start - _REACH_CHARACTERS) : start],
            line[start:end],
            line[end : end + _REACH_CHARACTERS],
        )
    )
    how = _spoken(before, symptom, behind)
    return Tone.HARMLESS if how is Tone.FAILURE and _went_on(line, after) else how


@lru_cache(maxsize=4096)
def _spoken(before: str, symptom: str, behind: str) -> Tone:
    around = f"{before} ~ {behind}"
    if _GIVEN_UP.found_in(around):
        return Tone.FAILURE
    if any(phrase.found_in(before) for phrase in (_DENIED, _QUOTED, _TOLD, _TOLD_CHINESE, _COMMENT)):
        return Tone.HARMLESS
    if any(phrase.found_in(behind) for phrase in (_NONE, _DEALT_WITH)):
        return Tone.HARMLESS
    if any(phrase.found_in(around) for phrase in (_CALM, _CALM_CHINESE, _GOOD_MARK)):
        return Tone.HARMLESS
    if _DEPRECATED.found_in(around) and not _RAISED.found_in(before + symptom):
        return Tone.HARMLESS
    loud = _LOUD.found_in(f"{before}{symptom}{behind}")
    quiet = _QUIET_FIELD.found_in(before) or (_QUIET_WORD.found_in(before) and not loud)
    return Tone.HARMLESS if quiet else Tone.FAILURE


def _went_on(line: str, after: str) -> bool:
    """Whether one of the next lines says that the same thing worked in the end."""
    following = [text for text in after.splitlines() if text.strip()][:AFTER_LINES]
    if following and _TRIED_AGAIN.found_in(following[0]):
        return True
    told = [text for text in following if _RECOVERED.found_in(text)]
    return any(_words(line) & _words(text) for text in told)


def _words(text: str) -> frozenset[str]:
    return frozenset(word.lower() for word in _WORD.findall(text)) - _COMMON_WORDS
