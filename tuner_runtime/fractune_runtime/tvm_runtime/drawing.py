"""Inputs that are drawn for a model: at random, of ranges that it takes, and such that its outputs say most."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import islice, product
from typing import TYPE_CHECKING

from fractune_core.agreement import blank_outputs
from fractune_core.errors import BadRequest, FractuneError
from fractune_core.model_inputs import is_mask
from fractune_runtime.tvm_runtime.tensors import Array, TensorSpec, numpy_dtype

if TYPE_CHECKING:
    import numpy as np


def random_inputs(specs: Sequence[TensorSpec], seed: int = 0) -> dict[str, Array]:
    """As `drawn_inputs`. Raises BadRequest if the memory is too small for them."""
    try:
        return drawn_inputs(specs, seed)
    except MemoryError as error:
        expected = ", ".join(map(str, specs))
        raise BadRequest(f"no memory for random inputs ({error}); give {expected} of your own") from error


def drawn_inputs(specs: Sequence[TensorSpec], seed: int = 0) -> dict[str, Array]:
    """Numbers within the range of their spec, else between 0.1 and 1; a mask is all ones. Integers, which may be
    indices, are else 0 or 1. Raises MemoryError.
    """
    import numpy as np

    rng = np.random.default_rng(seed)
    return {spec.name: _random_array(rng, spec) for spec in specs}


def _random_array(rng: np.random.Generator, spec: TensorSpec) -> Array:
    import numpy as np

    dtype, shape = numpy_dtype(spec.dtype), [dim for dim in spec.shape if dim is not None]
    if is_mask(spec.name):
        return np.ones(shape, dtype)
    if spec.is_float:
        low, high = (spec.within.start, spec.within.stop - 1) if spec.within else (0.1, 1.0)
        return rng.uniform(low, high, size=shape).astype(dtype)
    within = spec.within or range(2)
    return rng.integers(within.start, within.stop, size=shape).astype(dtype)


_SMALL = ("int8", "uint8")
"""types of data, rather than of ids"""
_HIGHS = (1000, 100, 10, 2)
"""Integers of unknown meaning are drawn below the first of these that the model takes"""
_MOST_STARTS = 32
_FEW = 8
"""elements of an input that may be a threshold, a length or a rate rather than data"""
_RUNGS = (range(1), range(1, 11), range(10, 101), range(100, 1001), range(1000, 10001), range(16000, 16001))
"""ranges that are tried for such an input; the last is the usual rate of speech"""
_DATA = (range(256), range(11))
"""tried for other data than that: pixels, and ids that are written as floats"""
_DRAWS = 2
"""of each way to draw"""
_MOST_WAYS, _DRAWING_S = 64, 10.0


def typical_inputs(specs: Sequence[TensorSpec], within: Mapping[str, range], seed: int = 0) -> dict[str, Array]:
    """As `random_inputs`, of these ranges by input."""
    return random_inputs([replace(spec, within=within.get(spec.name)) for spec in specs], seed)


def accepted_integers(
    specs: Sequence[TensorSpec], run: Callable[[dict[str, Array]], Sequence[Array]]
) -> dict[str, range]:
    """By input of integers, such as ids of words: a range that the model takes. All of it are rows of the input's table
    or places on the axis that it indexes, wherever in the model that happens. It is 0 alone for the number of the one
    image of a batch, and begins with 1 where the model refuses zeros, as for a size.

    `run` gives NaN for a look-up outside of a table, or raises FractuneError. Outputs of integers do not show that:
    then no input is named, and none where the model refuses zeros and ones.
    """
    whole = [spec.name for spec in specs if "int" in spec.dtype and spec.dtype not in _SMALL and not is_mask(spec.name)]
    found: dict[str, range] = {}

    def accepts(changed: Mapping[str, range]) -> bool:
        return _are_rows(run, typical_inputs(specs, {**found, **changed}))

    starts = (dict(zip(whole, each, strict=True)) for each in product((range(1), range(1, 2)), repeat=len(whole)))
    found = next((start for start in islice(starts, _MOST_STARTS) if whole and accepts(start)), {})
    for name, start in found.items():
        for high in _HIGHS:
            # The last of the range at each place: places may index axes of different lengths.
            last = range(high - 1, high)
            if high > start.stop and accepts({name: last}) and accepts({name: range(start.start, high)}):
                found[name] = range(start.start, high)
                break
    return found


def telling_ranges(
    specs: Sequence[TensorSpec], run: Callable[[dict[str, Array]], Sequence[Array]], within: Mapping[str, range]
) -> dict[str, range]:
    """The ranges, and those of other inputs with which the outputs say most (`blank_outputs`). Nothing else is drawn if
    all outputs say something between 0.1 and 1. `run` raises FractuneError for inputs that it refuses.
    """
    end_s = time.monotonic() + _DRAWING_S

    def blanks(drawn: Mapping[str, range]) -> float:
        """Of all runs together, and of each."""
        try:
            runs = [run(typical_inputs(specs, drawn, seed)) for seed in range(_DRAWS)]
        except FractuneError:
            return math.inf
        return sum(len(blank_outputs(each)) for each in (runs, *([one] for one in runs)))

    best = dict(within)
    fewest = blanks(best)
    floats = [spec for spec in specs if spec.is_float and not is_mask(spec.name) and spec.name not in within]
    rungs = [_RUNGS if math.prod(dim or 0 for dim in spec.shape) <= _FEW else _DATA for spec in floats]
    for each in islice(product(*((None, *ranges) for ranges in rungs)), 1, _MOST_WAYS):
        if not fewest or time.monotonic() > end_s:
            break
        drawn = {**within, **{spec.name: found for spec, found in zip(floats, each, strict=True) if found}}
        if (count := blanks(drawn)) < fewest:
            best, fewest = drawn, count
    return best


def changed(inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Other inputs, of numbers that the model takes as well: the same ones in another order, and floats half as large.
    Masks stay.
    """
    import numpy as np

    rng = np.random.default_rng(0)

    def moved(name: str, array: Array) -> Array:
        if is_mask(name):
            return array
        other = rng.permutation(array.ravel()).reshape(array.shape)
        return other if array.dtype.kind in "biu" else (other / 2).astype(array.dtype)

    return {name: moved(name, array) for name, array in inputs.items()}


def _are_rows(run: Callable[[dict[str, Array]], Sequence[Array]], inputs: dict[str, Array]) -> bool:
    import numpy as np

    try:
        floats = [each.astype("float64") for each in run(inputs) if each.dtype.kind not in "iub"]
    except FractuneError:
        return False
    return bool(floats) and all(np.isfinite(each).all() for each in floats)
