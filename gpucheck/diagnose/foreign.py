"""Messages of the system in other languages: put into English, in which the patterns are written.

A number tells a message in every language (``[Errno 28]``); where there is none, glibc's and bash's Chinese is known.
"""

from __future__ import annotations

import re

_NUMBERED = {
    2: "No such file or directory",
    12: "Cannot allocate memory",
    13: "Permission denied",
    28: "No space left on device",
    110: "Connection timed out",
    111: "Connection refused",
}
_CHINESE = {
    "没有那个文件或目录": "No such file or directory",
    "无法分配内存": "Cannot allocate memory",
    "内存不足": "Not enough memory",
    "权限不够": "Permission denied",
    "设备上没有空间": "No space left on device",
    "连接超时": "Connection timed out",
    "连接被拒绝": "Connection refused",
    "拒绝连接": "Connection refused",
    "总线错误": "Bus error",
    "段错误": "Segmentation fault",
    "已杀死": "Killed",
    "核心已转储": "core dumped",
}
_NUMBER = re.compile(r"\[Errno (\d{1,3})\] ([^:\[\]]{1,80})")
_LINE = re.compile(r"[:：] ?第? ?行? ?(\d{1,6}) ?行?[:：] ?(?= )")
_WORDS = re.compile("|".join(map(re.escape, _CHINESE)))


def in_english(line: str) -> str:
    """``line`` with what the system says in it in English; the same text where there is nothing to change."""
    text = _NUMBER.sub(_by_number, line)
    if text.isascii() or not _WORDS.search(text):
        return text
    text = _LINE.sub(r": line \1: ", text) if "行" in text else text
    return _WORDS.sub(lambda match: _CHINESE[match.group()], text).replace("（", " (").replace("）", ")")


def _by_number(match: re.Match[str]) -> str:
    known = _NUMBERED.get(int(match[1]))
    return f"[Errno {match[1]}] {known}" if known and not match[2].startswith(known) else match.group()


def also(literal: str) -> list[str]:
    """What stands in a line, in other languages, whose English has ``literal`` (lower case) in it."""
    said = [(f"[errno {number}]", english) for number, english in _NUMBERED.items()] + list(_CHINESE.items())
    return [words for words, english in said if english.lower() in literal or literal in english.lower()]
