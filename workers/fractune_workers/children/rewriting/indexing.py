"""Look-ups and scatters that stay inside their tensors, whatever their indices are, and products that are look-ups.

Indices come with requests, and a kernel cannot report an error. So a look-up outside of its tensor gives NaN, or the
nearest element where the type has no NaN. A scatter drops what it would write outside of its tensor.

Frameworks without an embedding write `one_hot(x) @ table`: each row of the product has one factor other than zero. The
product becomes a look-up. Element-wise operators with numbers that are the same for every row follow on the result.
They are computed on the table at compile time, if the table has at most as many rows as are looked up.
"""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
import tvm_ffi
from tvm import relax, te, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from fractune_workers.children.rewriting import expressions
from fractune_workers.children.tvm_api.tir import parts_of

_Array = npt.NDArray[Any]

_ELEMENTWISE: dict[str, Callable[..., _Array]] = {
    "abs": np.abs, "add": np.add, "divide": np.divide, "exp": np.exp, "log": np.log, "maximum": np.maximum,
    "minimum": np.minimum, "multiply": np.multiply, "negative": np.negative, "sqrt": np.sqrt, "square": np.square,
    "subtract": np.subtract, "tanh": np.tanh,
}  # fmt: skip
"""NumPy's functions by TVM's operators"""


@dataclass(frozen=True)
class _Lookup:
    table: _Array
    """(rows + 1, columns); the last row is for an index that names none"""
    index: Any
    """a variable, (..., 1)"""

    def stands_for(self, call: Any) -> bool:
        """Whether it has the type and the shape of the call's result."""
        shape = (*expressions.shape_of(self.index)[:-1], self.table.shape[1])
        return shape == expressions.shape_of(call) and str(self.table.dtype) == str(call.ty.dtype)

    @property
    def repeats_rows(self) -> bool:
        """Whether the number of lookups is at least the number of rows."""
        return len(self.table) <= prod(expressions.shape_of(self.index))


