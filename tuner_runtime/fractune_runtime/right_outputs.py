"""Outputs that are as right as an ONNX model's own: those of inputs and weights that are moved by some roundings of
their type. How far they lie apart is what rounding can do in this model, and `fractune_core.agreement` judges by it.

The results of functions such as the sigmoid are moved by some roundings of 1, however small they are: their usual
implementations are no better.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from fractune_core.agreement import HALF_TYPES, Precision, judge, nothing_shown
from fractune_core.errors import FractuneError, OutputsDiffer
from fractune_core.files.bundles import Bundle
from fractune_core.names import UNTUNED_VARIANT, WITH_GRAPHS

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


_RUNS_OF_GRAPH = 3
"""of a variant with CUDA graphs: the first captures, and the second launches a graph for the first time"""
_NOISY_RUNS = 3
"""on moved inputs, if outputs do not lie close together"""


def check_variant(bundle: Bundle, variant: str, run: Callable[[Feed, str], list[Array]], feed: Feed) -> str:
    """Compare one inference of the variant with one of another, which has other schedules: the untuned one, or for it a
    tuned one. `run` computes the outputs of a variant. Returns why the comparison shows nothing, empty if it shows
    something. Raises OutputsDiffer.
    """
    plain = [each["name"] for each in bundle.variants if not each["name"].endswith(WITH_GRAPHS)]
    other = UNTUNED_VARIANT if variant != UNTUNED_VARIANT else next((name for name in plain if name != variant), "")
    if not other:
        return "it has one variant alone"
    precision = _precision(bundle)
    for _ in range(_RUNS_OF_GRAPH if variant.endswith(WITH_GRAPHS) else 1):
        outputs = run(feed, variant)
    reference = run(feed, other)

    def right() -> list[list[Array]]:
        moved = (_moved_inputs(feed, precision, seed) for seed in range(_NOISY_RUNS))
        return [reference, *(run(each, other) for each in moved)]

    verdict = judge(outputs, reference, right, precision)
    if verdict.differs_at is not None:
        name = bundle.manifest["outputs"][verdict.differs_at]["name"]
        raise OutputsDiffer(
            f"{bundle.name}: '{variant}' was to serve, and it and '{other}' differ in the output '{name}' by "
            f"{verdict.difference:.2g} of its largest value, on the same random inputs; prove the share by 'fractune "
            "shares --prove', and make the bundle again"
        )
    return f"its outputs are {shown}" if (shown := nothing_shown([reference])) else ""


def _precision(bundle: Bundle) -> Precision:
    """As far as the bundle shows it: TensorFloat-32 rounds as half precision."""
    fields = ("inputs", "outputs", "weights")
    types = {tensor["dtype"] for field in fields for tensor in bundle.manifest[field]}
    half = not types.isdisjoint(HALF_TYPES) or "tf32" in bundle.manifest["target"]
    return Precision(half=half, quantized=not types.isdisjoint(("int8", "uint8")))


class Deadline:
    """A moment after which no further run begins, by a clock in seconds."""

    def __init__(self, most_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._end_s = clock() + most_s

    @property
    def left_s(self) -> float:
        return self._end_s - self._clock()


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
        is_here = tensor.data_location != Types.EXTERNAL
        if is_here and tensor.data_type in floats and (len(tensor.dims) >= _MATRIX or name in scales):
            yield tensor


def _part(precision: Precision) -> float:
    return _HALF_MOVE if precision.half else _MOVE
