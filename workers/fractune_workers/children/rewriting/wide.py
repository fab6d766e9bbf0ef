"""Operators of half precision that are computed in float32 and rounded once: prefix sums, and scatters that add.

TVM's kernels for them add into their result. Other sums are widened in their kernels (`widened.py`). TVM has no kernel
for normalisations of bfloat16.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from fractune_workers.children.rewriting.expressions import operator_of, rewritten
from fractune_workers.children.rewriting.widened import HALVES

_WIDE = "float32"
_SCANS = frozenset({"cumprod", "cumsum"})
_SCATTERS = frozenset({"index_put", "scatter_elements", "scatter_nd"})
_NORMS = frozenset({"nn.group_norm", "nn.instance_norm", "nn.layer_norm"})
_EXACT = ("", "update", "min", "max")
"""what a scatter does with an element that loses nothing"""


def with_wide_operators(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with these operators computed in float32; values keep their types."""
    return rewritten(mod, _Wide(mod.clone()))


@mutator
class _Wide(PyExprMutator):
    def visit_call_(self, op: Any) -> Any:
        call = super().visit_call_(op)
        dtype = str(getattr(op.ty, "dtype", ""))
        if dtype not in HALVES or not _is_narrow(call):
            return call
        wide = [
            self.builder_.emit(relax.op.astype(each, _WIDE)) if str(getattr(each.ty, "dtype", "")) in HALVES else each
            for each in call.args
        ]
        return relax.op.astype(self.builder_.emit(_recomputed(call, wide)), dtype)


def _is_narrow(call: Any) -> bool:
    """Whether TVM would compute in the type of the result, or not at all."""
    name = operator_of(call)
    if name == "index_put":
        return bool(call.attrs.accumulate)
    if name in _NORMS:
        return str(call.args[0].ty.dtype) == "bfloat16"
    return name in _SCANS or (name in _SCATTERS and str(call.attrs.reduction) not in _EXACT)


def _recomputed(call: Any, operands: list[Any]) -> Any:
    if operator_of(call) not in _SCANS:
        return relax.Call(call.op, operands, call.attrs)
    scan = getattr(relax.op, operator_of(call))
    axis = call.attrs.axis
    return scan(operands[0], None if axis is None else int(axis), _WIDE, bool(call.attrs.exclusive))
