"""Logs as they come, made searchable: encodings, colours, NULs, carriage returns, prefixes, escapes.

:func:`chunks` turns a byte stream into pieces of whole lines without looking at single lines, because a gigabyte passes
through it; what is costly (:func:`body`, :func:`plain`) is for the few lines that hold a candidate.
"""

from __future__ import annotations

import codecs
import io
import re
from importlib import import_module
from typing import TYPE_CHECKING, BinaryIO, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

CHUNK_BYTES = 256 << 10
LINE_LIMIT_BYTES = 4096
_KNOWN_CODES = 12
_OVERLAP_BYTES = LINE_LIMIT_BYTES
_PACKERS = {b"\x1f\x8b": "gzip", b"BZh": "bz2", b"\xfd7zXZ\x00": "lzma"}
_BINARY = (b"\x7fELF", b"PK\x03\x04", b"\x89PNG\r", b"%PDF-", b"SQLite format 3\0", b"\xff\xd8\xff", b"MZ\x90\0")
_CONTROLS = bytes(code for code in range(32) if code not in b"\0\a\b\t\n\v\f\r\x1b") + b"\x7f"
_ZSTD = b"\x28\xb5\x2f\xfd"
_BOMS = (
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
# CSI and OSC sequences, two-character escapes, and a bare ESC.
_ANSI = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[()][0-9A-B]|[@-Z\\-_=>])?")
_ESCAPED = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))")
_NAMED = {"n": " ", "t": " ", "r": " "}
_TYPOGRAPHY = str.maketrans("‘’‚‛“”„´‐‑–—\u00a0\u200b\ufeff", "''''\"\"\"'---- \u200b\u200b")
_SPACES = re.compile(r"\s+")


class Packed(OSError):
    """The stream is compressed in a way that we cannot read, or torn."""


class _Unpacked:
    """What a gzip, bzip2 or xz stream holds; all that may be wrong with one is raised as :class:`Packed`."""

    def __init__(self, packed: BinaryIO, module: str) -> None:
        library = import_module(module)
        self._stream, self._kind = library.open(packed, "rb"), module
        self._errors = (OSError, EOFError, import_module("zlib").error, getattr(library, "LZMAError", OSError))

    def read(self, size: int = -1, /) -> bytes:
        """The next bytes."""
        try:
            data: bytes = self._stream.read(size)
        except self._errors as error:
            raise Packed(f"broken {self._kind} data: {error}") from error
        return data


class Bytes(Protocol):
    """A stream as far as it is needed here."""

    def read(self, size: int = -1, /) -> bytes:
        """The next bytes; none at the end."""


def unpacked(raw: BinaryIO) -> Bytes:
    """``raw``, or what it holds if it is gzip, bzip2 or xz. Raises :class:`Packed` for zstd."""
    peekable = io.BufferedReader(raw) if isinstance(raw, io.RawIOBase) else raw
    start = peekable.peek(8)[:8] if isinstance(peekable, io.BufferedReader) else b""
    if start.startswith(_ZSTD):
        raise Packed("compressed with zstd; pipe it: zstdcat FILE | gpucheck explain -")
    for magic, module in _PACKERS.items():
        if start.startswith(magic):
            return _Unpacked(peekable, module)
    return peekable


def chunks(stream: Bytes) -> Iterator[tuple[bytes, int]]:
    """Pieces of the stream as UTF-8 without escapes and NULs, each ending with a line where lines are not endless.

    With each piece comes the number of its leading bytes that the piece before it held too (only within endless lines).
    """
    rest, shown, bare = b"", 0, _Bare()
    for piece in _decoded(stream):
        data = rest + piece if rest else piece
        end = data.rfind(b"\n") + 1
        if not end and len(data) < CHUNK_BYTES:
            rest = data
            continue
        end = end or len(data)
        yield bare(data[:end]), shown
        shown = 0 if data.endswith(b"\n", 0, end) else min(_OVERLAP_BYTES, end)
        rest = data[end - shown :]
    if len(rest) > shown:
        yield bare(rest), shown


def is_binary(start: bytes) -> bool:
    """Whether what begins so is a program, an archive, an image: no log, however broken its encoding."""
    sample = start[:4096]
    if sample.startswith(_BINARY):
        return True
    text = b"" if _encoding(sample) else sample.replace(b"\0", b"")
    # A log's own controls are few: ends of lines, tabs, bells, backspaces, escapes.
    return len(text) - len(text.translate(None, _CONTROLS)) > max(3, len(text) / 20)


