"""Why a node has no kernel, in the words of its model. TVM's importer speaks of its own objects, and of no node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import onnx
from onnx import checker, defs, helper
from tvm import relax

from fractune_core.errors import first_line
from fractune_workers.children.importing.onnx_graph import domain_of, text_of
from fractune_workers.children.rewriting.expressions import is_constant, type_text

LATE = (
    "is known only when the model runs; make the input that decides it a constant with --input NAME=const:VALUE, or "
    "export with fixed shapes"
)
_PARAMETERS: Mapping[str, Sequence[int]] = {
    "ConstantOfShape": (0,),
    "CumSum": (1,),
    "Expand": (1,),
    "MaxUnpool": (2,),
    "OneHot": (1,),
    "Pad": (1, 3),
    "Range": (0, 1, 2),
    "Reshape": (1,),
    "Resize": (1, 2, 3),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "Squeeze": (1,),
    "Tile": (1,),
    "TopK": (1,),
    "Trilu": (1,),
    "Unsqueeze": (1,),
    "Upsample": (1,),
}
"""By operator: the inputs that decide sizes and places, which kernels have as constants"""
_MOST_NUMBERS = 8
"""of a constant"""
_MOST_CHARACTERS = 60
"""of an attribute's value"""


def why_unfit(node: onnx.NodeProto, inputs: Sequence[Any], opset: int) -> str:
    """The reason and a remedy for a node at which a converter fails without one. `inputs`: its values in Relax."""
    invalid = what_is_invalid(node, opset)
    if invalid:
        return f"it is not valid ONNX ({invalid}); export the model again"
    named = {name: value for name, value in zip(node.input, inputs, strict=False) if name and value is not None}
    late = next((name for name, value in named.items() if has_open_shape(value)), None)
    if late is not None:
        return f"its input '{late}' has a size that {LATE}"
    parameters = [node.input[at] for at in _parameters(node) if at < len(node.input) and node.input[at]]
    computed = next((name for name, value in named.items() if name in parameters and not _is_fixed(value)), None)
    if computed is not None:
        return f"its input '{computed}' is computed, and {LATE}"
    given = ", ".join([*(f"'{name}' {_type(value)}" for name, value in named.items()), *_attributes(node)])
    return f"no kernel takes {given or 'nothing'}; export it with other types, shapes or attributes"


def has_open_shape(value: Any) -> bool:
    """Whether the value is a computed shape, or a tensor of the shape that a variable holds."""
    kind = getattr(value, "ty", None)
    if isinstance(kind, relax.ShapeType):
        return not isinstance(value, relax.ShapeExpr)
    return isinstance(kind, relax.TensorType) and isinstance(kind.shape, relax.Var)


def mistyped_attributes(node: onnx.NodeProto) -> Iterator[str]:
    """Names of attributes whose type is not that of ONNX's operator in its newest version."""
    if domain_of(node.domain) or not defs.has(node.op_type):
        return
    known = defs.get_schema(node.op_type).attributes
    for each in node.attribute:
        if each.name in known and each.type not in (each.UNDEFINED, _attribute_kind(known[each.name])):
            yield each.name


def _attribute_kind(attribute: Any) -> int:
    """ONNX's number of an attribute's type in a description of an operator."""
    return int(attribute.type.value)


def _parameters(node: onnx.NodeProto) -> Sequence[int]:
    return (1,) if node.op_type.startswith("Reduce") else _PARAMETERS.get(node.op_type, ())


def _is_fixed(value: Any) -> bool:
    return is_constant(value) or isinstance(value, relax.ShapeExpr)


def what_is_invalid(node: onnx.NodeProto, opset: int) -> str:
    """What ONNX's own checker finds wrong with the node; empty for nothing."""
    context = checker.C.CheckerContext()
    context.ir_version = onnx.IR_VERSION
    context.opset_imports = {"": opset, "ai.onnx": opset}
    try:
        checker.check_node(node, context)
    except Exception as error:  # noqa: BLE001  the checker raises several unrelated types
        return first_line(error)
    return ""


def _type(value: Any) -> str:
    kind: Any = getattr(value, "ty", None)
    if is_constant(value) and kind.ndim <= 1 and value.value.numpy().size <= _MOST_NUMBERS:
        return f"{kind.dtype} = {value.value.numpy().tolist()}"
    return type_text(kind)


def _attributes(node: onnx.NodeProto) -> Iterator[str]:
    for each in node.attribute:
        if each.type in (each.INT, each.INTS, each.FLOAT, each.FLOATS, each.STRING):
            value = helper.get_attribute_value(each)
            yield f"{each.name}={text_of(value)[:_MOST_CHARACTERS]}"
