"""An ONNX node as a converter sees it, and what a converter may ask of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, defs
from tvm import relax, tirx
from tvm.relax.frontend.onnx import onnx_frontend

from fractune_core.errors import BadModel
from fractune_workers.children.importing.onnx_graph import domain_of, refusal
from fractune_workers.children.rewriting.expressions import is_constant

AS_BYTES: dict[int, str] = {
    TensorProto.INT4: "int8",
    TensorProto.UINT4: "uint8",
    TensorProto.INT2: "int8",
    TensorProto.UINT2: "uint8",
}
"""Types of less than a byte, and the type whose elements hold their numbers"""

INTEGER_RANGES: dict[int, tuple[int, int]] = {
    TensorProto.UINT8: (0, 255),
    TensorProto.INT8: (-128, 127),
    TensorProto.UINT16: (0, 65535),
    TensorProto.INT16: (-32768, 32767),
    TensorProto.UINT4: (0, 15),
    TensorProto.INT4: (-8, 7),
    TensorProto.UINT2: (0, 3),
    TensorProto.INT2: (-2, 1),
}
"""The smallest and the largest number of each type that ONNX quantizes to"""

_SMALL_FLOATS = ("FLOAT8", "FLOAT6", "FLOAT4")
WITHOUT_KERNELS: dict[int, str] = {
    int(kind): name
    for name, kind in TensorProto.DataType.items()
    if name in ("COMPLEX64", "COMPLEX128", "STRING") or name.startswith(_SMALL_FLOATS)
}
"""Types that no kernel computes with, and their names"""


def kind_name(kind: int) -> str:
    """ONNX's name for the number of an element type."""
    return str(TensorProto.DataType.Name(kind)) if kind in TensorProto.DataType.values() else f"number {kind}"


def takes(node: onnx.NodeProto, index: int, kind: int) -> bool:
    """Whether ONNX's operator takes elements of this type as its input `index`, in its newest version; true for a type
    that is not known, and for operators of other domains.
    """
    allowed = () if domain_of(node.domain) or not kind else _allowed(node.op_type)
    return not allowed or f"tensor({kind_name(kind).lower()})" in allowed[min(index, len(allowed) - 1)]


@cache
def _allowed(operator: str) -> tuple[frozenset[str], ...]:
    """ONNX's names of the types that each input takes; empty for an operator that ONNX does not define."""
    return tuple(frozenset(each.types) for each in defs.get_schema(operator).inputs) if defs.has(operator) else ()


@dataclass(frozen=True)
class OnnxNode:
    """A node on its way into Relax, with its inputs converted."""

    proto: onnx.NodeProto
    inputs: Sequence[relax.Expr | None]
    """None for an input that the node leaves out"""
    attributes: Mapping[str, Any]
    """numbers, bytes, tuples of these, tensors and graphs"""
    opset: int
    """of the model: its version of ONNX's own operators"""
    builder: relax.BlockBuilder
    importer: Any
    """the `Importer` that converts the model: for operators with subgraphs"""

    def optional(self, index: int) -> relax.Expr | None:
        """The input at `index`, normalized; None where the node leaves it out."""
        value = self.inputs[index] if index < len(self.inputs) else None
        return None if value is None else self.builder.normalize(value)

    def input(self, index: int) -> relax.Expr:
        """The input at `index`, normalized. Raises BadModel where the node leaves it out."""
        value = self.optional(index)
        if value is None:
            raise self.refused(f"it has no input {index}; export the model again")
        return value

    def element_type(self, index: int) -> int:
        """ONNX's number of the type of an input's elements; 0 where it is not known, or the input is left out."""
        name = self.proto.input[index] if index < len(self.proto.input) else ""
        return int(self.importer.element_types.get(name, 0))

    def constant(self, index: int) -> np.ndarray[Any, Any] | None:
        """The numbers of a constant input; None for a computed one, and for one that is left out."""
        value: Any = self.optional(index)
        return value.value.numpy() if is_constant(value) else None

    def emit(self, value: relax.Expr) -> relax.Expr:
        """Bind `value` to a variable, which has a type that can be asked for."""
        return self.builder.emit(value)

    def with_inputs(self, inputs: Iterable[relax.Expr | None]) -> OnnxNode:
        """The node with other inputs."""
        return replace(self, inputs=onnx_frontend.onnx_input(inputs))

    def by_tvm(self, attributes: Mapping[str, Any] | None = None) -> Any:
        """The outputs as TVM's converter makes them, with other attributes than the node's where they are given."""
        return self.importer.convert_by_tvm(self.proto, self.inputs, dict(attributes or self.attributes))

    def refused(self, why: str) -> BadModel:
        """The error for a node that cannot be imported. `why` says what is wrong, and what to do."""
        return refusal(self.proto, self.opset, why)


Converter = Callable[[OnnxNode], "relax.Expr | Sequence[relax.Expr]"]
"""One value, or a value for each output of the node."""


def shape_of(value: relax.Expr) -> list[int]:
    """The dimensions of a normalized value of fixed shape."""
    return [int(dim) for dim in value.ty.shape]


def is_empty(value: Any) -> bool:
    """Whether the value is a computed tensor without elements."""
    kind = getattr(value, "ty", None)
    if is_constant(value) or not isinstance(kind, relax.TensorType) or not isinstance(kind.shape, relax.ShapeExpr):
        return False
    return any(isinstance(dim, tirx.IntImm) and dim.value == 0 for dim in kind.shape.values)


def dtype_of(value: relax.Expr) -> str:
    return str(value.ty.dtype)


def as_type(dtype: str, value: relax.Expr) -> relax.Expr:
    """The value in this type. A constant is converted at once."""
    if is_constant(value):
        return relax.const(value.value.numpy().astype(dtype), dtype)  # else TVM narrows it to 32 bits
    known = isinstance(value.ty, relax.TensorType) and dtype_of(value) == dtype
    return value if known else relax.op.astype(value, dtype)
