"""Outputs that are as right as an ONNX model's own: those of inputs and weights that are moved by some roundings of
their type. How far they lie apart is what rounding can do in this model, and `fractune_core.agreement` judges by it.

The results of functions such as the sigmoid are moved by some roundings of 1, however small they are: their usual
implementations are no better.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from fractune_core.agreement import Precision
from fractune_core.errors import FractuneError

if TYPE_CHECKING:
    import numpy as np
    import onnx

    from fractune_runtime.tvm_runtime.tensors import Array

Feed = Mapping[str, "Array"]
Run = Callable[[Feed], "list[Array]"]

_MOVES = 8
"""runs on moved inputs and weights"""
_MOVE, _HALF_MOVE = 2.0**-16, 2.0**-10
"""part of a number by which it is moved: 256 roundings of a float32, and one or two of half precision"""
_MATRIX = 2
"""dimensions of the least weight that is moved: vectors may be sizes"""
_SATURATING = ("Sigmoid", "HardSigmoid", "Softmax", "LogSoftmax", "Tanh", "Erf", "Exp", "Softplus", "Sin", "Cos")
_SATURATING_MOVE = 2.0**-22
_ONNX = ("", "ai.onnx")
"""names of the domain of ONNX's own operators"""


class Deadline:
    """A moment after which no further run begins."""

    def __init__(self, most_s: float) -> None:
        self._end_s = time.monotonic() + most_s

    @property
    def left_s(self) -> float:
        return self._end_s - time.monotonic()


def moved_outputs(
    model: bytes,
    feed: Feed,
    precision: Precision,
    open_run: Callable[[bytes], Run],
    deadline: Deadline,
    constants: Feed | None = None,
) -> list[list[Array]]:
    """The outputs of some moved models on moved inputs, as long as there is time. `open_run` loads a model; one that it
    or its run refuses by a FractuneError is left out. The `constants` in the feed stay. Raises FractuneError if `onnx`
    is missing.
    """
    try:
        import onnx
    except ImportError as error:
        raise FractuneError(
            f"outputs cannot be judged without 'onnx' ({error}); install 'fractune[onnxruntime]'"
        ) from error
    found, parsed = [], onnx.load_from_string(model)
    for seed in range(_MOVES):
        if deadline.left_s <= 0:
            break
        fed = {**_moved_inputs(feed, precision, seed), **(constants or {})}
        try:
            found.append(open_run(_moved_weights(parsed, precision, seed))(fed))
        except FractuneError:
            continue
    return found


def _moved_inputs(feed: Feed, precision: Precision, seed: int) -> dict[str, Array]:
    """Floating-point inputs, moved by a part of themselves and of the largest of them: zeros would stay."""
    import numpy as np

    rng, part = np.random.default_rng(seed), _part(precision)
    return {name: _moved(array, part, rng) for name, array in feed.items()}


def _moved(array: Array, part: float, rng: np.random.Generator) -> Array:
    import numpy as np

    if array.dtype.kind != "f" or not array.size:
        return array
    limit = float(np.finfo(array.dtype).max)
    wide = array.astype("float64")
    finite = np.isfinite(wide)
    largest = float(np.abs(wide[finite]).max(initial=0.0)) or 1.0
    moves = part * (wide * rng.choice([-1, 1], wide.shape) + largest * rng.uniform(-1, 1, wide.shape))
    with np.errstate(invalid="ignore"):
        moved: Array = np.where(finite, np.clip(wide + moves, -limit, limit), wide).astype(array.dtype)
    return moved


def _moved_weights(model: onnx.ModelProto, precision: Precision, seed: int) -> bytes:
    """The model with its matrices of weights, and the scales of quantized ones, moved by a part of themselves, and with
    the results of saturating functions moved.
    """
    import numpy as np
    import onnx
    from onnx import numpy_helper

    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    rng, part = np.random.default_rng(seed), _part(precision)
    for tensor in _weights(copy.graph):
        array = numpy_helper.to_array(tensor)
        factors = 1 + part * rng.choice([-1, 1], array.shape)
        with np.errstate(over="ignore", invalid="ignore"):
            moved = (array.astype("float64") * factors).astype(array.dtype)
        tensor.CopyFrom(numpy_helper.from_array(np.asarray(moved), tensor.name))
    if not precision.half and not _has_doubles(copy.graph):
        _move_saturating(copy.graph, rng)
    return bytes(copy.SerializeToString())


def _has_doubles(graph: onnx.GraphProto) -> bool:
    import onnx

    kinds = {each.data_type for each in graph.initializer}
    kinds |= {each.type.tensor_type.elem_type for each in graph.input}
    casts = (each.i for node in graph.node if node.op_type == "Cast" for each in node.attribute)
    return onnx.TensorProto.DOUBLE in kinds | set(casts)


def _move_saturating(graph: onnx.GraphProto, rng: np.random.Generator) -> None:
    import numpy as np
    from onnx import helper, numpy_helper

    for place, node in reversed(list(enumerate(graph.node))):
        if node.op_type in _SATURATING and node.domain in _ONNX:
            given, moved, amount = node.output[0], f"{node.output[0]}#moved", f"{node.output[0]}#by"
            node.output[0] = moved
            graph.node.insert(place + 1, helper.make_node("Add", [moved, amount], [given]))
            by = np.float32(_SATURATING_MOVE * rng.choice([-1, 1]))
            graph.initializer.append(numpy_helper.from_array(np.asarray(by), amount))


def _weights(graph: onnx.GraphProto) -> Iterator[Any]:
    from onnx import TensorProto as Types

    floats = (Types.FLOAT, Types.DOUBLE, Types.FLOAT16, Types.BFLOAT16)
    scales = {node.input[1] for node in graph.node if node.op_type == "DequantizeLinear" and node.domain in _ONNX}
    constants = [
        (node.output[0], attribute.t)
        for node in graph.node
        if node.op_type == "Constant" and node.output
        for attribute in node.attribute
        if attribute.name == "value"
    ]
    for name, tensor in [*((each.name, each) for each in graph.initializer), *constants]:
        if tensor.data_type in floats and (len(tensor.dims) >= _MATRIX or name in scales):
            yield tensor


def _part(precision: Precision) -> float:
    return _HALF_MOVE if precision.half else _MOVE
