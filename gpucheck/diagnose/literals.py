"""Which literal text must occur in any match of a pattern: what the multi-literal scan looks for.

A small reader of the regular expressions that entries use. It is careful in one direction only: text it returns is
required by the pattern; text it does not understand is left out. (The compiler of :mod:`re` could answer too, but that
part of it is private, and slow for a thousand patterns at every start.)
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache

LITERAL_FLOOR = 6

_TOKEN = re.compile(
    r"""(?P<escape>\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|.))
      | (?P<set>\[\^?\]?(?:\\.|[^\]\\])*\])
      | (?P<flags>\(\?[aiLmsux]+\))
      | (?P<open>\((?:\?(?:P<\w+>|[:>=!]|<[=!]|[aiLmsux-]+:))?)
      | (?P<close>\))
      | (?P<bar>\|)
      | (?P<repeat>[*+?][?+]?|\{\d*,?\d*\}[?+]?)
      | (?P<any>[.^$])
      | (?P<plain>[^\\\[\]().^$*+?{}|]+|.)""",
    re.VERBOSE | re.DOTALL,
)
# Where a message is quoted inside another text (JSON, HTML, a typographer's quotes) these are written differently.
_UNSTABLE = re.compile(r"""["'`\\&<>]|\s{2,}|[\t\n\r]|[^\x20-\x7e]""")


@dataclass(slots=True)
class _Branch:
    """What one alternative requires: sets of texts of which one must occur, and the run being read."""

    sets: list[frozenset[str]] = field(default_factory=list)
    run: list[str] = field(default_factory=list)
    letters: int = 0

    def end_run(self) -> None:
        if text := "".join(self.run):
            self.sets.append(frozenset({text}))
        self.run.clear()


@dataclass(frozen=True, slots=True)
class Required:
    """``texts``: one of them is in every match (empty: nothing is sure). ``letters``: fixed characters of a match."""

    texts: frozenset[str]
    letters: int


@cache
def required(pattern: str) -> Required:
    """What every match of ``pattern`` contains; the texts are the longest there are, free of quotes and wide gaps."""
    tokens = [(m.lastgroup or "", m.group()) for m in _TOKEN.finditer(pattern)]
    answer, _ = _alternatives(tokens, 0)
    return answer


def _alternatives(tokens: list[tuple[str, str]], at: int) -> tuple[Required, int]:
    branches = [_Branch()]
    while at < len(tokens) and tokens[at][0] != "close":
        kind, text = tokens[at]
        if kind == "bar":
            branches[-1].end_run()
            branches.append(_Branch())
        elif kind == "open":
            at = _group(branches[-1], tokens, at)
        else:
            _step(branches[-1], kind, text)
        at += 1
    branches[-1].end_run()
    return _either(branches), at


def _group(branch: _Branch, tokens: list[tuple[str, str]], at: int) -> int:
    """Reads the group that opens at ``at`` into ``branch``; the place of its closing bracket (or its repetition)."""
    looks_around = tokens[at][1][2:3] in {"=", "!", "<"}
    inner, end = _alternatives(tokens, at + 1)
    branch.end_run()
    repeated = tokens[end + 1][1] if end + 1 < len(tokens) and tokens[end + 1][0] == "repeat" else ""
    if not looks_around and not _may_be_absent(repeated):
        branch.letters += inner.letters
        if inner.texts:
            branch.sets.append(inner.texts)
    return end + 1 if repeated else end


def _step(branch: _Branch, kind: str, text: str) -> None:
    run = text if kind == "plain" else _escaped(text) if kind == "escape" else ""
    if run:
        branch.run.append(run)
        branch.letters += len(run) - run.count(" ")
        return
    if kind == "repeat" and branch.run and _may_be_absent(text):
        last = branch.run.pop()
        branch.run.append(last[:-1])
        branch.letters -= not last.endswith(" ")
    if kind != "flags":
        branch.end_run()


def _escaped(text: str) -> str:
    """The character that an escape stands for; empty for classes, anchors and back references."""
    body = text[1:]
    if len(body) > 1:
        return chr(int(body[1:], 16))
    return "" if body.isalnum() else body


def _may_be_absent(repeat: str) -> bool:
    return repeat[:1] in {"*", "?"} or repeat.startswith(("{0", "{,"))


def _either(branches: list[_Branch]) -> Required:
    best = [_best(branch.sets) for branch in branches]
    texts = frozenset().union(*best) if all(best) else frozenset()
    return Required(texts, min(branch.letters for branch in branches))


def _best(sets: list[frozenset[str]]) -> frozenset[str]:
    """The set whose shortest text is the longest, each text cut down to its longest stable piece."""
    best, best_key = frozenset[str](), (0, 0)
    for texts in sets:
        cut = frozenset(_stable(text) for text in texts)
        key = (min(map(len, cut)), -len(cut))
        if key[0] and key > best_key:
            best, best_key = cut, key
    return best


def _stable(text: str) -> str:
    """The longest piece that is written the same everywhere; all of the text where that is too short to look for."""
    if not _UNSTABLE.search(text):
        return text.strip()
    piece = max((piece.strip() for piece in _UNSTABLE.split(text)), key=len)
    return piece if len(piece) >= LITERAL_FLOOR or not text.isascii() else text.strip()
