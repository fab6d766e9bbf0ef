"""How far outputs may lie apart and still differ by rounding alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fractune.inference.tvm_runtime.tensors import Array

_HALF = {"float16": 2e-2, "bfloat16": 2e-2}
_ELSE = 1e-3


def rounding(outputs: Sequence[Array]) -> float:
    """The largest difference that counts as rounding, over the largest value of an output."""
    return max((_HALF.get(str(output.dtype), _ELSE) for output in outputs), default=_ELSE)
