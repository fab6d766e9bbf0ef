"""Operators that are decomposed into simpler ones, by name: those of other domains, and those that ONNX itself defines
as functions of others.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import onnx
from onnx import defs, helper

from fractune_core.errors import BadModel, first_line
from fractune_workers.children.importing.decomposing.decomposed_fused import ATTENTION, FUSED
from fractune_workers.children.importing.decomposing.decomposed_quantized import QUANTIZED
from fractune_workers.children.importing.decomposing.decomposition import GRADIENTS, OLD_FORMS, Decompose, Decomposition
from fractune_workers.children.importing.onnx_graph import domain_of, name_of_part, operator_of, subgraphs
from fractune_workers.children.importing.onnx_models.onnx_importer import is_known
from fractune_workers.children.importing.operators.whole_attention import WHOLE_ATTENTION, is_whole

DECOMPOSITIONS: Mapping[str, Decompose] = {**ATTENTION, **FUSED, **QUANTIZED}

_SPARSE = "sparse_value"
Types = Mapping[str, onnx.TypeProto | None]
_COUNTER = itertools.count()


def renewed(node: onnx.NodeProto, types: Types, opset: int) -> Sequence[onnx.NodeProto]:
    """The nodes that stand for a node of an old opset, in the words of a later one. Raises BadModel."""
    made = Decomposition(node, types, opset)
    renew = OLD_FORMS.get("" if domain_of(node.domain) else node.op_type)
    if renew is not None:
        return _by_table(made, renew)
    kept = onnx.NodeProto()
    kept.CopyFrom(node)
    del kept.attribute[:]
    kept.attribute.extend(each for each in node.attribute if each.name not in GRADIENTS)
    return [kept]


def decomposed(node: onnx.NodeProto, types: Types, opset: int) -> Sequence[onnx.NodeProto] | None:
    """The nodes that stand for a node; None for a node that stays. `types`: of its inputs, by name. Raises BadModel."""
    decompose = DECOMPOSITIONS.get(operator_of(node))
    if operator_of(node) == "Constant" and any(each.name == _SPARSE for each in node.attribute):
        decompose = _sparse_constant
    if decompose is not None:
        return _by_table(Decomposition(node, types, opset), decompose)
    is_in_parts = operator_of(node) in WHOLE_ATTENTION and not is_whole(node, types)
    return None if is_known(node) and not is_in_parts else _by_onnx(node, types, opset)


def _sparse_constant(made: Decomposition) -> None:
    """Zeros, and the numbers scattered into them: their places are coordinates, or are counted through all axes."""
    sparse = made.attribute(_SPARSE)
    shape, kind = list(sparse.dims), sparse.values.data_type
    counted = len(sparse.indices.dims) == 1
    sizes = made.constant([math.prod(shape)] if counted else shape)
    zeros = made.add("ConstantOfShape", sizes, value=helper.make_tensor("zero", kind, [1], [0]))
    places = made.add("Constant", value=sparse.indices)
    if counted:
        places = made.reshape(places, [-1, 1])
    dense = made.add("ScatterND", zeros, places, made.add("Constant", value=sparse.values))
    made.reshape(dense, shape, output=made.output(0))


def _by_table(made: Decomposition, decompose: Decompose) -> Sequence[onnx.NodeProto]:
    try:
        decompose(made)
    except BadModel:
        raise
    except Exception as error:  # attributes and shapes of any kind come from the file
        raise made.refused(f"its attributes and inputs do not fit ({first_line(error)}); export it again") from error
    return made.nodes


def _by_onnx(node: onnx.NodeProto, types: Types, opset: int) -> Sequence[onnx.NodeProto] | None:
    """The body of the function by which ONNX defines the operator; None where there is none."""
    if domain_of(node.domain):
        return None
    try:
        schema = defs.get_schema(node.op_type, opset)
        body = _body(schema, node, types, opset)
    except (defs.SchemaError, IndexError, RuntimeError, ValueError):
        # ONNX does not define the operator, or cannot build its function for these attributes and inputs.
        return None
    return _inlined(node, body, _defaults(schema)) if body.node else None


def _body(schema: Any, node: onnx.NodeProto, types: Types, opset: int) -> onnx.FunctionProto:
    """The function by which ONNX defines the operator; empty where there is none."""
    body = onnx.FunctionProto()
    if schema.has_context_dependent_function:
        given = [types.get(name) or onnx.TypeProto() for name in node.input]
        known = all(kind.WhichOneof("value") for name, kind in zip(node.input, given, strict=True) if name)
        version = _newest(schema.context_dependent_function_opset_versions, opset)
        if known and version:
            call = node.SerializeToString(), [kind.SerializeToString() for kind in given]
            body.ParseFromString(schema.get_context_dependent_function_with_opset_version(version, *call))
    elif schema.has_function and _newest(schema.function_opset_versions, opset):
        version = _newest(schema.function_opset_versions, opset)
        body.ParseFromString(schema.get_function_with_opset_version(version))
    return body


def _defaults(schema: Any) -> dict[str, onnx.AttributeProto]:
    """By name: the values of attributes that a node leaves out."""
    values = {name: each.default_value for name, each in schema.attributes.items()}
    return {name: value for name, value in values.items() if value.type != onnx.AttributeProto.UNDEFINED}


def _newest(versions: Sequence[int], opset: int) -> int:
    """The newest of these versions that a model of this opset may use; 0 for none."""
    return max((version for version in versions if version <= opset), default=0)


def _inlined(
    node: onnx.NodeProto, body: onnx.FunctionProto, defaults: Mapping[str, onnx.AttributeProto]
) -> Sequence[onnx.NodeProto]:
    """The nodes of a function's body for one call of it."""
    names = dict(itertools.zip_longest(body.input, node.input[: len(body.input)], fillvalue=""))
    names |= {inner: outer for inner, outer in zip(body.output, node.output, strict=False) if outer}
    given = (
        {**defaults} | {each.name: each for each in body.attribute_proto} | {each.name: each for each in node.attribute}
    )
    prefix = f"{node.op_type}.{next(_COUNTER)}."
    made = [_renamed(inner, names, given, prefix) for inner in body.node]
    for each in made:
        each.name = name_of_part(node)
    return made


def _renamed(
    node: onnx.NodeProto, names: Mapping[str, str], given: Mapping[str, onnx.AttributeProto], prefix: str
) -> onnx.NodeProto:
    """The node as the caller's: with its names, and with the attributes that the call gives."""
    made = onnx.NodeProto()
    made.CopyFrom(node)
    made.input[:] = [names.get(name, prefix + name) if name else "" for name in node.input]
    made.output[:] = [names.get(name, prefix + name) if name else "" for name in node.output]
    del made.attribute[:]
    for each in node.attribute:
        if not each.ref_attr_name:
            made.attribute.add().CopyFrom(each)
        elif each.ref_attr_name in given:
            made.attribute.add().CopyFrom(given[each.ref_attr_name])
            made.attribute[-1].name = each.name
    for graph in subgraphs(made):
        _rename_within(graph, names, given, prefix)
    return made


def _rename_within(
    graph: onnx.GraphProto, names: Mapping[str, str], given: Mapping[str, onnx.AttributeProto], prefix: str
) -> None:
    """The same of a subgraph, in place."""
    inner = dict(names)
    for value in graph.input:
        inner[value.name] = value.name = prefix + value.name
    for tensor in graph.initializer:
        inner[tensor.name] = tensor.name = prefix + tensor.name
    for value in graph.output:
        value.name = inner.get(value.name, prefix + value.name)
    nodes = [_renamed(each, inner, given, prefix) for each in graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
