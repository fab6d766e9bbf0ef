"""An ONNX graph, and the part of each of its nodes.

The parts are numbered in the order of running. Those with even numbers are imported and tuned, those with odd numbers
are run by ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from fractune_core.files.staged import MOST_PARTS

_WORTH_TUNING = (
    *("Conv", "ConvTranspose", "ConvInteger", "QLinearConv", "Gemm", "MatMul", "MatMulInteger", "QLinearMatMul"),
    *("LSTM", "GRU", "RNN", "Attention", "Einsum", "MatMulNBits", "DeformConv", "FusedConv", "FusedMatMul"),
)
"""A part of our own has one of these operators: a crossing costs more than the others gain"""

Shape = tuple[int, ...]


def names_read(node: Any) -> set[str]:
    """All that a node reads, inside its subgraphs too."""
    found = set(node.input)
    for graph in subgraphs(node):
        own = {each.name for each in (*graph.input, *graph.initializer)}
        own.update(name for inner in graph.node for name in inner.output)
        read = {each.name for each in graph.output}.union(*map(names_read, graph.node))
        found |= read - own
    return found - {""}


def needed(nodes: Sequence[Any], outputs: Collection[str]) -> list[int]:
    """The places of the nodes that the outputs depend on; `nodes` are in an order of running."""
    wanted, kept = set(outputs), []
    for place in reversed(range(len(nodes))):
        if wanted.intersection(nodes[place].output):
            wanted |= names_read(nodes[place])
            kept.append(place)
    return kept[::-1]


def part_numbers(nodes: Sequence[Any], others: Collection[int]) -> list[int]:
    """The part of each node; `nodes` are in an order of running. `others` are the places of nodes that ONNX Runtime
    must run. It runs whole parts that are not worth a crossing as well. If it would run more than `MOST_PARTS`, one
    part of it holds all that lies between.
    """
    numbers = _numbered(nodes, others)
    heavy = {number for node, number in zip(nodes, numbers, strict=True) if node.op_type in _WORTH_TUNING}
    light = {place for place, number in enumerate(numbers) if number % 2 == 0 and number not in heavy}
    if light:
        numbers = _numbered(nodes, {*others, *light})
    odd = sorted({number for number in numbers if number % 2})
    if len(odd) > MOST_PARTS:
        between = {place for place, number in enumerate(numbers) if odd[0] <= number <= odd[-1]}
        numbers = _numbered(nodes, {*others, *between})
    return numbers


def _numbered(nodes: Sequence[Any], others: Collection[int]) -> list[int]:
    """Each node in the earliest part in which all that it reads is there."""
    made: dict[str, int] = {}
    numbers = []
    for place, node in enumerate(nodes):
        earliest = max((made.get(name, 0) for name in names_read(node)), default=0)
        number = earliest + (earliest % 2 != (place in others))
        made.update(dict.fromkeys(filter(None, node.output), number))
        numbers.append(number)
    return numbers


def crossing(nodes: Sequence[Any], numbers: Sequence[int], outputs: Collection[str]) -> dict[int, list[str]]:
    """By part: the values that it makes for later parts or as `outputs` of the model, in their order."""
    made = {name: number for node, number in zip(nodes, numbers, strict=True) for name in node.output if name}
    needed = set(outputs)
    for node, number in zip(nodes, numbers, strict=True):
        needed.update(name for name in names_read(node) if made.get(name, number) != number)
    found: dict[int, list[str]] = {number: [] for number in numbers}
    for name, number in made.items():
        if name in needed:
            found[number].append(name)
    return found


def static_shapes(inferred: Mapping[str, Shape | None], measured: Sequence[Mapping[str, Shape]]) -> dict[str, Shape]:
    """The shapes that do not depend on data: those that ONNX infers, and that several runs agree on."""
    first, *rest = measured
    return {
        name: shape
        for name, shape in first.items()
        if inferred.get(name) == shape and all(each.get(name) == shape for each in rest) and 0 not in shape
    }


def subgraphs(node: Any) -> Iterator[Any]:
    """The bodies of a loop or a branch."""
    for each in node.attribute:
        if each.HasField("g"):
            yield each.g
        yield from each.graphs
