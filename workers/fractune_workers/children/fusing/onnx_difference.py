"""The first difference between two ONNX files, apart from their weights, in the names of the files."""

from itertools import zip_longest
from typing import Any

import onnx
from onnx import numpy_helper

from fractune_workers.children.importing.onnx_graph import described, inputs_of, parsed

_FEW = 16
"""elements of a tensor of integers that is a shape, or axes, and no weight"""


def first_onnx_difference(one: bytes, other: bytes) -> str:
    """The first difference of the second file from the first, as a clause; empty for no difference, or for another
    format.

    Graphs are compared node by node in their order; the names of values may differ.
    """
    models = [parsed(data) for data in (one, other)]
    if models[0] is None or models[1] is None:
        return ""
    return _Graphs(models[0].graph, models[1].graph).first()


class _Graphs:
    def __init__(self, one: onnx.GraphProto, other: onnx.GraphProto) -> None:
        self._graphs = one, other
        self._weights = [{tensor.name: tensor for tensor in graph.initializer} for graph in self._graphs]
        self._same: dict[str, str] = {"": ""}
        """by the name of a value in the first: its name in the other"""

    def first(self) -> str:
        inputs = [inputs_of(graph) for graph in self._graphs]
        if len(inputs[0]) != len(inputs[1]):
            return f"it has {len(inputs[1])} inputs, and not {len(inputs[0])}"
        for own, their in zip(*inputs, strict=True):
            if _value_type(own) != _value_type(their):
                return f"input '{their.name}' is {_value_type(their)}, and not {_value_type(own)}"
            self._same[own.name] = their.name
        for number, (node, counterpart) in enumerate(zip_longest(*(graph.node for graph in self._graphs)), 1):
            clause = self._of_nodes(number, node, counterpart)
            if clause:
                return clause
        return ""

    def _of_nodes(self, number: int, own: Any, their: Any) -> str:
        if own is None or their is None:
            has = "it has no counterpart of" if their is None else "it has another node,"
            return f"{has} {described(own or their)}"
        if (own.domain, own.op_type) != (their.domain, their.op_type):
            return f"its node {number} is {described(their)}, and not {described(own)}"
        clause = _of_attributes(own, their) or self._of_inputs(own, their)
        self._same.update(zip(own.output, their.output, strict=False))
        return f"{described(their)}: {clause}" if clause else ""

    def _of_inputs(self, own: Any, their: Any) -> str:
        if len(own.input) != len(their.input):
            return f"it has {len(their.input)} inputs, and not {len(own.input)}"
        for mine, yours in zip(own.input, their.input, strict=True):
            weight, counterpart = self._weights[0].get(mine), self._weights[1].get(yours)
            if weight is None or counterpart is None:
                if self._same.get(mine) != yours:
                    return f"its input is '{yours}', and not '{mine}'"
            elif clause := _of_tensors(weight, counterpart):
                return f"weight '{yours}' is {clause}"
        return ""


def _of_attributes(own: Any, their: Any) -> str:
    attributes = [{each.name: each for each in node.attribute} for node in (own, their)]
    for name in sorted({*attributes[0], *attributes[1]}):
        mine, yours = attributes[0].get(name), attributes[1].get(name)
        if mine is None or yours is None:
            values = ["absent" if each is None else _attribute(each) for each in (mine, yours)]
        elif mine.type == onnx.AttributeProto.TENSOR == yours.type:
            if clause := _of_tensors(mine.t, yours.t):
                return f"attribute '{name}' is {clause}"
            continue
        else:
            values = [_attribute(each) for each in (mine, yours)]
        if values[0] != values[1]:
            return f"attribute '{name}' is {values[1]}, and not {values[0]}"
    return ""


def _of_tensors(own: onnx.TensorProto, their: onnx.TensorProto) -> str:
    """Compare types and shapes, and the numbers of tensors that are not weights."""
    types = [_tensor_type(each) for each in (own, their)]
    if types[0] != types[1]:
        return f"{types[1]}, and not {types[0]}"
    numbers = [numpy_helper.to_array(each) for each in (own, their)]
    if numbers[0].dtype.kind in "iub" and numbers[0].size <= _FEW and (numbers[0] != numbers[1]).any():
        return f"{numbers[1].tolist()}, and not {numbers[0].tolist()}"
    return ""


def _attribute(attribute: onnx.AttributeProto) -> str:
    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return str(list(value)) if hasattr(value, "__iter__") else str(value)


def _tensor_type(tensor: onnx.TensorProto) -> str:
    return f"{onnx.TensorProto.DataType.Name(tensor.data_type).lower()}{list(tensor.dims)}"


def _value_type(value: onnx.ValueInfoProto) -> str:
    tensor = value.type.tensor_type
    dims = [dim.dim_param or dim.dim_value for dim in tensor.shape.dim]
    return f"{onnx.TensorProto.DataType.Name(tensor.elem_type).lower()}{dims}"
