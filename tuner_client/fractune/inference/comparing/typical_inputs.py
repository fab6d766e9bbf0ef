"""Inputs as a model may get them, though nothing is known of its data: masks of ones, and ids of its tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from fractune.inference.tvm_runtime.tensors import TensorSpec, random_inputs
from fractune_core.errors import BadModel
from fractune_core.model_inputs import HIGHS, is_mask

if TYPE_CHECKING:
    from fractune.inference.tvm_runtime.tensors import Array

_SMALL = ("int8", "uint8")
"""types of data, rather than of ids"""


def typical_inputs(specs: Sequence[TensorSpec], highs: Mapping[str, int], seed: int = 0) -> dict[str, Array]:
    """Numbers between 0.1 and 1; a mask is all ones. Integers lie below the input's number in `highs`, else they are 0
    or 1.
    """
    import numpy as np

    rng = np.random.default_rng(seed)
    made = random_inputs(specs, seed)
    for name, array in made.items():
        if is_mask(name):
            array[...] = 1
        elif name in highs:
            array[...] = rng.integers(0, highs[name], array.shape)
    return made


def highest_integers(specs: Sequence[TensorSpec], run: Callable[[dict[str, Array]], Sequence[Array]]) -> dict[str, int]:
    """By input of integers, such as ids of words: the largest of some numbers below which all are rows of its table.
    It is 1 where only zeros are, as the number of the one image of a batch.

    `run` gives NaN for a look-up outside of a table, or raises BadModel. Outputs of integers do not show that: then no
    input is named.
    """
    whole = [spec.name for spec in specs if "int" in spec.dtype and spec.dtype not in _SMALL and not is_mask(spec.name)]
    *highs, zeros_only = HIGHS
    found = dict.fromkeys(whole, zeros_only)
    if not whole or not _are_rows(run, typical_inputs(specs, found)):
        return {}
    for name in whole:
        fitting = (high for high in highs if _are_rows(run, typical_inputs(specs, {**found, name: high})))
        found[name] = next(fitting, zeros_only)
    return found


def _are_rows(run: Callable[[dict[str, Array]], Sequence[Array]], inputs: dict[str, Array]) -> bool:
    import numpy as np

    try:
        floats = [each.astype("float64") for each in run(inputs) if each.dtype.kind not in "iub"]
    except BadModel:
        return False
    return bool(floats) and all(np.isfinite(each).all() for each in floats)
