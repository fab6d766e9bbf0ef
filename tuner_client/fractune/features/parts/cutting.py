"""An ONNX file, cut at the nodes that cannot be imported, in a process of its own, which ONNX's C++ may end.

ONNX Runtime folds the arithmetic of shapes, and two runs on random inputs give the types and shapes of all values.

`python -m fractune.features.parts.cutting PARENT_PID ORDER FOLDER`: ORDER is JSON with `model`, `shapes` and `refused`.
The last line of standard output is JSON: the `stages`, or a one-line `error`.
"""

import json
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

from fractune_core.errors import BadModel, first_line
from fractune_core.files.staged import MOST_PARTS, Stages, Step, Tensor, part_entry
from fractune_core.host.parent_death import die_with_parent
from fractune_core.operators import RefusedNode
from fractune_runtime.tvm_runtime.drawing import accepted_integers, typical_inputs
from fractune_runtime.tvm_runtime.tensors import Array, TensorSpec

# An ONNX graph, and the part of each of its nodes.
#
# The parts are numbered in the order of running. Those with even numbers are imported and tuned, those with odd
# numbers are run by ONNX Runtime.

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


_RUNS = 2
_SHOWN = 80
"""characters of a name in an error"""
_ONNX = ("", "ai.onnx")
_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_NUMBERS = {"bool", "float16", "float32", "float64", *_INTEGERS}
"""types of the values that may lie between two parts"""


def cut(model: Path, shapes: Mapping[str, Sequence[int]], refused: Sequence[RefusedNode], folder: Path) -> Stages:
    """The parts of the model with inputs of these `shapes`; open axes that are not given have the size 1. Each part is
    a file in `folder`: `0.onnx` and so on, by the place of its step.

    Raises BadModel if nothing is refused in it, or ONNX Runtime does not run it.
    """
    whole = _simplified(_with_shapes(onnx.load(model), shapes, model.name), model.name, folder)
    _check_outputs(whole.graph)
    _drop_unneeded(whole.graph)
    nodes, values = list(whole.graph.node), _values(whole, model.name)
    named = {place for place, node in enumerate(nodes) if any(_holds(node, each) for each in refused)}
    if not named:
        raise BadModel("no node of the model is the refused one")
    fixed = {name for name, value in values.items() if None not in value.shape}
    fixed.update(weight.name for weight in whole.graph.initializer)
    moving = {place for place, node in enumerate(nodes) if not fixed.issuperset(_names(node))}
    return _written(whole, part_numbers(nodes, named | moving), values, folder)


def _with_shapes(model: onnx.ModelProto, shapes: Mapping[str, Sequence[int]], name: str) -> onnx.ModelProto:
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = [each for each in model.graph.input if each.name not in weights]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    model.ir_version = max(model.ir_version, 4)  # before, weights are inputs
    sizes: dict[str, int] = {}
    for each in model.graph.input:
        dims = each.type.tensor_type.shape.dim
        if each.name in shapes and len(shapes[each.name]) != len(dims):
            raise BadModel(f"{name}: input '{each.name}' has {len(dims)} axes; give as many sizes")
        for dim, size in zip(dims, shapes.get(each.name, ()), strict=False):
            sizes[dim.dim_param] = size
            dim.dim_value = size
    for each in model.graph.input:
        for dim in each.type.tensor_type.shape.dim:
            if not dim.HasField("dim_value"):
                dim.dim_value = sizes.get(dim.dim_param, 1) if dim.dim_param else 1
    del model.graph.value_info[:]
    for output in model.graph.output:
        if output.type.HasField("tensor_type"):
            output.type.tensor_type.ClearField("shape")
    return model


def _simplified(model: onnx.ModelProto, name: str, folder: Path) -> onnx.ModelProto:
    """The model as ONNX Runtime reads it, with its constants folded."""
    path = folder / "simplified.onnx"
    _session(model, name, str(path), onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC)
    found = onnx.load(path)
    path.unlink()
    return found


