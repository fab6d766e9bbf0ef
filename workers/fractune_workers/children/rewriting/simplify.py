"""Shortens an importer's long forms, before layouts are planned.

- Shape changes of constants are computed at once, so that weights are constants for every later pass.
- A batch normalisation is a scale and a shift. After a convolution with no other reader, the scale goes into the
  weights.
- ONNX's `Sum`, `Max` and `Min` come as a reduced stack. They become element-wise operators.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from fractune_workers.children.rewriting.expressions import (
    bound_call,
    has_fixed_shapes,
    numbers_of,
    operator_of,
    relax_functions,
    rewritten,
    shape_of,
    used_once,
)

_PAIRWISE = {"sum": relax.op.add, "max": relax.op.maximum, "min": relax.op.minimum}
_CHANNELS = 1

_Array = npt.NDArray[Any]


def simplify(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with every Relax function rewritten; its results stay the same, up to rounding."""
    simplifier = _Simplifier(mod.clone(), set[Any]().union(*map(used_once, relax_functions(mod).values())))
    tidy = tvm.transform.Sequential([relax.transform.CanonicalizeBindings(), relax.transform.DeadCodeElimination()])
    return tidy(rewritten(mod, simplifier))


@mutator
class _Simplifier(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, used_once: set[Any]) -> None:
        super().__init__(mod)
        self._used_once = used_once
        self._own: dict[Any, Any] = {}
        """by the new variable of a value that is used once: the value"""

    def visit_var_binding_(self, binding: Any) -> None:
        super().visit_var_binding_(binding)
        if binding.var in self._used_once:
            var = self.visit_expr(binding.var)
            self._own[var] = self.builder_.lookup_binding(var)

    def visit_call_(self, call: Any) -> Any:
        visited = super().visit_call_(call)
        rule = _RULES.get(operator_of(visited))
        made = rule(self, visited) if rule and has_fixed_shapes(call) else None
        return visited if made is None else made

    def visit_tuple_getitem_(self, op: Any) -> Any:
        visited = super().visit_tuple_getitem_(op)
        fields = self.value(visited.tuple_value)
        return fields[visited.index] if isinstance(fields, relax.Tuple) else visited

    def value(self, expr: Any) -> Any:
        """The value of a variable; any other expression unchanged."""
        return self.builder_.lookup_binding(expr) if isinstance(expr, relax.Var) else expr

    def numbers(self, expr: Any) -> _Array | None:
        """Of a constant; None for anything else."""
        return numbers_of(self.builder_, expr)

    def own(self, expr: Any, name: str) -> Any | None:
        """The call of the operator `name` that an expression stands for, if nothing else uses its result."""
        call = self._own.get(expr) if isinstance(expr, relax.Var) else None
        return call if operator_of(call) == name else None


def _shape_change(simplifier: _Simplifier, call: Any) -> Any | None:
    numbers = simplifier.numbers(call.args[0])
    if numbers is None:
        return None
    if call.op.name == "relax.permute_dims":
        axes = call.attrs.axes
        numbers = numbers.transpose(None if axes is None else [int(axis) for axis in axes])
    return relax.const(np.ascontiguousarray(numbers.reshape(shape_of(call))))


def _batch_norm(simplifier: _Simplifier, call: Any) -> Any | None:
    data, *operands = call.args
    statistics = [simplifier.numbers(operand) for operand in operands]
    axis = int(call.attrs.axis) % len(data.ty.shape)
    if any(numbers is None for numbers in statistics) or bool(call.attrs.training):
        return None
    gamma, beta, mean, variance = statistics
    scale = (gamma if call.attrs.scale else 1.0) / np.sqrt(variance + call.attrs.epsilon)
    shift = (beta if call.attrs.center else 0.0) - mean * scale
    scaled = _scaled_conv(simplifier, data, scale) if axis == _CHANNELS else None
    if scaled is None:
        scaled = relax.op.multiply(data, _along(scale, data, axis))
    emit = simplifier.builder_.emit
    return relax.Tuple([emit(relax.op.add(emit(scaled), _along(shift, data, axis))), *operands[2:]])


def _along(numbers: _Array, data: Any, axis: int) -> Any:
    """A constant that varies along one axis of `data`."""
    shape = [1] * len(data.ty.shape)
    shape[axis] = len(numbers)
    return relax.const(numbers.reshape(shape).astype(str(data.ty.dtype)))


def _scaled_conv(simplifier: _Simplifier, data: Any, scale: _Array) -> Any | None:
    """The convolution that `data` comes from, perhaps with a constant added, with `scale` in its numbers."""
    biased = simplifier.own(data, "add")
    bias = None if biased is None else simplifier.numbers(biased.args[1])
    conv = simplifier.own(data if biased is None or bias is None else biased.args[0], "nn.conv2d")
    if conv is None or str(conv.attrs.kernel_layout) != "OIHW":
        return None
    weight = simplifier.numbers(conv.args[1])
    if weight is None:
        return None
    scaled = relax.const((weight * scale.reshape(-1, 1, 1, 1)).astype(weight.dtype))
    result = relax.Call(conv.op, [conv.args[0], scaled], conv.attrs)
    if bias is None:
        return result
    rows = bias * scale.reshape(-1, 1, 1)
    return relax.op.add(simplifier.builder_.emit(result), relax.const(rows.astype(bias.dtype)))


def _reduced_stack(simplifier: _Simplifier, call: Any) -> Any | None:
    """`sum(stack(a, b, c), axis=0)` is `a + b + c`."""
    stack = bound_call(simplifier.builder_, call.args[0], "stack")
    axes = call.attrs.axis
    if stack is None or axes is None or call.attrs.keepdims:
        return None
    fields = simplifier.value(stack.args[0])
    if [int(axis) for axis in axes] != [0] or int(stack.attrs.axis or 0) != 0 or not isinstance(fields, relax.Tuple):
        return None
    pairwise = _PAIRWISE[operator_of(call)]
    return reduce(lambda left, right: pairwise(simplifier.builder_.emit(left), right), fields)


def _broadcast(_: _Simplifier, call: Any) -> Any | None:
    """A value that has the wanted shape already."""
    data = call.args[0]
    return data if shape_of(data) == shape_of(call) else None


_RULES: dict[str, Callable[[_Simplifier, Any], Any | None]] = {
    **dict.fromkeys(("permute_dims", "reshape", "expand_dims", "squeeze"), _shape_change),
    **dict.fromkeys(_PAIRWISE, _reduced_stack),
    "broadcast_to": _broadcast,
    "nn.batch_norm": _batch_norm,
}
