"""A variant that runs by its plan: one call of its code calls all kernels, and no memory is allocated.

The arguments of all kernels are prepared when the code is loaded, in the layout of TVM's calling convention and of
DLPack. What a run changes is the addresses of inputs and outputs, if they are others than before. The entry for caches
moves all of these by some rows.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from fractune_core.files.plans import ARENA, Plan, plan_name
from fractune_runtime.tvm_runtime.runtime import CPU, lasting_bytes
from fractune_runtime.tvm_runtime.tensors import Array, CacheRows, TensorSpec, array_of, as_tensor, numpy_dtype

_DL_TENSOR = [
    ("data", "u8"), ("device", "i4", 2), ("dimensions", "i4"), ("code", "u1"), ("bits", "u1"), ("lanes", "u2"),
    ("shape", "u8"), ("strides", "u8"), ("offset", "u8"),
]  # fmt: skip
"""DLPack's tensor"""
_ANY = [("kind", "i4"), ("padding", "u4"), ("value", "u8")]
"""an argument of TVM's calling convention"""
_COUNT_BYTES = 8
_POINTS_TO_TENSOR = 7
"""TVM's number for such an argument"""
_TIMESPEC = [("s", "i8"), ("ns", "i8")]


def entry_of(code: Any, name: str) -> Callable[..., Any] | None:
    """A function of a module or of a virtual machine; None if it has none of this name. Beside bytecode, machine code
    lies in a module that the module imports.
    """
    try:
        found: Callable[..., Any] = code.get_function(name, query_imports=True)
    except AttributeError:
        return None
    return found


def read_plan(module: Any, entry: str) -> Plan | None:
    """The plan that code gives of an entry; None for an entry that it does not have. Raises ValueError."""
    give = entry_of(module, plan_name(entry))
    if give is None:
        return None
    text = ctypes.create_string_buffer(give(0))
    give(ctypes.addressof(text))
    return Plan.read(text.raw)


def check_parameters(plan: Plan, given: Sequence[Any]) -> None:
    """Raises ValueError unless these are the code's inputs, and after them its weights: kernels check no argument."""
    if len(plan.parameters) != len(given):
        raise ValueError(f"it takes {len(plan.parameters)} tensors, not {len(given)}")
    for number, (planned, found) in enumerate(zip(plan.parameters, given, strict=True)):
        if (planned.dtype, planned.shape) != (str(found.dtype), tuple(found.shape)):
            wanted, other = (f"{each.dtype}{list(each.shape)}" for each in (planned, found))
            raise ValueError(f"its tensor {number} is {wanted}, not {other}")


