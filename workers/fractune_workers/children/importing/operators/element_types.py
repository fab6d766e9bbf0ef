"""The element types of ONNX's tensors as the importer holds them."""

from __future__ import annotations

from functools import cache

import onnx
from onnx import TensorProto, defs

from fractune_workers.children.importing.onnx_graph import domain_of

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
