"""Memory for small inputs that stays: a call copies its arrays there, which takes less time than making tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from fractune.inference.tvm_runtime.tensors import TensorSpec, array_of, as_tensor, numpy_dtype

_MOST_BYTES = 1 << 16
"""of all inputs: a copy of them takes no longer than the tensors of one call"""


class KeptInputs:
    """The tensors of a model's inputs. Only one call at a time may use them."""

    def __init__(self, specs: Sequence[TensorSpec]) -> None:
        memory = [(spec.name, array_of(spec)) for spec in specs]
        self._checked = [(name, array, array.dtype, array.shape) for name, array in memory]
        self.tensors = [as_tensor(name, array) for name, array in memory]

    def fill(self, inputs: Any) -> bool:
        """Copy the inputs. Returns False for anything but a dict of NumPy arrays as the model takes them; then the
        memory may hold a part of them.
        """
        if type(inputs) is not dict or len(inputs) != len(self._checked):
            return False
        for name, memory, dtype, shape in self._checked:
            given = inputs.get(name)
            if type(given) is not type(memory) or given.shape != shape or given.dtype != dtype:
                return False
            memory[...] = given
        return True


def are_small(specs: Sequence[TensorSpec]) -> bool:
    """Whether copies of all inputs are worth keeping memory for them."""
    return sum(_bytes_of(spec) for spec in specs) <= _MOST_BYTES


def _bytes_of(spec: TensorSpec) -> int:
    return math.prod(dim or 0 for dim in spec.shape) * numpy_dtype(spec.dtype).itemsize
