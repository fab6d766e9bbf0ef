"""How far the output of a right kernel may be from the reference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fractune_core.targets import TF32
from fractune_workers.children.tvm_api.numerics.half_precision import UNIT_ROUNDOFFS

_TOLERANCES = {"float32": 1e-3, "float64": 1e-6}
"""By type: a schedule may add up in another order. Other types must agree exactly."""
_TF32 = 2.0**-9
"""Both factors of a product lose up to 2^-10 of themselves when they are truncated to TensorFloat-32."""
_SUMMED = 3.0
"""Roundings of a sum in half precision, over the root of its number of terms. `K` random roundings add up to the
root of `K` of them."""
_ELSE = 12.0
"""Roundings of all else that an operator computes, in units of its largest value."""
_SUMS = 5


def allowed(described: Sequence[Any], reference: Any) -> float:
    """Largest difference of a right output, over the largest value of the reference, for an operator with these
    arguments (`traces.args_of`). Ties of a quantized output are apart from that (`quantized_outputs.py`).

    A sum of K terms in half precision may be off by 3 u sqrt(K) of the output's root mean square; u is the unit
    roundoff of the type.
    """
    output = described[-1]
    if len(output) <= _SUMS:
        return _TOLERANCES.get(output[1], 0.0)
    narrow, terms = output[_SUMS]
    if narrow == TF32:
        return _TF32
    return UNIT_ROUNDOFFS[narrow] * max(_ELSE, _SUMMED * math.sqrt(terms) * _rms_over_largest(reference))


def _rms_over_largest(array: Any) -> float:
    """Root mean square of the finite values, over the largest."""
    finite = array[np.isfinite(array)].astype("float32")
    largest = np.abs(finite).max(initial=0.0)
    return math.sqrt(np.square(finite / largest).mean()) if largest else 0.0
