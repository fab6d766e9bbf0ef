"""What is changed in a valid ONNX model: its structure, field by field, as an exporter with a bug or an enemy would."""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import onnx
from onnx import TensorProto, helper, numpy_helper

from fractune_workers.children.importing.onnx_graph import subgraphs
from tests.support.fuzz.mutations import Mutator

_COUNTS = (1, 1, 1, 2, 3)
"""of edits: after one, much of a model is still read"""
_SIZES = (0, 1, -1, 2, 3, 7, 64, 1000, 2**16, 2**31 - 1, 2**31, 2**33, 2**62, 2**63 - 1, -(2**63))
_TYPES = (*range(27), 99)
_OPSETS = (-1, 0, 1, 5, 7, 9, 11, 12, 13, 17, 21, 24, 999, 2**40)
_REALS = (0.0, -1.0, 1e-45, 3e38, float("nan"), float("inf"), float("-inf"))
_BYTES = (b"", b"NOTSET", b"SAME_UPPER", b"linear", b"nearest", b"cubic", b"LEFT", b"ij,jk->ik", b"...i->...", b"\xff")
_DOMAINS = ("", "ai.onnx", "com.microsoft", "ai.onnx.ml", "fractune", "own")
_OPERATORS = tuple(sorted({each.name for each in onnx.defs.get_all_schemas()} | {"Nothing", ""}))
_FILES = ("weights.bin", "/etc/passwd", "../../secret", "", "\n")
_LARGEST_WEIGHT = 4096
"""elements that an edit of a weight's numbers looks at"""

Edit = Callable[[Random, onnx.ModelProto, onnx.GraphProto], None]
"""Changes the model or one of its graphs, in place; nothing where there is nothing of the kind."""


def edited(model: onnx.ModelProto, mutator: Mutator) -> bytes:
    """A file of the model with a few edits of its structure, or of its bytes."""
    random = mutator.random
    if random.random() < 0.1:
        return mutator.blob(model.SerializeToString())
    made = onnx.ModelProto()
    made.CopyFrom(model)
    for _ in range(random.choice(_COUNTS)):
        random.choice(_EDITS)(random, made, random.choice(_graphs(made.graph)))
    return bytes(made.SerializeToString())


def _graphs(graph: onnx.GraphProto) -> list[onnx.GraphProto]:
    """The graph and those inside it."""
    return [graph, *(each for node in graph.node for inner in subgraphs(node) for each in _graphs(inner))]


def _one(random: Random, things: Sequence[Any]) -> Any:
    return random.choice(things) if things else None


def _names(graph: onnx.GraphProto) -> list[str]:
    made = [name for node in graph.node for name in (*node.input, *node.output)]
    return [*made, *(each.name for each in graph.input), *(each.name for each in graph.initializer), "", "nothing"]


def _attribute(random: Random, _: onnx.ModelProto, graph: onnx.GraphProto) -> None:
    node = _one(random, [node for node in graph.node if node.attribute])
    if node is None:
        return
    at = random.randrange(len(node.attribute))
    each, draw = node.attribute[at], random.random()
    if draw < 0.15:
        del node.attribute[at]
    elif draw < 0.2:
        node.attribute.add().CopyFrom(each)
    elif draw < 0.3:
        each.type = random.choice(
            (each.INT, each.FLOAT, each.STRING, each.INTS, each.TENSOR, each.GRAPH, each.UNDEFINED)
        )
    elif each.type == each.INTS:
        _numbers(random, each.ints)
    elif each.type == each.FLOATS and each.floats:
        each.floats[random.randrange(len(each.floats))] = random.choice(_REALS)
    else:
        each.i, each.f, each.s = random.choice(_SIZES), random.choice(_REALS), random.choice(_BYTES)


def _numbers(random: Random, numbers: Any) -> None:
    draw = random.random()
    if draw < 0.2 or not numbers:
        numbers.append(random.choice(_SIZES))
    elif draw < 0.4:
        del numbers[random.randrange(len(numbers))]
    else:
        numbers[random.randrange(len(numbers))] = random.choice(_SIZES)


def _new_attribute(random: Random, _: onnx.ModelProto, graph: onnx.GraphProto) -> None:
    node = _one(random, graph.node)
    if node is None or not onnx.defs.has(node.op_type):
        return
    name = _one(random, sorted(onnx.defs.get_schema(node.op_type).attributes))
    if name is not None and name not in {each.name for each in node.attribute}:
        values: tuple[Any, ...] = (*_SIZES, *_REALS, *_BYTES, [1, 1], [0, 1, -1], [2**40])
        node.attribute.append(helper.make_attribute(name, random.choice(values)))


