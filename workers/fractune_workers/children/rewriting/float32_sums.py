"""Sums of float16 products in float32, rounded once when they are done: a tensor core adds in either type."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from fractune_workers.children.rewriting.expressions import operator_of, rewritten

_HALF, _WIDE = "float16", "float32"


def with_float32_sums(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with its convolutions and matrix products of float16 added up in float32; values keep their types."""
    return rewritten(mod, _Float32Sums(mod.clone()))


@mutator
class _Float32Sums(PyExprMutator):
    def visit_call_(self, op: Any) -> Any:
        call = super().visit_call_(op)
        wide = _WIDER.get(operator_of(call))
        if wide is None or {str(each.ty.dtype) for each in (*call.args, op)} != {_HALF}:
            return call
        return relax.op.astype(self.builder_.emit(wide(call)), _HALF)


def _matmul(call: Any) -> Any:
    return relax.op.matmul(*call.args, out_dtype=_WIDE)


def _conv2d(call: Any) -> Any:
    at = call.attrs
    layouts = (at.data_layout, at.kernel_layout, at.out_layout)
    return relax.op.nn.conv2d(*call.args, at.strides, at.padding, at.dilation, at.groups, *layouts, out_dtype=_WIDE)


_WIDER = {"matmul": _matmul, "nn.conv2d": _conv2d}
"""by the Relax operator: the same with sums in float32"""