class Planned:
    """A variant's code with its arena, for the `weights` behind its inputs."""

    def __init__(self, entry: Callable[..., Any], plan: Plan, weights: Sequence[Any]) -> None:
        self.plan = plan
        self.weights = weights
        self.cached: Any = None
        """as of `Called`"""
        self.last: Planned | None = None
        """of a `cached` variant: as the variant, with an output for one token alone"""
        self.main = entry
        """takes the address of prepared arguments, and one for times or 0"""
        inputs = len(plan.parameters) - len(weights)
        if inputs < 0:
            raise ValueError(f"it takes {len(plan.parameters)} tensors, and there are {len(weights)} weights")
        self._arena = lasting_bytes(plan.arena_bytes)
        for constant in plan.constants:
            held = bytes.fromhex(constant.hex)
            self._arena[constant.offset : constant.offset + len(held)] = memoryview(held)
        begins = [0] * (1 + len(plan.parameters) + len(plan.outputs))
        begins[ARENA] = self._arena.ctypes.data
        begins[1 + inputs : 1 + len(plan.parameters)] = [each.data_ptr() for each in weights]
        self._moving = [*range(1, 1 + inputs), *range(1 + len(plan.parameters), len(begins))]
        """the places of inputs and outputs"""
        self._begins = begins
        self._layout = _Layout(plan, begins, self._moving)
        self._specs = [TensorSpec("output", each.dtype, each.shape) for each in plan.outputs]
        self._outputs: list[Array] = []
        """those of `held`, which is called for variants that serve"""
        self._output_begins: list[int] = []
        self._own = _Arguments(self._layout)
        self._clock = 0

    def check(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> None:
        """Raises ValueError unless the code takes these inputs and the weights, and gives these outputs."""
        check_parameters(self.plan, [*inputs, *self.weights])
        if len(self.plan.outputs) != len(outputs):
            raise ValueError(f"it gives {len(self.plan.outputs)} tensors, not {len(outputs)}")
        for planned, spec in zip(self.plan.outputs, outputs, strict=True):
            if planned.dtype != spec.dtype or not spec.has_shape(planned.shape):
                made, wanted = (f"{each.dtype}{list(each.shape)}" for each in (planned, spec))
                raise ValueError(f"it gives the output '{spec.name}' as {made}, not {wanted}")

    def run(self, arguments: Sequence[Any]) -> list[Any]:
        """The outputs as tensors in memory of their own."""
        outputs = [as_tensor("output", array_of(spec)) for spec in self._specs]
        self._own.point([each.data_ptr() for each in (*arguments, *outputs)])
        self.main(self._own.address, self._clock)
        return outputs

    def held(self, arguments: Sequence[Any]) -> list[Array]:
        """The outputs in memory that the next call overwrites."""
        if not self._outputs:
            self._outputs = [_lasting_array(spec) for spec in self._specs]
            self._output_begins = [each.ctypes.data for each in self._outputs]
        self._own.point([*[each.data_ptr() for each in arguments], *self._output_begins])
        self.main(self._own.address, self._clock)
        return self._outputs

    def bound(self, arguments: Sequence[Any], outputs: Sequence[Any]) -> Callable[..., None]:
        """Computes the outputs in these tensors. The caller keeps their memory. With caches, the function takes the
        number of the row with which all of them begin, and the number of the token that an output is for.
        """
        layout = self._layout if not self.plan.caches else self._with_rows(arguments)
        main, prepared = self.main, _Arguments(layout)
        prepared.point([each.data_ptr() for each in (*arguments, *outputs)])

        counts, tokens = (
            [self._arena[offset : offset + _COUNT_BYTES].view("int64") for offset in offsets]
            for offsets in (self.plan.unused, self.plan.tokens)
        )

        def run() -> None:
            main(prepared.address, 0)

        def run_at(first: int, token: int = 0) -> None:
            prepared.move(first)
            for count in counts:
                count[0] = -first
            for number in tokens:
                number[0] = token
            main(prepared.address, 0)

        return run_at if self.plan.caches else run

    def _with_rows(self, arguments: Sequence[Any]) -> _Layout:
        """The layout for the buffers among the arguments. Raises ValueError for another one."""
        buffers = {each.parameter: arguments[each.parameter] for each in self.plan.caches}
        for each in self.plan.caches:
            buffer, planned = buffers[each.parameter], self.plan.parameters[each.parameter]
            if not isinstance(buffer, CacheRows) or not buffer.holds(planned.dtype, planned.shape, each.axis):
                raise ValueError(f"its cache is {planned.dtype}{list(planned.shape)}, not {buffer}")
        return _Layout(self.plan, self._begins, self._moving, {at: each.rows for at, each in buffers.items()})

    def clocked(self, run: Callable[[], Any]) -> Iterator[tuple[str, float]]:
        """The name and the seconds of each call in `run`, which is one inference by this variant."""
        import numpy as np

        times = np.zeros(len(self.plan.calls) + 1, _TIMESPEC)
        self._clock = times.ctypes.data
        try:
            run()
        finally:
            self._clock = 0
        moments = zip(times["s"].tolist(), times["ns"].tolist(), strict=True)
        spent = ((end[0] - begin[0]) + (end[1] - begin[1]) * 1e-9 for begin, end in pairwise(moments))
        return zip((call.kernel for call in self.plan.calls), spent, strict=True)


def _lasting_array(spec: TensorSpec) -> Array:
    dtype = numpy_dtype(spec.dtype)
    shape = [dim for dim in spec.shape if dim is not None]
    size = dtype.itemsize
    for dim in shape:
        size *= dim
    array: Array = lasting_bytes(size).view(dtype).reshape(shape)
    return array


class _Layout:
    """The tensors of a plan and the arguments of its calls. Places begin at the addresses `begins`; those of
    `moving` places are given later. `rows`: those of each cache, by its parameter.
    """

    def __init__(
        self, plan: Plan, begins: Sequence[int], moving: Sequence[int], rows: Mapping[int, int] | None = None
    ) -> None:
        import numpy as np
        import tvm_ffi

        axes = {ARENA + 1 + each.parameter: each.axis for each in plan.caches}
        lengths = {ARENA + 1 + at: length for at, length in (rows or {}).items()}
        shapes = [_with_rows(each.shape, axes.get(each.place), lengths.get(each.place)) for each in plan.tensors]
        sizes = [size for shape in shapes for size in (*shape, *_strides(shape))]
        self.sizes = np.array(sizes or [0], np.int64)
        """the shape and the strides of each tensor"""
        self.tensors = np.zeros(len(plan.tensors), _DL_TENSOR)
        at = self.sizes.ctypes.data
        for row, each in zip(self.tensors, plan.tensors, strict=True):
            kind, length = tvm_ffi.dtype(each.dtype), len(each.shape) * self.sizes.itemsize
            row["data"], row["device"] = begins[each.place] + each.offset, CPU
            row["dimensions"], row["shape"], row["strides"] = len(each.shape), at, at + length
            row["code"], row["bits"], row["lanes"] = kind.type_code, kind.bits, kind.lanes
            at += 2 * length
        places = {place: number for number, place in enumerate(moving)}
        moved = [(at, places[each.place], each.offset) for at, each in enumerate(plan.tensors) if each.place in places]
        self.moved, self.begins, self.offsets = np.array(moved or [(0, 0, 0)], np.int64)[: len(moved)].T
        """of the tensors in inputs and outputs: their numbers, the numbers of the places, and the offsets there"""
        held = [(at, each, axes[each.place]) for at, each in enumerate(plan.tensors) if each.place in axes]
        self.cached = np.array([at for at, *_ in held], np.int64)
        """the numbers of the tensors in caches"""
        self.row_bytes = np.array([each.size_of_row(axis) for _, each, axis in held], np.int64)
        called = [number for call in plan.calls for number in (*call.arguments, -1)]
        self.called = np.array(called or [-1], np.int64)
        """the tensor of each argument; -1 for the room of a result"""


def _with_rows(shape: tuple[int, ...], axis: int | None, rows: int | None) -> tuple[int, ...]:
    if axis is None or rows is None:
        return shape
    at = len(shape) + axis
    return *shape[:at], rows, *shape[at + 1 :]


def _strides(shape: Sequence[int]) -> list[int]:
    strides = [1]
    for dim in reversed(shape[1:]):
        strides.append(strides[-1] * dim)
    return strides[::-1][: len(shape)]


class _Arguments:
    """The arguments of all calls, for inputs and outputs of their own."""

    def __init__(self, layout: _Layout) -> None:
        import numpy as np

        self._layout = layout
        self._tensors = layout.tensors.copy()
        self._calls = np.zeros(len(layout.called), _ANY)
        self._calls["kind"] = np.where(layout.called < 0, 0, _POINTS_TO_TENSOR)
        first, size = self._tensors.ctypes.data, self._tensors.itemsize
        self._calls["value"] = np.where(layout.called < 0, 0, first + size * layout.called)
        self.address = ctypes.c_void_p(self._calls.ctypes.data)
        self._begins: list[int] = []

    def point(self, begins: list[int]) -> None:
        """Inputs and outputs begin at these addresses."""
        if begins != self._begins:
            import numpy as np

            own = self._layout
            self._tensors["data"][own.moved] = np.array(begins, np.int64)[own.begins] + own.offsets
            self._begins = begins
            self._first, self._first_rows = 0, self._tensors["data"][own.cached]

    def move(self, first: int) -> None:
        """All caches begin with the row of this number, behind those at their addresses; it may be below 0."""
        if first != self._first:
            self._tensors["data"][self._layout.cached] = self._first_rows + first * self._layout.row_bytes
            self._first = first
