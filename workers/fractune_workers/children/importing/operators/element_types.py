"""The element types of ONNX's tensors as the importer holds them."""

from __future__ import annotations

from onnx import TensorProto

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
