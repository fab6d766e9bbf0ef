"""The functions of a model, put in the place of their calls.

ONNX's own step leaves out a function of another opset than the model's. Here it is read in the words of the model's
opset where all its operators have one form in both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import onnx
import onnx.inliner
from onnx import defs

from fractune_workers.children.importing.onnx_graph import all_nodes, domain_of, opset_of, refusal, set_opset


def without_functions(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the functions that it calls inlined. Raises BadModel, which names the call."""
    version = opset_of(model)
    calling = [*model.graph.node, *(node for function in model.functions for node in function.node)]
    for function in model.functions:
        own = opset_of(function)
        changed = next(_changed(function.node, own, version), None)
        call = next(_calls(calling, function), None)
        if changed is not None and call is not None:
            raise refusal(
                call,
                version,
                f"it is a function of opset {own}, in which {changed} has another form than in the model's; export the "
                "model and its functions with one opset",
            )
        set_opset(function, version)
    return onnx.inliner.inline_local_functions(model) if model.functions else model


def _changed(nodes: Iterable[onnx.NodeProto], own: int, version: int) -> Iterator[str]:
    """ONNX's operators that have other attributes, defaults or inputs in the model's opset."""
    if own != version:
        for node in all_nodes(nodes):
            if not domain_of(node.domain) and _form(node.op_type, own) != _form(node.op_type, version):
                yield str(node.op_type)


def _form(operator: str, opset: int) -> Any:
    """Of an operator in this opset: all that a node may state. None for an unknown one."""
    try:
        schema = defs.get_schema(operator, opset)
    except defs.SchemaError:
        return None
    attributes = {name: (each.type, each.required, str(each.default_value)) for name, each in schema.attributes.items()}
    return [each.option for each in schema.inputs], [each.option for each in schema.outputs], attributes


def _calls(nodes: Iterable[onnx.NodeProto], function: onnx.FunctionProto) -> Iterator[onnx.NodeProto]:
    for node in all_nodes(nodes):
        if (node.op_type, domain_of(node.domain)) == (function.name, domain_of(function.domain)):
            yield node