def _shape(random: Random, _: onnx.ModelProto, graph: onnx.GraphProto) -> None:
    value = _one(random, [*graph.input, *graph.output, *graph.value_info])
    if value is None or not value.type.HasField("tensor_type"):
        return
    tensor, draw = value.type.tensor_type, random.random()
    if draw < 0.1:
        tensor.ClearField("shape")
    elif draw < 0.3 or not tensor.shape.dim:
        tensor.shape.dim.add().dim_value = random.choice(_SIZES)
    elif draw < 0.45:
        del tensor.shape.dim[random.randrange(len(tensor.shape.dim))]
    elif draw < 0.55:
        random.choice(tensor.shape.dim).dim_param = random.choice(("N", "?", "-1", ""))
    else:
        random.choice(tensor.shape.dim).dim_value = random.choice(_SIZES)


def _kind(random: Random, _: onnx.ModelProto, graph: onnx.GraphProto) -> None:
    """Another element type, or no tensor."""
    value = _one(random, [*graph.input, *graph.output])
    if value is None:
        return
    draw = random.random()
    if draw < 0.8:
        value.type.tensor_type.elem_type = random.choice(_TYPES)
    elif draw < 0.9:
        value.type.CopyFrom(helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, [2])))
    else:
        value.ClearField("type")


def _weight(random: Random, _: onnx.ModelProto, graph: onnx.GraphProto) -> None:
    constants = [each.t for node in graph.node for each in node.attribute if each.HasField("t")]
    tensor = _one(random, [*graph.initializer, *constants])
    if tensor is None:
        return
    draw = random.random()
    if draw < 0.2:
        _numbers(random, tensor.dims)
    elif draw < 0.35:
        tensor.data_type = random.choice(_TYPES)
    elif draw < 0.45:
        tensor.raw_data = tensor.raw_data[: random.randint(0, len(tensor.raw_data))]
    elif draw < 0.55:
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=random.choice(_FILES))
    else:
        _other_numbers(random, tensor)


def _other_numbers(random: Random, tensor: onnx.TensorProto) -> None:
    """Shapes, axes, sizes and trip counts are weights."""
    try:
        numbers = numpy_helper.to_array(tensor).copy()
    except Exception:  # noqa: BLE001  an edit before this one has broken it
        return
    if 0 < numbers.size <= _LARGEST_WEIGHT and numbers.dtype.kind in "iuf":
        odd = random.choice(_REALS if numbers.dtype.kind == "f" else _SIZES)
        limits = None if numbers.dtype.kind == "f" else (2 ** (8 * numbers.itemsize - 1) - 1)
        numbers.reshape(-1)[random.randrange(numbers.size)] = odd if limits is None else max(0, min(odd, limits))
        if limits is not None and odd < 0 and numbers.dtype.kind == "i":
            numbers.reshape(-1)[random.randrange(numbers.size)] = max(odd, -limits - 1)
        tensor.CopyFrom(numpy_helper.from_array(numbers, tensor.name))


def _weights_set(random: Random, _: onnx.ModelProto, graph: onnx.GraphProto) -> None:
    """A weight less, one twice, one that nothing reads, or one in the place of an input."""
    at = random.randrange(len(graph.initializer)) if graph.initializer else None
    draw = random.random()
    if at is not None and draw < 0.4:
        del graph.initializer[at]
    elif at is not None and draw < 0.6:
        graph.initializer.add().CopyFrom(graph.initializer[at])
    elif graph.input:
        dims = random.choice(([], [0], [1], [2, 3]))
        graph.initializer.append(
            helper.make_tensor(random.choice(graph.input).name, TensorProto.INT64, dims, [1] * 6, raw=False)
            if dims == [2, 3]
            else TensorProto(name=random.choice(graph.input).name, data_type=random.choice(_TYPES), dims=dims)
        )


def _nodes(random: Random, _: onnx.ModelProto, graph: onnx.GraphProto) -> None:
    """Another order, a node less, or one twice."""
    nodes, draw = list(graph.node), random.random()
    if not nodes:
        return
    if draw < 0.4:
        random.shuffle(nodes)
    elif draw < 0.7:
        nodes.remove(random.choice(nodes))
    else:
        nodes.insert(random.randrange(len(nodes)), random.choice(nodes))
    nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(nodes)


