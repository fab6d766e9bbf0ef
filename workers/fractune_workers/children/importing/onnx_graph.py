"""The parts of an ONNX graph by the names that users know, and the graphs inside it."""

from __future__ import annotations

from typing import Any

import onnx
from google.protobuf.message import DecodeError

from fractune_core.errors import BadModel
from fractune_core.refusals import node_text, refusal_text


def parsed(data: bytes) -> onnx.ModelProto | None:
    """The model in the bytes of a file; None for another file, or a torn one."""
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError:
        return None
    return model


def inputs_of(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    """The inputs of a graph without its weights: before IR version 4 every weight was an input too."""
    weights = {tensor.name for tensor in graph.initializer}
    return [value for value in graph.input if value.name not in weights]


def subgraphs(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """The graphs in a node's attributes."""
    return [graph for each in node.attribute for graph in ([each.g] if each.HasField("g") else each.graphs)]


def domain_of(name: str) -> str:
    """The domain of an operator or a function; empty for ONNX's own, which has two names."""
    return "" if name == "ai.onnx" else name


def operator_of(node: onnx.NodeProto) -> str:
    domain = domain_of(node.domain)
    return f"{domain}.{node.op_type}" if domain else str(node.op_type)


def described(node: onnx.NodeProto) -> str:
    return node_text(node.name, next(iter(node.output), ""), operator_of(node))


def refusal(node: onnx.NodeProto, opset: int, why: str) -> BadModel:
    """The error for a node that cannot be imported. `opset`: the model's. `why` says what is wrong, and what to do."""
    return BadModel(refusal_text(opset, described(node), why))


def text_of(value: Any) -> str:
    """The text of an attribute, which ONNX holds as bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def names_read(node: onnx.NodeProto) -> set[str]:
    """All that the node reads, inside its subgraphs too."""
    return set(node.input).union(*map(captured_by, subgraphs(node)))


def captured_by(graph: onnx.GraphProto) -> set[str]:
    """The names that a subgraph reads from the graph around it."""
    own = {name for node in graph.node for name in node.output}
    own.update(tensor.name for tensor in graph.initializer)
    own.update(value.name for value in graph.input)
    return {value.name for value in graph.output}.union(*map(names_read, graph.node)) - own - {""}