def _check_outputs(graph: onnx.GraphProto) -> None:
    """Raises BadModel for an output that no part would make."""
    weights = {weight.name for weight in graph.initializer}
    for each in graph.output:
        if each.name in weights:
            raise BadModel(f"its output '{each.name}' is a constant; leave it out when you export the model")


def _drop_unneeded(graph: onnx.GraphProto) -> None:
    nodes = list(graph.node)
    kept = needed(nodes, [each.name for each in graph.output])
    del graph.node[:]
    graph.node.extend(nodes[place] for place in kept)


def _session(model: onnx.ModelProto, name: str, optimized: str, level: Any) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3  # errors only
    options.graph_optimization_level = level
    if optimized:
        options.optimized_model_filepath = optimized
    try:
        return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its exceptions have no common base
        raise BadModel(f"{name}: ONNX Runtime cannot run it either ({first_line(error)})") from error


def _values(model: onnx.ModelProto, name: str) -> dict[str, Tensor]:
    """The values that are tensors. A shape that depends on data has None for all of its axes."""
    shown = onnx.ModelProto()
    shown.CopyFrom(model)
    held = {each.name for each in shown.graph.output}
    extra = [each for node in model.graph.node for each in node.output if each and each not in held]
    shown.graph.output.extend(onnx.ValueInfoProto(name=each) for each in extra)
    session = _session(shown, name, "", onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL)
    names = [each.name for each in session.get_outputs()]

    def run(feed: dict[str, Array]) -> dict[str, Array]:
        try:
            found = session.run(names, feed)
        except Exception as error:
            raise BadModel(f"{name}: ONNX Runtime cannot run it either ({first_line(error)})") from error
        return {**feed, **{each: value for each, value in zip(names, found, strict=True) if _is_tensor(value)}}

    specs = _input_specs(model.graph)
    # An index outside of its axis is an error; a NaN of the model's own says nothing.
    within = accepted_integers(specs, lambda feed: [np.zeros(len(run(feed)))])
    runs = [run(typical_inputs(specs, within, seed)) for seed in range(_RUNS)]
    types = {each: str(value.dtype) for each, value in runs[0].items()}
    shapes = [{each: tuple(value.shape) for each, value in run.items()} for run in runs]
    foreign = {each for node in model.graph.node if node.domain not in _ONNX for each in node.output}
    given = {each: (types[each], shape) for each, shape in shapes[0].items() if each in foreign}
    fixed = static_shapes({**_inferred(model, given), **{each: shape for each, (_, shape) in given.items()}}, shapes)
    return {
        each: Tensor(each, types[each], list(fixed.get(each, [None] * len(shape)))) for each, shape in shapes[0].items()
    }


def _inferred(model: onnx.ModelProto, given: Mapping[str, tuple[str, Shape]]) -> dict[str, Shape | None]:
    """The shapes that ONNX infers, with those `given` for the results of operators that it does not know."""
    asked = onnx.ModelProto()
    asked.CopyFrom(model)
    for name, (dtype, shape) in given.items():
        kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        asked.graph.value_info.append(onnx.helper.make_tensor_value_info(name, kind, shape))
    try:
        graph = onnx.shape_inference.infer_shapes(asked, data_prop=True).graph
    except Exception:  # noqa: BLE001  it raises several unrelated types; then no shape is known
        graph = asked.graph
    values = [*graph.value_info, *graph.input, *graph.output]
    return {each.name: _fixed_shape(each.type.tensor_type) for each in values}


def _fixed_shape(kind: Any) -> Shape | None:
    if not kind.HasField("shape") or not all(dim.HasField("dim_value") for dim in kind.shape.dim):
        return None
    return tuple(dim.dim_value for dim in kind.shape.dim)


def _input_specs(graph: onnx.GraphProto) -> list[TensorSpec]:
    made = []
    for each in graph.input:
        kind = each.type.tensor_type
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type) if kind.elem_type else None
        if dtype is None or dtype.name not in _NUMBERS:
            raise BadModel(f"its input '{each.name}' is not a tensor of numbers")
        made.append(TensorSpec(each.name, dtype.name, tuple(dim.dim_value for dim in kind.shape.dim)))
    return made


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "dtype") and value.dtype.name in _NUMBERS


