"""Turns products with one-hot matrices into lookups of rows, and computes operators over these rows in the table.

Frameworks without an embedding write `one_hot(x) @ table`: each row of the product has one factor other than zero. The
product becomes a lookup. Element-wise operators with numbers that are the same for every row follow on the result. They
are computed on the table at compile time, if the table has at most as many rows as are looked up.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
from tvm import relax, te
from tvm.relax.expr_functor import PyExprMutator, mutator

from fractune_workers.children.rewriting.expressions import (
    bound_call,
    has_fixed_shapes,
    numbers_of,
    operator_of,
    rewritten,
    shape_of,
)

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
        shape = (*shape_of(self.index)[:-1], self.table.shape[1])
        return shape == shape_of(call) and str(self.table.dtype) == str(call.ty.dtype)

    @property
    def repeats_rows(self) -> bool:
        """Whether the number of lookups is at least the number of rows."""
        return len(self.table) <= prod(shape_of(self.index))


def looked_up(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with lookups in the place of products with one-hot matrices; its results stay the same."""
    return relax.transform.DeadCodeElimination()(rewritten(mod, _Rewriter(mod.clone())))


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
        if not has_fixed_shapes(call):
            return visited
        name = operator_of(call)
        made = self._product(visited) if name == "matmul" else self._of_rows(name, visited.args)
        if made is None or not made.stands_for(call):
            return visited
        self._made, table = made, relax.const(made.table)
        return self.builder_.call_te(_rows, made.index, table, primfunc_name_hint="lookup")

    def _product(self, call: Any) -> _Lookup | None:
        """Of a one-hot matrix and a constant one."""
        one_hot, table = bound_call(self.builder_, call.args[0], "astype"), numbers_of(self.builder_, call.args[1])
        equal = None if one_hot is None else bound_call(self.builder_, one_hot.args[0], "equal")
        if equal is None or table is None or table.ndim != 2 or not np.isfinite(table).all():
            return None
        for index, numbers in (equal.args, reversed(equal.args)):
            places = numbers_of(self.builder_, numbers)
            one_each = "int" in str(index.ty.dtype) and shape_of(index)[-1:] == (1,)
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
            _shared(numbers_of(self.builder_, operand)) if known is None else known.table
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