def looked_up(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with lookups in the place of products with one-hot matrices; its results stay the same."""
    return relax.transform.DeadCodeElimination()(expressions.rewritten(mod, _Rewriter(mod.clone())))


@mutator
class _Rewriter(PyExprMutator):
    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self._known: dict[Any, _Lookup] = {}
        """by the variable of the result of a lookup"""
        self._made: _Lookup | None = None
        """that of the call visited last"""

    def visit_var_binding_(self, binding: Any) -> None:
        super().visit_var_binding_(binding)
        made, self._made = self._made, None
        if made is not None:
            self._known[self.visit_expr(binding.var)] = made

    def visit_call_(self, call: Any) -> Any:
        visited = super().visit_call_(call)
        if not expressions.has_fixed_shapes(call):
            return visited
        name = expressions.operator_of(call)
        made = self._product(visited) if name == "matmul" else self._of_rows(name, visited.args)
        if made is None or not made.stands_for(call):
            return visited
        self._made, table = made, relax.const(made.table)
        return self.builder_.call_te(_rows, made.index, table, primfunc_name_hint="lookup")

    def _product(self, call: Any) -> _Lookup | None:
        """Of a one-hot matrix and a constant one."""
        one_hot, table = (
            expressions.bound_call(self.builder_, call.args[0], "astype"),
            expressions.numbers_of(self.builder_, call.args[1]),
        )
        equal = None if one_hot is None else expressions.bound_call(self.builder_, one_hot.args[0], "equal")
        if equal is None or table is None or table.ndim != 2 or not np.isfinite(table).all():
            return None
        for index, numbers in (equal.args, reversed(equal.args)):
            places = expressions.numbers_of(self.builder_, numbers)
            one_each = "int" in str(index.ty.dtype) and expressions.shape_of(index)[-1:] == (1,)
            if one_each and places is not None and _counts(places, len(table)):
                return _Lookup(np.concatenate([table, np.zeros_like(table[:1])]), index)
        return None

    def _of_rows(self, name: str, operands: Sequence[Any]) -> _Lookup | None:
        """The lookup that replaces an element-wise operator over rows of tables. All rows have the same index, and all
        other operands the same numbers for each row.
        """
        compute = _ELEMENTWISE.get(name)
        if compute is None:
            return None
        lookups = [self._known.get(operand) if isinstance(operand, relax.Var) else None for operand in operands]
        first = next((known for known in lookups if known), None)
        if first is None or not first.repeats_rows:
            return None
        tables = [
            _shared(expressions.numbers_of(self.builder_, operand)) if known is None else known.table
            for operand, known in zip(operands, lookups, strict=True)
        ]
        if any(known and not known.index.same_as(first.index) for known in lookups) or any(t is None for t in tables):
            return None
        with np.errstate(all="ignore"):  # an infinite result here is infinite in the model too
            return _Lookup(compute(*tables), first.index)


def _counts(numbers: _Array, rows: int) -> bool:
    """Whether they are 0, 1, ... rows - 1, along the last axis."""
    return numbers.shape[-1:] == (rows,) and numbers.size == rows and bool((numbers.ravel() == np.arange(rows)).all())


def _shared(numbers: _Array | None) -> _Array | None:
    """The numbers as one row, where all rows are equal; None otherwise."""
    if numbers is None or numbers.size != (numbers.shape or (1,))[-1]:
        return None
    return numbers.reshape(1, -1)


def _rows(index: te.Tensor, table: te.Tensor) -> te.Tensor:
    """(..., 1) and (rows + 1, columns) -> (..., columns); the last row for an index outside the others."""
    rows, columns = (int(dim) for dim in table.shape)

    def element(*place: Any) -> Any:
        *outer, column = place
        row = index(*outer, 0)
        known = tvm.tirx.all(row >= 0, row < rows - 1)
        return table(tvm.tirx.Select(known, row.astype("int32"), tvm.tirx.const(rows - 1, "int32")), column)

    return te.compute((*index.shape[:-1], columns), element, name="lookup")


_UNCHECKED = "fast"
"""TVM's mode of `take` for indices that are right; its other modes stay inside the tensor"""


def _take(builder: Any, call: Any) -> Any:
    data, indices = call.args
    if call.attrs.mode != _UNCHECKED or not isinstance(indices.ty, relax.TensorType):
        return expressions.legalized_by_tvm(builder, call)
    axis = 0 if call.attrs.axis is None else int(call.attrs.axis) % len(data.ty.shape)
    count = len(indices.ty.shape)

    def take(data: te.Tensor, indices: te.Tensor) -> te.Tensor:
        def element(*at: Any) -> Any:
            return _element(data, [*at[:axis], indices(*at[axis : axis + count]), *at[axis + count :]], [axis])

        shape = [*data.shape[:axis], *indices.shape, *data.shape[axis + 1 :]]
        return te.compute(shape, element, name="T_take")

    return builder.call_te(take, data, indices)


def _gather_elements(builder: Any, call: Any) -> Any:
    data, indices = call.args
    axis = int(call.attrs.axis) % len(data.ty.shape)

    def gather(data: te.Tensor, indices: te.Tensor) -> te.Tensor:
        def element(*at: Any) -> Any:
            return _element(data, [*at[:axis], indices(*at), *at[axis + 1 :]], [axis])

        return te.compute(indices.shape, element, name="T_gather")

    return builder.call_te(gather, data, indices)


def _gather_nd(builder: Any, call: Any) -> Any:
    data, indices = call.args
    first, count, outer = int(call.attrs.batch_dims), int(indices.ty.shape[-1]), len(indices.ty.shape) - 1

    def gather_nd(data: te.Tensor, indices: te.Tensor) -> te.Tensor:
        def element(*at: Any) -> Any:
            found = [indices(*at[:outer], number) for number in range(count)]
            return _element(data, [*at[:first], *found, *at[outer:]], range(first, first + count))

        return te.compute([*indices.shape[:-1], *data.shape[first + count :]], element, name="T_gather_nd")

    return builder.call_te(gather_nd, data, indices)


def _index_tensor(builder: Any, call: Any) -> Any:
    """NumPy's indexing by arrays that are broadcast, over the first axes."""
    parts = _parts(builder, call.args[1])
    outer = np.broadcast_shapes(*[[int(dim) for dim in part.ty.shape] for part in parts])

    def index_tensor(data: te.Tensor, indices: Sequence[te.Tensor]) -> te.Tensor:
        def element(*at: Any) -> Any:
            found = [
                _wrapped(_broadcast(part, at[: len(outer)]), data.shape[axis]) for axis, part in enumerate(indices)
            ]
            return _element(data, [*found, *at[len(outer) :]], range(len(found)))

        return te.compute([*outer, *data.shape[len(indices) :]], element, name="index_tensor")

    return builder.call_te(index_tensor, call.args[0], parts)


def _element(data: te.Tensor, place: Sequence[Any], computed: Collection[int]) -> Any:
    """The element at `place`, whose indices along the axes `computed` may be any numbers."""
    if any(_is_zero(data.shape[axis]) for axis in computed):
        return _none(data)
    whole = [index.astype("int64") if axis in computed else index for axis, index in enumerate(place)]
    if _has_nan(data):
        inside = [_is_inside(whole[axis], data.shape[axis]) for axis in computed]
        return tirx.if_then_else(tirx.all(*inside), data(*whole), _none(data))
    return data(
        *[_limited(index, data.shape[axis] - 1) if axis in computed else index for axis, index in enumerate(whole)]
    )


def _none(data: te.Tensor) -> Any:
    """The element of a tensor without elements."""
    return tirx.const(math.nan if _has_nan(data) else 0, data.dtype)


def _has_nan(data: te.Tensor) -> bool:
    return "float" in str(data.dtype)


def _is_zero(extent: Any) -> bool:
    return isinstance(extent, tirx.IntImm) and int(extent) == 0


def _is_inside(index: Any, extent: Any) -> Any:
    return tirx.all(index >= 0, index < extent)


def _wrapped(index: Any, extent: Any) -> Any:
    """A negative index counts from the end."""
    return tirx.Select(index < 0, index + extent, index)


def _broadcast(part: te.Tensor, at: Sequence[Any]) -> Any:
    """The element of a tensor that is broadcast to the rank of `at`."""
    own = at[len(at) - len(part.shape) :]
    return part(*[0 if int(dim) == 1 else index for dim, index in zip(part.shape, own, strict=True)])


def _parts(builder: Any, indices: Any) -> list[Any]:
    """The tensors of a tuple."""
    if isinstance(indices, relax.Tuple):
        return list(indices.fields)
    return [builder.emit(relax.TupleGetItem(indices, number)) for number in range(len(indices.ty.fields))]


def _scatter_elements(builder: Any, call: Any) -> Any:
    data, indices, updates = call.args
    axis = int(call.attrs.axis) % len(data.ty.shape)
    return _scattered(builder, call, [data, _places(builder, data, indices, [axis], wraps=True), updates])


def _scatter_nd(builder: Any, call: Any) -> Any:
    data, indices, updates = call.args
    axes = range(int(indices.ty.shape[-1]))
    return _scattered(builder, call, [data, _places(builder, data, indices, axes, wraps=False), updates])


def _index_put(builder: Any, call: Any) -> Any:
    data, indices, updates = call.args
    parts = enumerate(_parts(builder, indices))
    places = [_places(builder, data, part, [axis], wraps=True) for axis, part in parts]
    return _scattered(builder, call, [data, relax.Tuple(places), updates])


def _places(builder: Any, data: Any, indices: Any, axes: Sequence[int], *, wraps: bool) -> Any:
    """The indices, and behind the last element of the tensor for each that is outside of it. They are along one of the
    `axes`, or along each of them by their own last axis. `wraps`: whether a negative one counts from the end.
    """

    def places(indices: te.Tensor, shape: Sequence[Any]) -> te.Tensor:
        behind = math.prod(shape)

        def place(*at: Any) -> Any:
            extent = shape[axes[0]]
            for number, axis in enumerate(axes[1:], 1):
                extent = tirx.Select(at[-1] == number, shape[axis], extent)
            index = indices(*at).astype("int64")
            index = _wrapped(index, extent) if wraps else index
            return tirx.Select(_is_inside(index, extent), index, behind)

        return te.compute(indices.shape, place, name="places")

    return builder.emit(builder.call_te(places, indices, list(data.ty.shape)))


def _scattered(builder: Any, call: Any, operands: Sequence[Any]) -> Any:
    """TVM's kernel with these operands, without its stores outside of the tensor."""
    made = expressions.legalized_by_tvm(builder, relax.Call(call.op, operands, call.attrs))
    kernel = made.args[0]
    builder.update_func(kernel, tvm_ffi.structural_map(builder.get()[kernel], (tirx.BufferStore, _guarded)))
    return made


def _guarded(store: Any) -> Any:
    """The store under the condition that its place is inside, where the place is computed from an index."""
    if not any(parts_of(index, tvm.ir.TensorLoad) for index in store.indices):
        return store
    inside = map(_is_inside, store.indices, store.buffer.shape)
    return tirx.IfThenElse(tirx.all(*inside), store, None)


def _regions(builder: Any, call: Any) -> Any:
    """Regions of images, each by the number of its image and four coordinates: the numbers are clamped."""
    data, regions = call.args
    last = int(data.ty.shape[0]) - 1

    def images(regions: te.Tensor) -> te.Tensor:
        def element(region: Any, number: Any) -> Any:
            given = regions(region, number)
            return tirx.Select(number == 0, _limited(given, tirx.const(last, given.ty.dtype)), given)

        return te.compute(regions.shape, element, name="images")

    return expressions.legalized_by_tvm(
        builder, relax.Call(call.op, [data, builder.emit(builder.call_te(images, regions))], call.attrs)
    )


def _reverse_sequence(builder: Any, call: Any) -> Any:
    """The lengths are clamped."""
    data, lengths = call.args
    most = tirx.const(int(data.ty.shape[int(call.attrs.seq_axis)]), str(lengths.ty.dtype))

    def clamped(lengths: te.Tensor) -> te.Tensor:
        return te.compute(lengths.shape, lambda *at: _limited(lengths(*at), most), name="clamped")

    return expressions.legalized_by_tvm(
        builder, relax.Call(call.op, [data, builder.emit(builder.call_te(clamped, lengths))], call.attrs)
    )


def _limited(value: Any, most: Any) -> Any:
    """The value, between 0 and `most`; 0 or `most` for a NaN."""
    return tirx.max(tirx.min(value, most), tirx.const(0, value.ty.dtype))


LEGALIZATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "relax.gather_elements": _gather_elements,
    "relax.gather_nd": _gather_nd,
    "relax.index_put": _index_put,
    "relax.index_tensor": _index_tensor,
    "relax.reverse_sequence": _reverse_sequence,
    "relax.scatter_elements": _scatter_elements,
    "relax.scatter_nd": _scatter_nd,
    "relax.take": _take,
    "relax.vision.roi_align": _regions,
    "relax.vision.roi_pool": _regions,
}
"""for `relax.transform.LegalizeOps`"""