def _holds(node: onnx.NodeProto, refused: RefusedNode) -> bool:
    """Whether the node, or one in its subgraphs, is the refused one."""
    if refused.is_node(node.name, next(iter(node.output), ""), _operator(node)):
        return True
    return any(_holds(inner, refused) for graph in subgraphs(node) for inner in graph.node)


def _operator(node: onnx.NodeProto) -> str:
    return str(node.op_type) if node.domain in _ONNX else f"{node.domain}.{node.op_type}"


def _names(node: onnx.NodeProto) -> set[str]:
    """All that a node reads or makes."""
    return names_read(node).union(filter(None, node.output))


def _written(model: onnx.ModelProto, numbers: Sequence[int], values: Mapping[str, Tensor], folder: Path) -> Stages:
    """Write the parts, and describe them."""
    nodes = list(model.graph.node)
    outputs = [each.name for each in model.graph.output]
    made = crossing(nodes, numbers, outputs)
    steps: list[Step] = []
    members = 0
    for number in sorted(set(numbers)):
        part = [node for node, each in zip(nodes, numbers, strict=True) if each == number]
        step = Step(
            [_tensor(values, name) for name in _read(model, part)],
            [_tensor(values, name) for name in made[number]],
            None if number % 2 else members,
            part_entry(len(steps) - members) if number % 2 else "",
            dict(Counter(map(_operator, part))) if number % 2 else {},
        )
        members += number % 2 == 0
        _write(model, part, step, folder / f"{len(steps)}.onnx")
        steps.append(step)
    inputs = [_tensor(values, each.name) for each in model.graph.input]
    return Stages(inputs, [_tensor(values, name) for name in outputs], steps)


def _tensor(values: Mapping[str, Tensor], name: str) -> Tensor:
    if not name.isprintable():
        raise BadModel(f"its value {name[:_SHOWN]!r} has a name that cannot be printed; rename it when you export it")
    if name not in values:
        raise BadModel(f"its value '{name}' is not a tensor of numbers, and would lie between two parts")
    return values[name]


def _read(model: onnx.ModelProto, part: Sequence[onnx.NodeProto]) -> list[str]:
    """What the nodes of a part read of other parts and of the inputs, in the order of reading."""
    inside = {name for node in part for name in node.output}
    inside.update(weight.name for weight in model.graph.initializer)
    return list(dict.fromkeys(name for node in part for name in sorted(names_read(node)) if name not in inside))


def _write(model: onnx.ModelProto, part: Sequence[onnx.NodeProto], step: Step, path: Path) -> None:
    """The nodes with the weights that they read, as a model of its own."""
    read = set().union(*map(names_read, part))
    weights = [weight for weight in model.graph.initializer if weight.name in read]
    graph = onnx.helper.make_graph(part, path.stem, _infos(step.inputs), _infos(step.outputs), weights)
    made = onnx.helper.make_model(graph, opset_imports=model.opset_import, functions=model.functions)
    made.ir_version = model.ir_version
    path.write_bytes(made.SerializeToString())


def _infos(tensors: Sequence[Tensor]) -> list[onnx.ValueInfoProto]:
    kinds = [onnx.helper.np_dtype_to_tensor_dtype(np.dtype(each.dtype)) for each in tensors]
    return [
        onnx.helper.make_tensor_value_info(each.name, kind, each.shape)
        for each, kind in zip(tensors, kinds, strict=True)
    ]


def main() -> None:
    parent_pid, order, folder = sys.argv[1:]
    die_with_parent(int(parent_pid))
    given = json.loads(order)
    refused = [RefusedNode(each["name"], each["output"], tuple(each["operators"])) for each in given["refused"]]
    answer: dict[str, object]
    try:
        answer = {"stages": cut(Path(given["model"]), given["shapes"], refused, Path(folder)).to_json()}
    except BadModel as error:
        answer = {"error": str(error)}
    except Exception as error:  # noqa: BLE001  ONNX raises several unrelated types at a graph that it cannot read
        answer = {"error": f"{Path(given['model']).name}: {first_line(error)}"}
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
