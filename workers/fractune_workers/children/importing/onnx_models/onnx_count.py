"""The number of nodes of an ONNX model with its functions inlined, counted without inlining them.

A call of a function counts as at least one node, because inlining visits even an empty function. A node of many inputs
and outputs counts as several nodes, because the importer makes an operator, or a field of a tuple, of each of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import onnx

from fractune_core.errors import BadModel
from fractune_workers.children.importing.limits import Limits
from fractune_workers.children.importing.onnx_graph import described, domain_of, subgraphs

MOST_CONNECTIONS = 2_048
"""Inputs and outputs of one node: the importer takes a time that grows with their square"""
_CONNECTIONS = 8
"""Inputs and outputs that count as one node. Only LSTM and similar nodes have more, and nodes that join or split."""

_Name = tuple[str, str, str]
"""domain, name and overload of a function"""


def check_count(model: onnx.ModelProto, limits: Limits) -> None:
    """Raises BadModel for too many nodes or values, for sparse weights, and for functions that call themselves."""
    functions = {(domain_of(each.domain), each.name, each.overload): each for each in model.functions}
    counts: dict[_Name, int] = {}
    for each, function in functions.items():
        _count_function(each, functions, counts)
        limits.check_nodes(counts[each], f"function '{function.name}', with the functions it calls inlined,")
    limits.check_nodes(_count(model.graph.node, counts), "the graph, with all functions inlined,")
    for what, values in (
        ("weights", model.graph.initializer),
        ("inputs", model.graph.input),
        ("outputs", model.graph.output),
    ):
        limits.check_nodes(len(values), f"the list of the graph's {what}")
    if model.graph.sparse_initializer:
        name = model.graph.sparse_initializer[0].values.name
        raise BadModel(f"weight '{name}' is sparse; save the model with dense weights")


def count_nodes(nodes: Iterable[onnx.NodeProto]) -> int:
    """The count of nodes that call no functions."""
    return _count(nodes, {})


def _count_function(name: _Name, functions: dict[_Name, onnx.FunctionProto], counts: dict[_Name, int]) -> None:
    """Fill in the count of a function, and of all that it calls. Raises BadModel for a cycle."""
    waiting, open_names = [name], set[_Name]()
    while waiting:
        current = waiting[-1]
        called = {each for each in _called(functions[current].node) if each in functions and each not in counts}
        if current in counts or not called:
            counts.setdefault(current, _count(functions[current].node, counts))
            open_names.discard(waiting.pop())
        elif current in open_names:
            raise BadModel(f"function '{current[1]}' calls itself, by way of others or directly; export without it")
        else:
            open_names.add(current)
            waiting.extend(called)


def _count(nodes: Iterable[onnx.NodeProto], counts: dict[_Name, int]) -> int:
    return sum(max(_count_one(node), counts.get(_name(node), 1)) + _count_inside(node, counts) for node in nodes)


def _count_one(node: onnx.NodeProto) -> int:
    """The count of a node without its subgraphs. Raises BadModel for too many inputs and outputs."""
    connections = len(node.input) + len(node.output)
    if connections > MOST_CONNECTIONS:
        raise BadModel(
            f"{described(node)} has {connections:,} inputs and outputs, and {MOST_CONNECTIONS:,} is the limit; "
            "join or split in several steps"
        )
    return math.ceil(connections / _CONNECTIONS)


def _count_inside(node: onnx.NodeProto, counts: dict[_Name, int]) -> int:
    return sum(_count(graph.node, counts) for graph in subgraphs(node))


def _called(nodes: Iterable[onnx.NodeProto]) -> Iterable[_Name]:
    for node in nodes:
        yield _name(node)
        for graph in subgraphs(node):
            yield from _called(graph.node)


def _name(node: onnx.NodeProto) -> _Name:
    return domain_of(node.domain), node.op_type, node.overload