def _wires(random: Random, _: onnx.ModelProto, graph: onnx.GraphProto) -> None:
    """A node reads or makes another value: cycles, missing inputs, names of two tensors."""
    node = _one(random, graph.node)
    if node is None:
        return
    side, name, draw = (
        node.output if random.random() < 0.2 else node.input,
        random.choice(_names(graph)),
        random.random(),
    )
    if draw < 0.15 and side:
        del side[random.randrange(len(side))]
    elif draw < 0.3 or not side:
        side.append(name)
    else:
        side[random.randrange(len(side))] = name


def _operator(random: Random, _: onnx.ModelProto, graph: onnx.GraphProto) -> None:
    node = _one(random, graph.node)
    if node is None:
        return
    if random.random() < 0.6:
        node.op_type = random.choice(_OPERATORS)
    else:
        node.domain = random.choice(_DOMAINS)


def _opset(random: Random, model: onnx.ModelProto, _: onnx.GraphProto) -> None:
    draw = random.random()
    if draw < 0.1:
        del model.opset_import[:]
    elif draw < 0.2:
        model.ir_version = random.choice((0, 1, 3, 4, 10, 99, 2**40))
    elif draw < 0.4 or not model.opset_import:
        model.opset_import.append(helper.make_opsetid(random.choice(_DOMAINS), 1))
    else:
        random.choice(model.opset_import).version = random.choice(_OPSETS)


def _results(random: Random, _: onnx.ModelProto, graph: onnx.GraphProto) -> None:
    """Outputs and inputs of a graph: one less, one twice, or another value."""
    values = random.choice((graph.output, graph.output, graph.input))
    at, draw = (random.randrange(len(values)) if values else None), random.random()
    if at is None or draw < 0.3:
        values.add(name=random.choice(_names(graph)))
    elif draw < 0.6:
        del values[at]
    elif draw < 0.7:
        values.add().CopyFrom(values[at])
    else:
        values[at].name = random.choice(_names(graph))


def _inside(random: Random, _: onnx.ModelProto, graph: onnx.GraphProto) -> None:
    """A graph in a node: of another node, or the graph itself."""
    node = _one(random, graph.node)
    if node is None:
        return
    each = _one(random, [each for each in node.attribute if each.HasField("g")]) or node.attribute.add(
        name=random.choice(("then_branch", "else_branch", "body")), type=onnx.AttributeProto.GRAPH
    )
    inner = onnx.GraphProto()
    inner.CopyFrom(random.choice(_graphs(graph)))
    each.g.CopyFrom(inner)


def _branching(random: Random, model: onnx.ModelProto, graph: onnx.GraphProto) -> None:
    """The nodes of the graph become a branch of an `If`, or the body of a `Loop`."""
    if graph is not model.graph or not graph.node:
        return
    inner = onnx.GraphProto(name="inner", node=graph.node, output=graph.output)
    outputs = [value.name for value in graph.output]
    choice = random.choice([name for name in _names(graph) if name] or ["x"])
    if random.random() < 0.7:
        made = helper.make_node("If", [choice], outputs, then_branch=inner, else_branch=inner)
    else:
        made = helper.make_node("Loop", [choice, ""], outputs, body=inner)
    del graph.node[:]
    graph.node.append(made)


def _function(random: Random, model: onnx.ModelProto, graph: onnx.GraphProto) -> None:
    """A node becomes a call of a function of the model, which may call itself."""
    node = _one(random, graph.node)
    if node is None:
        return
    inner = onnx.NodeProto()
    inner.CopyFrom(node)
    operator = node.op_type
    node.domain = "own"
    if random.random() < 0.3:
        inner.domain = "own"
    inputs, outputs = sorted(set(filter(None, node.input))), sorted(set(filter(None, node.output)))
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    model.functions.append(helper.make_function("own", operator, inputs, outputs, [inner], opsets))
    model.opset_import.append(helper.make_opsetid("own", 1))


_EDITS: tuple[Edit, ...] = (
    *(_attribute, _attribute, _new_attribute, _shape, _shape, _kind, _weight, _weight, _weights_set, _nodes),
    *(_wires, _wires, _operator, _opset, _results, _inside, _branching, _function),
)
