"""How far the output of a right kernel may be from the reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fractune_core.targets import TF32
from fractune_workers.children.tvm_api.numerics.half_precision import UNIT_ROUNDOFFS

_TOLERANCES = {"float32": 1e-3, "float64": 1e-6}
"""By type: a schedule may add up in another order. Other types must agree exactly."""
_TF32 = 2.0**-9
"""Both factors of a product lose up to 2^-10 of themselves when they are truncated to TensorFloat-32."""
_ROUNDINGS = 12.0
"""Of an operator in half precision, in units of its largest value. Its sums are in float32."""
_ROUNDED_TO = 5
"""place of the type that an output is rounded to, in its description"""


def allowed(described: Sequence[Any]) -> float:
    """Largest difference of a right output, over the largest value of the reference, for an operator with these
    arguments (`traces.args_of`). Ties of a quantized output are apart from that (`quantized_outputs.py`).
    """
    output = described[-1]
    if len(output) <= _ROUNDED_TO:
        return _TOLERANCES.get(output[1], 0.0)
    (narrow,) = output[_ROUNDED_TO]
    return _TF32 if narrow == TF32 else _ROUNDINGS * UNIT_ROUNDOFFS[narrow]
