"""How many rows of a decoder's past are not in use: an operator of our own, which is 0 in the model of the file.

The entry for caches takes the number from its caller (`children/compiling/cache_in_place.py`).
"""

from collections.abc import Mapping
from typing import Any

from onnx import NodeProto, TensorProto, TypeProto
from onnx.helper import make_tensor_type_proto
from tvm import te, tirx

from fractune_workers.children.importing.operators.onnx_node import Converter, OnnxNode
from fractune_workers.children.rewriting.caches import COUNTS_UNUSED

DOMAIN, UNUSED_ROWS = "fractune.caches", "UnusedRows"
"""The operator has an operand, so that no pass takes it for a constant, and reads nothing of it."""


def _unused_rows(node: OnnxNode) -> Any:
    def zero(_other: te.Tensor) -> te.Tensor:
        return te.compute((1,), lambda *_at: tirx.const(0, "int64"), name="unused_rows")

    hint: dict[str, Any] = {"primfunc_name_hint": "unused_rows", "primfunc_attrs": COUNTS_UNUSED}
    return node.emit(node.builder.call_te(zero, node.input(0), **hint))


def inferred(
    node: NodeProto, _types: Mapping[str, TypeProto], _constants: Mapping[str, TensorProto]
) -> dict[str, TypeProto]:
    """One number."""
    return {node.output[0]: make_tensor_type_proto(TensorProto.INT64, [1])}


UNUSED: Mapping[str, Converter] = {f"{DOMAIN}.{UNUSED_ROWS}": _unused_rows}
