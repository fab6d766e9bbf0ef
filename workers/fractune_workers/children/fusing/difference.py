"""The first difference between prepared modules that must be variants of one model: the same calls, on other numbers.

The difference between their ONNX files, apart from the weights, is in the names of the files.
"""

from itertools import zip_longest
from typing import Any

import onnx
import tvm
import tvm_ffi
from onnx import numpy_helper
from tvm import relax, tirx

from fractune_workers.children.importing.onnx_graph import described, inputs_of, parsed
from fractune_workers.children.rewriting.expressions import bindings_of, is_constant, operator_of

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


CALL = "call_tir"


def first_difference(one: tvm.IRModule, other: tvm.IRModule) -> str:
    """The first difference of the second module from the first, as a clause; empty where only numbers differ."""
    return _Comparison(one, other).first()


def same_function(one: Any, other: Any) -> bool:
    """Whether two TIR functions compute the same, whatever they are called."""
    return bool(tvm_ffi.structural_equal(_nameless(one), _nameless(other)))


def binding_text(binding: Any) -> str:
    """The operator that a binding calls, by its name."""
    value = binding.value
    if not isinstance(value, relax.Call):
        return type(value).__name__
    if operator_of(value) == CALL:
        return str(value.args[0].name_hint)
    return str(getattr(value.op, "name", getattr(value.op, "name_hint", "")))


class _Comparison:
    def __init__(self, one: tvm.IRModule, other: tvm.IRModule) -> None:
        self._mods = one, other
        self._same: dict[Any, Any] = {}
        """by a variable of the first: the other's"""

    def first(self) -> str:
        mains = [mod["main"] for mod in self._mods]
        counts = [len(main.params) for main in mains]
        if counts[0] != counts[1]:
            return f"it has {counts[1]} inputs, and not {counts[0]}"
        for params in zip(*(main.params for main in mains), strict=True):
            if not _equal(params[0].ty, params[1].ty):
                return f"input '{params[1].name}' is {_type(params[1])}, and not {_type(params[0])}"
            self._same[params[0]] = params[1]
        ours, theirs = (bindings_of(mod["main"]) for mod in self._mods)
        for number, (own, their) in enumerate(zip(ours, theirs, strict=False), 1):
            if not self._agree(own, their):
                return f"operator {number} is {_shown(their)}, and {_instead(_shown(own), _shown(their))}"
            self._same[own.var] = their.var
        if len(ours) != len(theirs):
            return f"it computes {len(theirs)} operators, and not {len(ours)}"
        results = [main.body.body for main in mains]
        return "" if self._alike(*results) else "its outputs are others"

    def _agree(self, own: Any, their: Any) -> bool:
        return _equal(own.var.ty, their.var.ty) and self._alike(own.value, their.value)

    def _alike(self, own: Any, their: Any) -> bool:
        """Whether two expressions are the same but for the numbers in them."""
        if isinstance(own, tvm.ir.GlobalVar) and isinstance(their, tvm.ir.GlobalVar):
            return self._same_but_for_numbers(own, their)
        if type(own) is not type(their):
            return False
        if isinstance(own, relax.Var):
            return self._same.get(own, own).same_as(their)
        if is_constant(own):
            return _equal(own.ty, their.ty)
        if isinstance(own, relax.Tuple):
            return self._all_alike(own.fields, their.fields)
        if isinstance(own, relax.TupleGetItem):
            return own.index == their.index and self._alike(own.tuple_value, their.tuple_value)
        if isinstance(own, relax.Call):
            same = own.op.same_as(their.op) and _equal(own.attrs, their.attrs)
            return same and _equal(list(own.ty_args), list(their.ty_args)) and self._all_alike(own.args, their.args)
        return _equal(own, their)

    def _all_alike(self, own: Any, their: Any) -> bool:
        return len(own) == len(their) and all(map(self._alike, own, their))

    def _same_but_for_numbers(self, own: Any, their: Any) -> bool:
        functions = self._mods[0][own], self._mods[1][their]
        return same_function(*functions) or same_function(*map(_numberless, functions))


def _nameless(function: Any) -> Any:
    return function.without_attr("global_symbol") if function.attrs else function


def _numberless(function: Any) -> Any:
    """The function with all numbers of floating point zero: scalars among the weights are in the code."""
    return tvm_ffi.structural_map(function, (tirx.FloatImm, lambda number: tirx.FloatImm(number.ty, 0.0)))


def _equal(one: Any, other: Any) -> bool:
    return bool(tvm_ffi.structural_equal(one, other, map_free_vars=True))


def _type(value: Any) -> str:
    ty = value.ty
    if not isinstance(ty, relax.TensorType) or ty.shape is None:
        return str(ty)
    return f"{ty.dtype}{[int(dim) for dim in ty.shape]}"


def _instead(own: str, their: str) -> str:
    return "computes something else" if own == their else f"not {own}"


def _shown(binding: Any) -> str:
    return f"'{binding_text(binding)}' of {_type(binding.var)}"