def _decoded(stream: Bytes) -> Iterator[bytes]:
    data = stream.read(CHUNK_BYTES)
    encoding = _encoding(data)
    if encoding is None:
        while data:
            yield data
            data = stream.read(CHUNK_BYTES)
        return
    decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
    while data:
        yield decoder.decode(data).encode("utf-8", errors="replace")
        data = stream.read(CHUNK_BYTES)


def _encoding(start: bytes) -> str | None:
    """The wide encoding of a text that starts so, by its mark or where its NULs stand; None for bytes as they are."""
    for mark, name in _BOMS:
        if start.startswith(mark):
            return name
    sample = start[:4096]
    odd, even = sample[1::2].count(0), sample[::2].count(0)
    if odd > 0.4 * len(sample) / 2 and even < odd / 8:
        return "utf-16-le"
    return "utf-16-be" if even > 0.4 * len(sample) / 2 and odd < even / 8 else None


class _Bare:
    """Takes escape sequences and NULs out of pieces of one log."""

    def __init__(self) -> None:
        self._codes: list[bytes] = []

    def __call__(self, data: bytes) -> bytes:
        """The piece without them."""
        if b"\x1b" in data:
            data = self._without_codes(data)
        return data.replace(b"\0", b"") if b"\0" in data else data

    def _without_codes(self, data: bytes) -> bytes:
        # A log uses few codes, over and over: taking out the known ones is several times faster than the pattern.
        for code in self._codes:
            data = data.replace(code, b"")
        if b"\x1b" not in data:
            return data
        if len(self._codes) < _KNOWN_CODES:
            new = dict.fromkeys(code for code in _ANSI.findall(data) if len(code) > 1)
            self._codes += list(new)[: _KNOWN_CODES - len(self._codes)]
        return _ANSI.sub(b"", data)


_TAG = (
    r"\[?rank\s?\d+\]?:?|\[default\d+\]:|\[\d+,\d+\]<std(?:out|err)>:|\d{1,4}:(?=\s)|\([\w.-]+ (?:pid|rank)=[^)]*\)"
    r"|\[pod/[^\]]+\]|[\w.-]+\s+\|(?=\s)|\[[\w.-]+\]:?(?=\s)"
)
_STAMP = (
    r"\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?|\[\d{4}-\d\d-\d\d[T ][^\]]{5,30}\]"
    r"|[A-Z][a-z]{2}\s+\d{1,2} \d\d:\d\d:\d\d(?: [\w.-]+ [\w./-]+(?:\[\d+\])?:)?"
    r"|\[\s*\d+\.\d{3,6}\]|\d\d:\d\d:\d\d(?:[.,]\d+)?"
    r"|[IWEF]\d{4} \d\d:\d\d:\d\d\.\d+\s+\d+ \S+\]|\[?[IWE]\d{6} [^\]]{5,60}\]|std(?:out|err) [FP]"
)
_LEVEL = r"\[?(?:TRACE|DEBUG|INFO|NOTICE|WARN(?:ING)?|ERROR|CRITICAL|FATAL)\]?:?(?=\s)"
_LEADS = re.compile(rf"\s*(?:(?P<tag>{_TAG})|{_STAMP}|{_LEVEL}|[│|>❱-](?=\s))\s*")


def body(line: str) -> tuple[str, str]:
    """A line without what containers, launchers and loggers put before it; and who said it (rank, pod), if it does."""
    at, tag = 0, ""
    for _ in range(8):
        found = _LEADS.match(line, at)
        if not found:
            break
        tag += found["tag"] or ""
        at = found.end()
    return line[at:].rstrip().removesuffix("│").rstrip(), tag


def plain(text: str) -> str:
    """The text with escapes of JSON and HTML undone, a keyboard's quotes and dashes, and single spaces."""
    if "&" in text:
        from html import unescape

        text = unescape(text)
    if "\\" in text:
        text = _ESCAPED.sub(_unescape, text)
    if not text.isascii():
        text = text.translate(_TYPOGRAPHY).replace("\u200b", "")
    return _SPACES.sub(" ", text) if "  " in text or "\t" in text else text


def _unescape(found: re.Match[str]) -> str:
    if found[1]:
        return chr(int(found[1], 16))
    return _NAMED.get(found[2], found[2])
