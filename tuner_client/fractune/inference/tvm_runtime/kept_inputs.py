"""Memory for inputs that stays. A copy of small arrays takes less time than making tensors. Large arrays seldom begin
where compiled code needs it, and new memory for their copies costs a page fault for each 4 KiB.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from operator import ge
from typing import Any

from fractune.inference.tvm_runtime.tensors import TensorSpec, array_of, as_tensor, fits, numpy_dtype

_SMALL_BYTES = 1 << 16
"""of all inputs: copies of them take no longer than the tensors of one call"""
_MOST_BYTES = 1 << 23
"""of all inputs: calls of several threads make larger copies side by side"""


class KeptInputs:
    """The memory of a model's inputs. Only one call at a time may use it."""

    def __init__(self, specs: Sequence[TensorSpec]) -> None:
        memory = [(spec.name, array_of(spec)) for spec in specs]
        self._kept = [(name, array, array.dtype, array.shape, as_tensor(name, array)) for name, array in memory]
        self._copies_all = _bytes_of(specs) <= _SMALL_BYTES

    def tensors(self, inputs: Any) -> list[Any] | None:
        """The inputs as tensors: copies, but of large inputs no copies where their own memory will do. None for
        anything but a dict of NumPy arrays as the model takes them; then the memory may hold a part of them.
        """
        if type(inputs) is not dict or len(inputs) != len(self._kept):
            return None
        tensors = []
        for name, memory, dtype, shape, tensor in self._kept:
            given: Any = inputs.get(name)
            if type(given) is not type(memory) or given.shape != shape or given.dtype != dtype:
                return None
            if self._copies_all or not fits(given):
                memory[...] = given
                tensors.append(tensor)
            else:
                tensors.append(as_tensor(name, given))
        return tensors

    def padded(self, inputs: Any, pad: Mapping[str, float]) -> list[Any] | None:
        """Copies of smaller inputs as tensors, followed along each axis by the input's number in `pad`, else 0. None as
        `tensors`.
        """
        if type(inputs) is not dict or len(inputs) != len(self._kept):
            return None
        for name, memory, dtype, shape, _ in self._kept:
            given: Any = inputs.get(name)
            if type(given) is not type(memory) or given.dtype != dtype or not _holds(shape, given.shape):
                return None
            memory[...] = pad.get(name, 0)
            memory[tuple(map(slice, given.shape))] = given
        return [tensor for *_, tensor in self._kept]


def _holds(shape: Sequence[int], smaller: Sequence[int]) -> bool:
    return len(shape) == len(smaller) and all(map(ge, shape, smaller))


def are_worth_keeping(specs: Sequence[TensorSpec]) -> bool:
    """Whether inputs of that size have memory that stays."""
    return _bytes_of(specs) <= _MOST_BYTES


def _bytes_of(specs: Sequence[TensorSpec]) -> int:
    return sum(math.prod(dim or 0 for dim in spec.shape) * numpy_dtype(spec.dtype).itemsize for spec in specs)
