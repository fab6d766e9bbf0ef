"""Calls that copy nothing: a model reads and writes arrays that stay."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from fractune.inference.tvm_runtime.bound_memory import BoundMemory

if TYPE_CHECKING:
    from fractune.inference.tvm_runtime.tensors import Array


class Bound:
    """A model with memory for its inputs and outputs, by `Model.bind`. Write into `inputs`, call `run`, and read
    `outputs`, which the next run overwrites. It holds the model and the arrays.

    Runs of one model come one at a time, in any thread. Threads that use the same arrays must agree on turns: each
    thread better has a `Bound` of its own. After `rematch` it runs the newly chosen variant.
    """

    inputs: Mapping[str, Array]
    """the arrays by name; their contents may change between runs"""
    outputs: Mapping[str, Array]
    """the arrays by name, as the last run has left them"""

    def __init__(self, memory: BoundMemory, run: Callable[[Sequence[Any], Sequence[Any]], None]) -> None:
        self._memory = memory
        self._run = run
        self.inputs = MappingProxyType(memory.inputs)
        self.outputs = MappingProxyType(memory.outputs)

    def run(self) -> None:
        """Compute the outputs from the present contents of the inputs."""
        self._run(self._memory.arguments, self._memory.results)
