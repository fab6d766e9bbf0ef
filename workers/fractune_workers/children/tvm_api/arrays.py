"""Arguments of operators: their roles and random contents; how far two arrays differ. TVM's
compiler is not needed.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fractune_core.agreement import differences
from fractune_runtime.tvm_runtime.tensors import numpy_dtype
from fractune_workers.children.tvm_api.processor import Processor

UNIT_ROUNDOFFS = {"float16": 2.0**-11, "bfloat16": 2.0**-8}
"""largest relative error of one rounding, by type"""
OPERAND = "operand"
"""role of an argument that a sum of products multiplies"""
SCALE, LOW, HIGH, STEP, QUANTIZED = "scale", "low", "high", "step", "quantized"
"""Roles of arguments: `clip(round(x / scale), low, high) * step` is the quantized output, or a part of it. There may be
several steps, and values are added.
"""
REFERENCE = "reference"
"""name of the untuned operator in float32, beside `main`"""
ANCHOR_SIZE, LOOP_SIZE = 128, 64
"""of the kernels that a measuring process on a CPU needs for itself (`compiled.py`)"""

LIMITS = {LOW: -128, HIGH: 127}
"""of quantized numbers, by the role of an argument"""


def random_args(args_info: list[Any], seed: int, processor: Processor) -> list[Any]:
    """Arguments with random contents on the processor, one description each (`traces.args_of`). Between bounds that
    are floats lie any numbers, and between other bounds whole ones.

    Indices are of the whole axis, other integers 0 or 1. Limits of quantized numbers are those of 8 bits: random ones
    would make all outputs equal, and hide a wrong kernel.

    Operands in half precision have both signs, and variance 1: sums of positive ones grow, and rounding then hides a
    lost part.
    """
    rng = np.random.default_rng(seed)
    return [processor.tensor(_random_array(rng, *described)) for _, *described in args_info]


def _random_array(
    rng: "np.random.Generator",  # NumPy loads this module where it is used
    dtype: str,
    shape: list[int],
    bounds: Sequence[Any] = (),
    roles: Sequence[str] = (),
    _rounded_to: Sequence[str] = (),
) -> Any:
    for role in roles:
        if role in LIMITS:
            return np.full(shape, LIMITS[role], numpy_dtype(dtype))
    if bounds and isinstance(bounds[0], float):
        return rng.uniform(bounds[0], bounds[1], size=shape).astype(numpy_dtype(dtype))
    if bounds:
        return rng.integers(bounds[0], bounds[1] + 1, size=shape).astype(numpy_dtype(dtype))
    if OPERAND in roles:
        centred = rng.random(shape, np.float32) - np.float32(0.5)  # half the time of normal ones
        return (centred * np.float32(math.sqrt(12))).astype(numpy_dtype(dtype))
    if dtype.startswith(("float", "bfloat")):
        return rng.uniform(0.1, 1.0, size=shape).astype(numpy_dtype(dtype))
    return rng.integers(0, 2, size=shape).astype(numpy_dtype(dtype))


def with_both_signs(described: Sequence[Any], contents: Sequence[Any]) -> list[Any]:
    """The arguments with another first one of those that are positive numbers of any size: its numbers have both signs.
    Behind a `Relu6`, sums of positive numbers are all 6, and the logarithm of x - 1 is NaN for all x below 1.
    """
    changed = list(contents)
    for at, (_, dtype, _, *more) in enumerate(described[:-1]):
        if dtype.startswith(("float", "bfloat")) and not any(more):
            changed[at] = ((contents[at].astype("float32") - 0.5) * 4).astype(contents[at].dtype)
            break
    return changed


def is_blank(output: Any) -> bool:
    """Whether all numbers are one, or none is finite: then equal outputs say nothing of a kernel."""
    numbers = output.astype("float64")
    return bool(output.size > 1 and ((numbers == numbers.flat[0]).all() or not np.isfinite(numbers).any()))


def difference(output: Any, reference: Any) -> float:
    """Largest difference of two arrays of one shape, over the largest value of `reference` (`least_scale` at least). It
    is infinite when only one of them has a NaN or an infinity at some place.
    """
    if np.array_equal(output, reference):  # equal inputs and weights are most of all arrays: 40 times as fast
        return 0.0
    return differences([output], [reference])[1]
