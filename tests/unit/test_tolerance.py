"""Tolerances by type."""

from __future__ import annotations

from itertools import pairwise

from gpucheck.judgement.tolerance import TOLERANCES, as_args


def test_float32_is_never_past_a_thousandth_of_the_largest() -> None:
    """The cap for float32 is a rule of the project."""
    assert TOLERANCES["float32"].cap == 1e-3


def test_narrower_types_are_allowed_more() -> None:
    """Each of the three numbers grows as precision falls."""
    rows = [TOLERANCES[name].as_args() for name in ("float64", "float32", "float16", "bfloat16")]
    for finer, coarser in pairwise(rows):
        assert all(0 < finer[part] < coarser[part] or part == "rtol" for part in finer)
        assert finer["rtol"] < coarser["rtol"]


def test_a_payload_gets_plain_numbers() -> None:
    """The table goes to the other side as JSON."""
    assert as_args()["float32"] == {"atol": 1e-5, "rtol": 1e-4, "cap": 1e-3}
