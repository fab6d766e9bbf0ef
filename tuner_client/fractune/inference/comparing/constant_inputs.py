"""Inputs of an ONNX file that are constants in its bundle, as another runtime takes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fractune_core.model_inputs import fitting_shape, parse_numbers

if TYPE_CHECKING:
    from fractune.inference.tvm_runtime.tensors import Array


def constant_array(name: str, numbers: str, dtype: str, dims: Sequence[int | None]) -> Array:
    """The numbers of the input `name` as an array; None among `dims` is open. Raises BadRequest for numbers that do not
    fit.
    """
    import numpy as np

    given = parse_numbers(name, numbers, dtype)
    shape = fitting_shape(name, len(given), dims)
    array = np.asarray(given, dtype)
    return np.full(shape, array[0]) if len(array) == 1 else array.reshape(shape)
