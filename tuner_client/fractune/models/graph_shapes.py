"""The shapes of all values of an ONNX graph for sizes of its inputs, and the sizes in it that must be equal.

The caller has the package `onnx`, and runs in a sandbox: the graph may come from a stranger. The work is bounded.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from fractune_core.errors import first_line, one_line, shortened

_MOST_WORK = 100_000
"""nodes whose shapes are inferred, in all trials together; a node takes some 10 us"""
_MOST_TRIALS = 150
_NUMBERS_KEPT = 64
"""of a constant that decides a shape"""
_MOST_NUMBERS = 1 << 14
"""of a computed value"""
_MOST_PASSES = 6
_FOLD_WORK = 10
"""nodes whose shapes are inferred in the time in which one is computed"""
_FOLDED = frozenset(
    (
        *("Shape", "Size", "Gather", "Slice", "Unsqueeze", "Squeeze", "Concat", "Reshape", "Transpose", "Identity"),
        *("Add", "Sub", "Mul", "Div", "Mod", "Neg", "Abs", "Floor", "Ceil", "Round", "Cast", "Min", "Max"),
        *("Equal", "Greater", "Less", "Not", "And", "Or", "Where", "Range", "ConstantOfShape", "NonZero", "CumSum"),
    )
)
"""the arithmetic of shapes"""
NAME_CHARACTERS = 40
_ELEMENTWISE = frozenset(
    ("Add", "Sub", "Mul", "Div", "Pow", "Where", "Equal", "Greater", "Less", "And", "Or", "Min", "Max", "Sum", "PRelu")
)
_INDEX_MAKERS = frozenset({"Range", "CumSum"})
_PASSING = frozenset({"Unsqueeze", "Squeeze", "Reshape", "Expand", "Cast", "Add", "Sub", "Identity", "Mul", "Slice"})
"""what may stand between the positions 0, 1, 2, ... and the table that is read at them"""
_BACK = 12
_LENGTHS = 5
"""input of GroupQueryAttention, which follows from the mask; two before it are the keys of the cache"""

Shape = tuple[int | None, ...]
Terms = Sequence[tuple[int, Sequence[int]]]
"""a sum of products: factors, each with the numbers of the sizes that it goes with"""


Rule = Callable[[Any, Sequence[Shape | None], str], Iterator["Pair"]]
"""of a node, the shapes of its inputs, and words for its place"""


class Spent(Exception):
    """The work is at its bound."""


class Pair(NamedTuple):
    """Two sizes that must be equal."""

    left: int | None
    right: int | None
    why: str
    is_bound: bool = False
    """whether many sizes fit: a window or a table limits them"""


class Graph:
    """A model whose shapes are inferred for sizes of its inputs."""

    def __init__(
        self, data: bytes, inputs: Sequence[Mapping[str, Any]], places: Sequence[Any], symbols: Sequence[str] = ()
    ) -> None:
        """`places` has those of each open size, and `symbols` its name in the file."""
        import onnx

        self._model = onnx.ModelProto.FromString(data)
        graph = self._model.graph
        self.metadata = {each.key: each.value for each in self._model.metadata_props}
        self.nodes = list(graph.node)
        self._makers = {name: node for node in self.nodes for name in node.output if name}
        self._weights = {each.name: tuple(each.dims) for each in graph.initializer}
        self._constants = _constants(graph)
        self._declared = [
            (each.name, shape)
            for each in (*graph.value_info, *graph.output)
            if (shape := _shape(each)) is not None and any(shape)
        ]
        numbers = {name: at for at, name in enumerate(symbols)}
        self._named = [
            (each.name, axis, numbers[dim.dim_param])
            for each in (*graph.value_info, *graph.output)
            for axis, dim in enumerate(each.type.tensor_type.shape.dim)
            if dim.dim_param in numbers
        ]
        self._inputs = inputs
        self.places = places
        self.formulas: dict[int, Terms] = {}
        """of sizes that follow from others"""
        self._left, self._trials = _MOST_WORK, _MOST_TRIALS
        self._results: dict[tuple[Any, ...], Any] = {}
        del graph.value_info[:]
        for each in graph.output:
            each.type.tensor_type.ClearField("shape")

    def renew(self) -> None:
        """Make as much work possible as at the beginning."""
        self._left, self._trials = _MOST_WORK, _MOST_TRIALS

    def completed(self, sizes: Sequence[int]) -> list[int]:
        """The sizes, with those that follow from others."""
        made = list(sizes)
        for at, terms in self.formulas.items():
            made[at] = max(1, sum(factor * math.prod(made[each] for each in names) for factor, names in terms))
        return made

    def named(self, shapes: Mapping[str, Shape], sizes: Sequence[int]) -> list[tuple[int | None, int]]:
        """The sizes of values whose axes the file gives names of inputs' axes, and what they should be."""
        return [(_at(shapes.get(name), axis), sizes[at]) for name, axis, at in self._named]

    def shapes(self, sizes: Sequence[int], until: int = -1) -> dict[str, Shape]:
        """The shapes of all values that can be inferred, of those before the node `until` if that is given."""
        import onnx

        count = until + 1 if until >= 0 else len(self.nodes)
        model, known = self._sized(sizes, count), dict(self._constants)
        self._trials -= 1
        for _ in range(_MOST_PASSES):
            self._spend(len(model.graph.node))
            try:
                graph = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
            except Exception:  # noqa: BLE001  several unrelated types; then no shape is known
                graph = model.graph
            values = (*graph.value_info, *graph.output, *graph.input)
            found = {each.name: shape for each in values if (shape := _shape(each)) is not None}
            found.update((name, value.shape) for name, value in known.items())
            if not self._fold(model.graph, known, found):
                break
        return {**self._weights, **found}

    def _spend(self, nodes: int) -> None:
        self._left -= nodes
        if min(self._left, self._trials) < 0:
            raise Spent

    def _fold(self, graph: Any, known: dict[str, Any], shapes: Mapping[str, Shape]) -> bool:
        """Compute what follows from known numbers and shapes, in place; False if there is nothing."""
        from onnx import numpy_helper

        kept = []
        for node in graph.node:
            value = self._value(node, known, shapes) if node.op_type in _FOLDED and len(node.output) == 1 else None
            if value is None:
                kept.append(node)
            else:
                known[node.output[0]] = value
                graph.initializer.append(numpy_helper.from_array(value, node.output[0]))
        is_changed = len(kept) < len(graph.node)
        del graph.node[:]
        graph.node.extend(kept)
        return is_changed

    def _value(self, node: Any, known: Mapping[str, Any], shapes: Mapping[str, Shape]) -> Any:
        """The result of a node whose inputs are known; None for others, and for one that fails or is large."""
        import numpy as np

        if node.op_type == "Shape":
            shape = shapes.get(node.input[0], (None,))
            shape = shape[_integer(node, "start") : _integer(node, "end", len(shape))]
            return None if None in shape else np.array(shape, np.int64)
        if not known.keys() >= set(filter(None, node.input)):
            return None
        inputs = {name: known[name] for name in node.input if name}
        if _makes_many(node, list(inputs.values())):
            return None
        key = (node.output[0], *(each.tobytes() for each in inputs.values()))
        if key not in self._results:
            self._spend(_FOLD_WORK)
            self._results[key] = self._computed(node, inputs)
        return self._results[key]

    def _computed(self, node: Any, inputs: Mapping[str, Any]) -> Any:
        from onnx import helper
        from onnx.reference import ReferenceEvaluator

        read = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(each.dtype), each.shape)
            for name, each in inputs.items()
        ]
        graph = helper.make_graph([node], "node", read, [helper.make_empty_tensor_value_info(node.output[0])])
        model = helper.make_model(graph, opset_imports=self._model.opset_import)
        try:
            found: Any = next(iter(ReferenceEvaluator(model).run(None, dict(inputs))))
        except Exception:  # noqa: BLE001  several unrelated types
            return None
        return found if _is_numeric(found) and found.size <= _MOST_NUMBERS else None

    def strict_error(self, sizes: Sequence[int]) -> str:
        """What ONNX's shape inference says against these sizes; empty for nothing."""
        import onnx

        try:
            onnx.shape_inference.infer_shapes(self._sized(sizes, len(self.nodes)), strict_mode=True, data_prop=True)
        except Exception as error:  # noqa: BLE001  several unrelated types
            return "" if "TypeInferenceError" in str(error) else first_line(error)
        return ""

    def _sized(self, sizes: Sequence[int], count: int) -> Any:
        import onnx

        model = onnx.ModelProto()
        if count == len(self.nodes):
            model.CopyFrom(self._model)
        else:
            model.ir_version = self._model.ir_version
            model.opset_import.extend(self._model.opset_import)
            model.functions.extend(self._model.functions)
            model.graph.name = "part"
            model.graph.input.extend(self._model.graph.input)
            model.graph.initializer.extend(self._model.graph.initializer)
            model.graph.node.extend(self.nodes[:count])
        dims = {each["name"]: list(each["shape"]) for each in self._inputs}
        for size, places in zip(self.completed(sizes), self.places, strict=True):
            for name, axis in places:
                dims[name][axis] = size
        for each in model.graph.input:
            for dim, size in zip(each.type.tensor_type.shape.dim, dims.get(each.name, ()), strict=False):
                if size is not None:
                    dim.dim_value = size
        return model

    def conflicts(self, shapes: Mapping[str, Shape]) -> Iterator[tuple[int, int]]:
        """The pairs that differ: the number of a node, or -1 for what the file declares, and of the pair."""
        for at in (*range(len(self.nodes)), -1):
            for number, pair in enumerate(self._pairs(at, shapes)):
                if pair.left is not None and pair.right is not None and pair.left != pair.right:
                    yield at, number

    def pair(self, key: tuple[int, int], shapes: Mapping[str, Shape]) -> Pair:
        at, number = key
        return next(
            (pair for place, pair in enumerate(self._pairs(at, shapes)) if place == number), Pair(None, None, "")
        )

    def _pairs(self, at: int, shapes: Mapping[str, Shape]) -> Iterator[Pair]:
        if at < 0:
            for name, declared in self._declared:
                where = f"the file has {list(declared)} for '{shortened(one_line(name), NAME_CHARACTERS)}'"
                for axis, size in enumerate(declared):
                    # A size of 1 may be the batch of the example that the exporter ran.
                    yield Pair(None if size == 1 else _at(shapes.get(name), axis), size, where)
            return
        node = self.nodes[at]
        inputs = [shapes.get(name) if name else None for name in node.input]
        inputs += [None] * (3 - len(inputs))
        where = f"{node.op_type} {_named(node)}"
        if node.op_type == "GroupQueryAttention" and len(inputs) > _LENGTHS:
            mask = _at(shapes.get(self._origin(node.input[_LENGTHS])), 1)
            yield Pair(mask, _at(inputs[_LENGTHS - 2], 2), f"{where} writes into a cache of {mask} rows")
        yield from self._pairs_of(node, inputs, where)

    def _pairs_of(self, node: Any, inputs: Sequence[Shape | None], where: str) -> Iterator[Pair]:
        if node.op_type == "Reshape" and inputs[0] is not None:
            yield self._reshaped(node, inputs[0], where)
        elif node.op_type == "Gather" and _integer(node, "axis") == 0 and node.input[0] in self._weights:
            yield self._looked_up(node, inputs, where)
        elif node.op_type in _RULES:
            yield from _RULES[node.op_type](node, inputs, where)

    def _reshaped(self, node: Any, first: Shape, where: str) -> Pair:
        target = self._constants.get(node.input[1] if len(node.input) > 1 else "")
        if target is None or target.dtype != "int64" or None in first:
            return Pair(None, None, "")
        wanted = target.ravel().tolist()
        sizes = [first[at] if size == 0 and at < len(first) else size for at, size in enumerate(wanted)]
        have, fixed = math.prod(filter(None, first)), math.prod(size for size in sizes if size and size > 0)
        why = f"{where} makes {list(wanted)} of it"
        if -1 not in sizes:
            return Pair(have, fixed, why)
        if fixed and have < fixed:
            return Pair(have, fixed, why)
        return Pair(have % fixed if fixed else None, 0, why)

    def _looked_up(self, node: Any, inputs: Sequence[Shape | None], where: str) -> Pair:
        """Positions 0, 1, 2, ... must be rows of the table."""
        rows = (self._weights[node.input[0]] or (None,))[0]
        count = inputs[1][-1] if inputs[1] else None
        if rows is None or count is None or not self._counts(node.input[1], _BACK):
            return Pair(None, None, "")
        return Pair(count, min(count, rows), f"{where} has a table of {rows} positions", is_bound=True)

    def _origin(self, name: str) -> str:
        """The input of the graph that a value is computed from."""
        for _ in range(_BACK):
            name = self._makers[name].input[0] if name in self._makers and self._makers[name].input else name
        return name

    def _counts(self, name: str, steps: int) -> bool:
        """Whether a value is made of 0, 1, 2, ..."""
        node = self._makers.get(name)
        if node is None or steps == 0:
            return False
        if node.op_type in _INDEX_MAKERS:
            return True
        return node.op_type in _PASSING and any(self._counts(each, steps - 1) for each in list(node.input)[:1])


