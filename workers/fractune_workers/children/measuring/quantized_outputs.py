"""Validation of operators that quantize their output: their scale, and the rule for ties.

Right kernels may add up in different orders, so a value differs in its last bits before it is rounded. Near the middle
of two steps it is then rounded to the other one. So this is the rule of ties: **at most 1 % of the values, and one in
any case, may lie one step from the reference's. All other values must agree as those of any operator.** A wrong kernel
moves more values, or moves them further.

That takes values that spread over the steps. With a random scale, all values may be rounded to 0 or lie beyond the
limits, and a wrong kernel would agree. So the scale is set such that the largest value of the reference lies a little
beyond the limits.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fractune_core.targets import TF32
from fractune_workers.children.tvm_api.arrays import HIGH, LIMITS, QUANTIZED, SCALE, STEP, UNIT_ROUNDOFFS, difference

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


MOST_TIES = 0.01
"""of the values of an output"""
_FINE = 2.0**-20
"""a scale with which hardly any value is rounded to 0"""
_FAR = 1e30
"""a limit that no number reaches"""
_BEYOND = 1.25
"""the largest number over the limit"""


@dataclass(frozen=True)
class Difference:
    """An output compared with the reference."""

    max_error: float
    """largest difference over the reference's largest value"""
    beyond_ties: float
    """the same without ties that the rule allows"""
    steps: int
    """largest difference in steps of a quantized output; 0 for another output"""
    moved: float
    """part of the values of a quantized output that differ by a step or more"""


def compared(outputs: Sequence[Any], references: Sequence[Any], step: float) -> Difference:
    """All arguments as a kernel and the reference left them; the last one is the output. `step`: as of `step_of`."""
    before = max(map(difference, outputs[:-1], references[:-1]), default=0.0)
    output, reference = outputs[-1], references[-1]
    plain = difference(output, reference)
    if not step or not 0.0 < plain < math.inf:
        return Difference(max(before, plain), max(before, plain), 0, 0.0)
    steps = np.round(np.abs(output.astype("float64") - reference) / step)
    most, moved = int(steps.max()), int(np.count_nonzero(steps))
    beyond = plain
    if most == 1 and moved <= max(1, MOST_TIES * steps.size):
        beyond = difference(np.where(steps, reference, output), reference)
    return Difference(max(before, plain), max(before, beyond), most, moved / steps.size)


def step_of(described: Sequence[Any], contents: Sequence[Any]) -> float:
    """The step of the output of an operator with these arguments; 0 where it is not quantized."""
    if not _places(described, QUANTIZED):
        return 0.0
    return math.prod(float(contents[place].item()) for place in _places(described, STEP))


def calibrated(described: Sequence[Any], contents: Sequence[Any], run: Callable[[list[Any]], Any]) -> dict[int, Any]:
    """A scale for which the values spread over the steps, by its place. Empty for an operator without a scale and
    limits among its arguments. `run`: the output of the reference for such contents.
    """
    scales = _places(described, SCALE)
    limits = {place: limit for role, limit in LIMITS.items() for place in _places(described, role)}
    if not scales or not limits:
        return {}
    (place,) = scales
    wide = {at: math.copysign(_FAR, limit) for at, limit in limits.items()} | {place: _FINE}
    tried = [np.full_like(each, wide[at]) if at in wide else each for at, each in enumerate(contents)]
    numbers = np.abs(run(tried).astype("float64")) / step_of(described, tried)
    largest = float(numbers.max(initial=0.0, where=np.isfinite(numbers))) * _FINE
    scale = largest / (_BEYOND * LIMITS[HIGH])
    return {place: np.full_like(contents[place], scale)} if scale > 0 else {}


def _places(described: Sequence[Any], role: str) -> list[int]:
    return [at for at, (_, _, _, *more) in enumerate(described) if more[1:] and role in more[1]]
