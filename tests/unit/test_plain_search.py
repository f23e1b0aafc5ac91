"""Literals are found alike with and without the fast matcher."""

from __future__ import annotations

from ahocorasick_rs import BytesAhoCorasick
from hypothesis import given
from hypothesis import strategies as st

from gpucheck.diagnose.plain import PlainSearch

WORDS = st.lists(st.binary(min_size=1, max_size=3), min_size=1, max_size=6, unique=True)


@given(literals=WORDS, haystack=st.binary(max_size=40))
def test_it_finds_what_the_fast_matcher_finds(literals: list[bytes], haystack: bytes) -> None:
    """Every match, overlapping ones too, in the order of their ends."""
    alphabet = bytes(b % 3 for b in haystack)
    literals = sorted({bytes(b % 3 for b in literal) for literal in literals})
    plain = PlainSearch(literals).find_matches_as_indexes(alphabet, overlapping=True)
    fast = BytesAhoCorasick(literals).find_matches_as_indexes(alphabet, overlapping=True)
    assert sorted(plain) == sorted(fast)
    assert [end for _, _, end in plain] == [end for _, _, end in fast]
