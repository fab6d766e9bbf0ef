"""What the passes over a model ask of its expressions."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import tvm
from tvm import relax


def shape_of(value: Any) -> tuple[int, ...]:
    """Of a tensor whose shape is fixed."""
    return tuple(int(dim) for dim in value.ty.shape)


def has_fixed_shapes(call: Any) -> bool:
    """Whether the result and all operands have shapes that are numbers; one may depend on data."""
    return all(map(_is_fixed, [call.ty, *(getattr(operand, "ty", None) for operand in call.args)]))


def numbers_of(builder: relax.BlockBuilder, expr: Any) -> npt.NDArray[Any] | None:
    """Of a constant, or of a variable that is bound to one; None for anything else."""
    value = builder.lookup_binding(expr) if isinstance(expr, relax.Var) else expr
    return value.value.numpy() if is_constant(value) else None


def is_constant(expr: Any) -> bool:
    """Whether it is a tensor of known numbers."""
    return isinstance(getattr(expr, "value", None), tvm.runtime.Tensor)


def _is_fixed(ty: Any) -> bool:
    if hasattr(ty, "fields"):  # of a tuple
        return all(map(_is_fixed, ty.fields))
    if not isinstance(ty, relax.TensorType):
        return True
    return isinstance(ty.shape, relax.ShapeExpr) and all(isinstance(dim, tvm.tirx.IntImm) for dim in ty.shape)