def _broadcast(node: Any, inputs: Sequence[Shape | None], where: str) -> Iterator[Pair]:
    """A pair for each trailing axis of the last two inputs with a shape; sizes of 1 fit any."""
    del node
    known = [each for each in inputs if each is not None]
    first, second = known[-2:] if len(known) > 1 else ((), ())
    for axis in range(-1, -min(len(first), len(second)) - 1, -1):
        left, right = first[axis], second[axis]
        fits = left is None or right is None or 1 in (left, right)
        yield Pair(None if fits else left, right, f"{where} has {list(first)} and {list(second)}")


def _joined(node: Any, inputs: Sequence[Shape | None], where: str) -> Iterator[Pair]:
    known = [each for each in inputs if each is not None]
    along = _integer(node, "axis")
    for other in known[1:]:
        if len(other) == len(known[0]):
            for axis, (left, right) in enumerate(zip(known[0], other, strict=True)):
                if axis != along % len(other):
                    yield Pair(left, right, f"{where} joins {list(known[0])} and {list(other)}")


def _multiplied(node: Any, inputs: Sequence[Shape | None], where: str) -> Iterator[Pair]:
    depth, rows = _at(inputs[0], -1), _at(inputs[1], -2)
    if node.op_type == "Gemm":
        depth = _at(inputs[0], 0 if _integer(node, "transA") else 1)
        rows = _at(inputs[1], 1 if _integer(node, "transB") else 0)
    yield Pair(depth, rows, f"{where} has weights for {rows}")


