"""Calls that copy nothing: a model reads and writes arrays that stay."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from fractune.inference.tvm_runtime.tensors import (
    TensorSpec,
    array_of,
    as_array,
    as_tensor,
    check_tensors,
    obstacles,
    readable,
)
from fractune_core.errors import BadRequest

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


class BoundMemory:
    """Arrays for all inputs and outputs; those that are not given are made. It holds them, so that none is freed.

    Raises BadRequest for an array of another type or shape, in memory that compiled code cannot use in place, or that
    overlaps an output. Raises it also for an output whose shape depends on the data.
    """

    def __init__(
        self,
        inputs: Sequence[TensorSpec],
        given_inputs: Mapping[str, Any] | None,
        outputs: Sequence[TensorSpec],
        given_outputs: Mapping[str, Any] | None,
    ) -> None:
        for spec in outputs:
            if None in spec.shape:
                raise BadRequest(f"output {spec} has a shape that depends on the data; it cannot be bound: use run")
        takes = _given("input", inputs, given_inputs, "takes")
        gives = _given("output", outputs, given_outputs, "gives")
        self.arguments = [as_tensor(spec.name, takes[spec.name]) for spec in inputs]
        self.results = [as_tensor(spec.name, gives[spec.name]) for spec in outputs]
        names = [(f"input '{spec.name}'", tensor) for spec, tensor in zip(inputs, self.arguments, strict=True)]
        written = [(f"output '{spec.name}'", tensor) for spec, tensor in zip(outputs, self.results, strict=True)]
        _check_apart(names, written)
        self.inputs = {name: _array(value) for name, value in takes.items()}
        self.outputs = {name: _array(value) for name, value in gives.items()}
        self._held = [reference for value in (*takes.values(), *gives.values()) for reference in _holds(value)]


def _given(kind: str, specs: Sequence[TensorSpec], given: Mapping[str, Any] | None, verb: str) -> dict[str, Any]:
    """An array, or a tensor over memory of another library, for each of `specs`."""
    if not isinstance(given, Mapping | None):
        raise BadRequest(f"bind: {type(given).__name__} is not a mapping; give arrays by name, or none")
    values = {name: readable(f"{kind} '{name}'", value, None) for name, value in (given or {}).items()}
    named = [spec for spec in specs if spec.name in values]
    check_tensors(named if len(named) == len(values) else specs, values, verb)
    for name, value in values.items():
        found = obstacles(value)
        if found:
            raise BadRequest(
                f"bind: {kind} '{name}' cannot be used in place: its memory {' and '.join(found)}; leave it out, and "
                "bind makes an array"
            )
    return {spec.name: values[spec.name] if spec.name in values else array_of(spec) for spec in specs}


def _check_apart(inputs: Sequence[tuple[str, Any]], outputs: Sequence[tuple[str, Any]]) -> None:
    """Inputs may share memory with each other, but code may write an output before it has read all inputs."""
    pairs = [*combinations(outputs, 2), *((one, another) for one in inputs for another in outputs)]
    for (name, tensor), (other_name, other) in pairs:
        begin, other_begin = tensor.data_ptr(), other.data_ptr()
        if begin < other_begin + _bytes(other) and other_begin < begin + _bytes(tensor):
            raise BadRequest(f"{name} and {other_name} lie in the same memory; give each an array of its own")


def _bytes(tensor: Any) -> int:
    return int(as_array(tensor).nbytes)


def _array(value: Any) -> Array:
    array: Array = value if hasattr(value, "ctypes") else as_array(value)
    return array


def _holds(value: Any) -> Any:
    """Weak references to a NumPy array and those that it is a view of: NumPy does not resize an array that has one, so
    its memory stays where it is.
    """
    while hasattr(value, "ctypes"):
        yield weakref.ref(value)
        value = value.base
