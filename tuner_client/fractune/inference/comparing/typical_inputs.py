"""Inputs as a model may get them, though nothing is known of its data: masks of ones, and ids of its tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from fractune.inference.tvm_runtime.tensors import TensorSpec, random_inputs

if TYPE_CHECKING:
    from fractune.inference.tvm_runtime.tensors import Array

_MASK = "mask"
_HIGHS = (1000, 100, 10)
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


def is_mask(name: str) -> bool:
    """Whether an input of this name says which positions are real."""
    return _MASK in name.lower()


def highest_integers(specs: Sequence[TensorSpec], run: Callable[[dict[str, Array]], Sequence[Array]]) -> dict[str, int]:
    """By input of integers, such as ids of words: the largest of some numbers below which all are rows of its table.
    `run` gives NaN for a look-up outside of a table.
    """
    found: dict[str, int] = {}
    for spec in specs:
        if "int" not in spec.dtype or spec.dtype in _SMALL or is_mask(spec.name):
            continue
        for high in _HIGHS:
            if are_finite(run(typical_inputs(specs, {**found, spec.name: high}))):
                found[spec.name] = high
                break
    return found


def are_finite(outputs: Sequence[Array]) -> bool:
    import numpy as np

    return all(np.isfinite(each.astype("float64")).all() for each in outputs)