def _convolved(node: Any, inputs: Sequence[Shape | None], where: str) -> Iterator[Pair]:
    is_transposed = node.op_type == "ConvTranspose"
    channels = _at(inputs[1], 0) if is_transposed else _times(_at(inputs[1], 1), _integer(node, "group", 1))
    yield Pair(_at(inputs[0], 1), channels, f"{where} has weights for {channels} channels")
    if not is_transposed:
        yield from _windows(node, inputs[0] or (), (inputs[1] or ())[2:], where)


def _pooled(node: Any, inputs: Sequence[Shape | None], where: str) -> Iterator[Pair]:
    yield from _windows(node, inputs[0] or (), _integers(node, "kernel_shape"), where)


def _weighted(axis: int, of_weights: int) -> Rule:
    """The rule of an operator whose second input has the size of one axis of the first."""

    def pairs(node: Any, inputs: Sequence[Shape | None], where: str) -> Iterator[Pair]:
        del node
        size = _at(inputs[1], of_weights)
        yield Pair(_at(inputs[0], axis), size, f"{where} has weights for {size}")

    return pairs


def _windows(node: Any, first: Shape, sides: Sequence[int | None], where: str) -> Iterator[Pair]:
    """A window is at most as large as what it moves over."""
    if any(each.name == "auto_pad" and each.s not in (b"NOTSET", b"VALID") for each in node.attribute):
        return
    pads, dilations = _integers(node, "pads"), _integers(node, "dilations")
    for axis, side in enumerate(sides):
        size = _at(first, axis + 2)
        if size is not None and side is not None:
            padding = sum(pads[axis :: len(sides)])
            window = (side - 1) * (dilations[axis] if axis < len(dilations) else 1) + 1
            least = max(window - padding, 1)
            yield Pair(min(size, least), least, f"{where} needs at least {least}", is_bound=True)
        else:
            yield Pair(None, None, "")


