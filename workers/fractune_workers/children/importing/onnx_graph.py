"""The parts of an ONNX graph by the names that users know, and the graphs inside it."""

import graphlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import onnx
from google.protobuf.message import DecodeError

from fractune_core.errors import BadModel
from fractune_core.operators import node_text, refusal_text

_SEPARATOR = "\x1f"
"""in the names of nodes that are made here: between a name, an output, an operator and a number"""
_PARTS = 4
_COUNTER = itertools.count()


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


def all_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """The nodes, and those of their subgraphs."""
    for node in nodes:
        yield node
        for graph in subgraphs(node):
            yield from all_nodes(graph.node)


def domain_of(name: str) -> str:
    """The domain of an operator or a function; empty for ONNX's own, which has two names."""
    return "" if name == "ai.onnx" else name


def opset_of(model: onnx.ModelProto | onnx.FunctionProto) -> int:
    """The version of ONNX's own operators in it."""
    return next((entry.version for entry in model.opset_import if not domain_of(entry.domain)), 1)


def set_opset(model: onnx.ModelProto | onnx.FunctionProto, version: int) -> None:
    others = [entry for entry in model.opset_import if domain_of(entry.domain)]
    del model.opset_import[:]
    model.opset_import.extend([onnx.helper.make_opsetid("", version), *others])


def operator_of(node: onnx.NodeProto) -> str:
    domain = domain_of(node.domain)
    return f"{domain}.{node.op_type}" if domain else str(node.op_type)


def name_of_part(node: onnx.NodeProto) -> str:
    """A name for a node that is made in the place of this one, by which `described` finds the file's own node."""
    own = _own_node(node)
    return _SEPARATOR.join([*own, str(next(_COUNTER))])


def described(node: onnx.NodeProto) -> str:
    """The file's own node: of one that is made here, the node in whose place it is."""
    return node_text(*_own_node(node))


def _own_node(node: onnx.NodeProto) -> tuple[str, str, str]:
    """Its name, its first output and its operator."""
    parts = node.name.split(_SEPARATOR)
    if len(parts) == _PARTS:
        return parts[0], parts[1], parts[2]
    return node.name.replace(_SEPARATOR, ""), next(iter(node.output), ""), operator_of(node)


def refusal(node: onnx.NodeProto, opset: int, why: str) -> BadModel:
    """The error for a node that cannot be imported. `opset`: the model's. `why` says what is wrong, and what to do."""
    return BadModel(refusal_text(opset, described(node), why))


def refusal_of(node: onnx.NodeProto, opset: int) -> str:
    """The beginning of `refusal`, before the reason."""
    return refusal_text(opset, described(node), "")


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


def makers_of(nodes: Iterable[onnx.NodeProto]) -> dict[str, int]:
    """By name of a value: the place of the node that makes it."""
    return {name: place for place, node in enumerate(nodes) for name in node.output if name}


def needed_for(names: Iterable[str], nodes: Sequence[onnx.NodeProto]) -> list[int]:
    """The places of the nodes that values of these names follow from, in their order."""
    makers = makers_of(nodes)
    found, waiting = set[int](), list(names)
    while waiting:
        place = makers.get(waiting.pop())
        if place is not None and place not in found:
            found.add(place)
            waiting.extend(names_read(nodes[place]))
    return sorted(found)


def in_order(nodes: Sequence[onnx.NodeProto]) -> Sequence[onnx.NodeProto]:
    """The nodes in an order where each comes after the nodes that it reads. Raises BadModel for a cycle."""
    makers = makers_of(nodes)
    before = [{makers[name] for name in names_read(node) if name in makers} for node in nodes]
    if all(made < index for index, needed in enumerate(before) for made in needed):
        return nodes
    try:
        order = list(graphlib.TopologicalSorter(dict(enumerate(before))).static_order())
    except graphlib.CycleError as error:
        raise BadModel("has nodes that wait for each other's outputs; export the model again") from error
    return [nodes[index] for index in order]
