"""How far apart two answers of one computation may be, by type. Pure, a leaf; payloads get it as arguments.

``|a - b| <= min(atol + rtol * |ref|, cap * max|ref|)``, element by element. A relative error alone is useless near
zero; an absolute one alone passes anything when all outputs are small, which is what the cap is for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Tolerance:
    """``atol`` in units of the output; ``rtol`` a share of the element; ``cap`` a share of the largest element."""

    atol: float
    rtol: float
    cap: float

    def as_args(self) -> dict[str, float]:
        """As a payload takes it."""
        return {"atol": self.atol, "rtol": self.rtol, "cap": self.cap}


# float32: agreement of ONNX Runtime with PyTorch on CPU was measured at 1e-7 to 1e-6 for outputs of order 1; polygraphy
# allows 1e-5 + 1e-5 * |ref|. float16: a linear layer differs by 7e-4; torch.testing allows 1e-5 + 1e-3 * |ref|.
# bfloat16 has three bits less: torch.testing allows 1.6e-2 * |ref|. float64: torch.testing, 1e-7.
TOLERANCES: Mapping[str, Tolerance] = {
    "float64": Tolerance(1e-9, 1e-7, 1e-6),
    "float32": Tolerance(1e-5, 1e-4, 1e-3),
    "float16": Tolerance(1e-3, 1e-2, 1e-2),
    "bfloat16": Tolerance(1e-2, 2e-2, 5e-2),
}


def as_args() -> dict[str, dict[str, float]]:
    """The whole table as a payload takes it."""
    return {dtype: tolerance.as_args() for dtype, tolerance in TOLERANCES.items()}