_RULES: dict[str, Rule] = {
    **dict.fromkeys(_ELEMENTWISE, _broadcast),
    **dict.fromkeys(("MatMul", "Gemm"), _multiplied),
    **dict.fromkeys(("Conv", "ConvTranspose"), _convolved),
    **dict.fromkeys(("MaxPool", "AveragePool"), _pooled),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), _weighted(2, 2)),
    "BatchNormalization": _weighted(1, 0),
    "LayerNormalization": _weighted(-1, -1),
    "Concat": _joined,
}
"""by operator: the sizes that must be equal"""


def _times(size: int | None, factor: int) -> int | None:
    return None if size is None else size * factor


def _at(shape: Shape | None, axis: int) -> int | None:
    return shape[axis] if shape is not None and -len(shape) <= axis < len(shape) else None


def _integer(node: Any, name: str, default: int = 0) -> int:
    return next((int(each.i) for each in node.attribute if each.name == name), default)


def _integers(node: Any, name: str) -> list[int]:
    return next((list(each.ints) for each in node.attribute if each.name == name), [])


def _named(node: Any) -> str:
    return f"'{shortened(one_line(node.name or next(iter(node.output), '')), NAME_CHARACTERS)}'"


def _shape(value: Any) -> Shape | None:
    kind = value.type.tensor_type
    if not kind.HasField("shape"):
        return None
    return tuple(dim.dim_value if dim.HasField("dim_value") and dim.dim_value > 0 else None for dim in kind.shape.dim)


def _constants(graph: Any) -> dict[str, Any]:
    """The small constants by name, as arrays."""
    from onnx import numpy_helper

    tensors = [(each.name, each) for each in graph.initializer]
    tensors += [
        (node.output[0], each.t)
        for node in graph.node
        if node.op_type == "Constant" and node.output
        for each in node.attribute
        if each.name == "value"
    ]
    found = {}
    for name, tensor in tensors:
        if math.prod(tensor.dims) <= _NUMBERS_KEPT and not tensor.external_data:
            with contextlib.suppress(Exception):  # its numbers do not fit its shape
                found[name] = numpy_helper.to_array(tensor)
    return {name: each for name, each in found.items() if _is_numeric(each)}


def _is_numeric(value: Any) -> bool:
    return hasattr(value, "dtype") and value.dtype.kind in "biuf"


def _makes_many(node: Any, inputs: Sequence[Any]) -> bool:
    """Whether the result may be much larger than what it is computed from."""
    if node.op_type == "ConstantOfShape":
        return math.prod(map(int, inputs[0].ravel())) > _MOST_NUMBERS
    if node.op_type == "Range":
        start, limit, step = (float(each) for each in inputs)
        return step == 0 or (limit - start) / step > _MOST_NUMBERS
    return False
