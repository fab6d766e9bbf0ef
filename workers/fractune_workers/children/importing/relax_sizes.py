"""How large a Relax module is, counted before a pass folds its constants or lowers it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import tvm
from tvm import relax

from fractune_core.errors import BadModel
from fractune_workers.children.importing.limits import MOST_NODES, ComputedConstants, Limits, check_tensor

_MOST_FIELDS = 4 * MOST_NODES
"""Tensors in the types of all values: a tuple may hold a tuple twice, which holds another twice"""


def check_sizes(mod: tvm.IRModule, limits: Limits) -> None:
    """Raises BadModel for too many operators, for a tensor that is too large, and for too large constants."""
    walk = _Walk(limits)
    for name, function in mod.functions.items():
        if isinstance(function, relax.Function):
            walk.function(function, f"function '{name.name_hint}'")


class _Walk:
    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._computed = ComputedConstants(limits)
        self._nodes = 0
        self._fields = 0
        self._constant: set[Any] = set()
        """variables that follow from constants alone"""

    def function(self, function: Any, name: str) -> None:
        self._name = name
        for param in function.params:
            self._bytes(param.ty, f"input '{param.name}'")
        self._sequence(function.body)

    def _sequence(self, body: Any) -> None:
        if not isinstance(body, relax.SeqExpr):
            self._is_constant(body)
            return
        for block in body.blocks:
            for binding in block.bindings:
                self._binding(binding.var, binding.value)
        self._is_constant(body.body)

    def _binding(self, var: Any, value: Any) -> None:
        if isinstance(value, relax.Function):
            self._count()
            self._sequence(value.body)
            return
        if isinstance(value, relax.If):
            self._sequence(value.true_branch)
            self._sequence(value.false_branch)
        what = f"'{var.name}' ({_operator(value)})"
        size = self._bytes(var.ty, what)
        if self._is_constant(value):
            self._constant.add(var)
            if isinstance(value, tvm.ir.Call):
                self._computed.take(size, what)

    def _is_constant(self, expr: Any) -> bool:
        """Whether a value follows from constants alone; counts the operators in it."""
        if isinstance(expr, relax.Var):
            return expr in self._constant
        if isinstance(expr, relax.If):
            return False
        if isinstance(expr, relax.Tuple | relax.TupleGetItem | tvm.ir.Call):
            self._count()
        constant = [self._is_constant(operand) for operand in _operands(expr)]
        return all(constant)

    def _count(self) -> None:
        self._nodes += 1
        self._limits.check_nodes(self._nodes, f"the module, up to {self._name},")

    def _bytes(self, ty: Any, what: str) -> int:
        return sum(check_tensor(*_shape_and_width(tensor), what) for tensor in self._tensors(ty))

    def _tensors(self, ty: Any) -> Iterator[Any]:
        self._fields += 1
        if self._fields > _MOST_FIELDS:
            raise BadModel(f"its values have more than {_MOST_FIELDS:,} tensors in all; tune a part of the model")
        if isinstance(ty, relax.TupleType):
            for field in ty.fields:
                yield from self._tensors(field)
        elif isinstance(ty, relax.TensorType):
            yield ty


def _operands(expr: Any) -> Iterable[Any]:
    if isinstance(expr, relax.Tuple):
        return expr.fields
    if isinstance(expr, relax.TupleGetItem):
        return [expr.tuple_value]
    if isinstance(expr, tvm.ir.Call):
        return expr.args
    return []


def _operator(value: Any) -> str:
    return str(getattr(getattr(value, "op", None), "name", type(value).__name__))


def _shape_and_width(tensor: Any) -> tuple[list[int], int]:
    """Dimensions, none of them when one is not fixed, and bytes of an element."""
    dims = tensor.shape if isinstance(tensor.shape, relax.ShapeExpr) else []
    fixed = [int(dim) for dim in dims if isinstance(dim, tvm.tirx.IntImm)]
    width = math.ceil(tvm.DataType(str(tensor.dtype)).bits / 8)
    return (fixed, width) if len(fixed) == len(dims) else ([], width)
