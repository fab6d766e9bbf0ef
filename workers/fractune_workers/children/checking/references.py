"""What a bundle is compared with: ONNX models as ONNX Runtime or ONNX's own reference runs them, on random inputs and
on the extremes of their types. The model's graph decides on inputs and on the rounding.
"""

import hashlib
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from fractune_core.agreement import Precision
from fractune_core.errors import BadModel, FractuneError, first_line
from fractune_core.model_inputs import is_mask
from fractune_runtime.right_outputs import Feed, Run
from fractune_runtime.sessions import OnnxRuntimeSession
from fractune_runtime.tvm_runtime.runtime import with_denormals
from fractune_runtime.tvm_runtime.tensors import numpy_dtype
from fractune_workers.children.importing.onnx_graph import all_nodes, inputs_of, names_read, operator_of

_MOVING = """
    Concat Constant DepthToSpace Dropout Expand Flatten Gather Identity Pad Reshape Shape Size Slice
    SpaceToDepth Split Squeeze Tile Transpose Unsqueeze
"""
_ARITHMETIC = "Abs Add Div Mul Neg Sub Sqrt IsInf IsNaN And Or Not Xor Where"
_COMPARING = """
    ArgMax ArgMin Ceil Clip Equal Floor GlobalMaxPool Greater GreaterOrEqual HardSigmoid LeakyRelu Less LessOrEqual Max
    MaxPool Min PRelu ReduceMax ReduceMin Relu Round Sigmoid Sign Softsign Tanh ThresholdedRelu TopK
"""
NOT_SUMMING = frozenset((_MOVING + _ARITHMETIC + _COMPARING).split())
"""Operators whose results do not depend on the order of additions, so that an overflow is the same in every order"""
NOT_COMPARING = frozenset((_MOVING + _ARITHMETIC + " Gemm MatMul ReduceMean ReduceSum Sum").split())
"""Operators for which IEEE 754 says what becomes of a NaN and an infinity. ONNX does not say it of a maximum"""
_QUANTIZING = (
    *("QuantizeLinear", "DynamicQuantizeLinear", "DequantizeLinear"),
    *("MatMulInteger", "ConvInteger", "QLinearMatMul", "QLinearConv"),
)
_MICROSOFTS = "com.microsoft."
_QUANTIZING_THERE = ("Quantize", "Integer", "QLinear", "QAttention", "QGemm", "NBits", "Dequantize")
_HALF = (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)


def precision_of(model: onnx.ModelProto) -> Precision:
    nodes = list(all_nodes([*model.graph.node, *(node for function in model.functions for node in function.node)]))
    half = any(tensor.data_type in _HALF for tensor in model.graph.initializer)
    half |= any(value.type.tensor_type.elem_type in _HALF for value in model.graph.input)
    half |= any(node.op_type == "Cast" and attribute.i in _HALF for node in nodes for attribute in node.attribute)
    return Precision(half=half, quantized=any(map(_is_quantizing, nodes)))


def _is_quantizing(node: onnx.NodeProto) -> bool:
    name = operator_of(node)
    return name in _QUANTIZING or (name.startswith(_MICROSOFTS) and any(part in name for part in _QUANTIZING_THERE))


def reached_by_others(graph: onnx.GraphProto, allowed: Collection[str]) -> set[str]:
    """The values that depend on an input through an operator that is not `allowed`."""
    depending, reached = {value.name for value in inputs_of(graph)}, set[str]()
    for node in graph.node:
        read = names_read(node)
        if read & depending:
            depending.update(node.output)
            if operator_of(node) not in allowed or read & reached:
                reached.update(node.output)
    return reached


Array = npt.NDArray[Any]

MOST_REFERENCE_BYTES = 2**22
"""A larger file takes ONNX's reference, which is Python, longer than anybody waits"""

_KEPT_BYTES = 1 << 28
"""of outputs that may be needed once more"""


class RefusedError(FractuneError):
    """The reference cannot load the model, or cannot run it on these inputs."""


@dataclass(frozen=True)
class Reference:
    """An implementation of ONNX."""

    name: str
    """as people know it"""
    version: str
    open: Callable[[bytes, Sequence[str]], Run]
    """the model in these bytes, to give these outputs; raises RefusedError, and so does the run"""
    fused: Callable[[bytes, Sequence[str]], Run] | None
    """the same with operators changed and fused, which rounds otherwise"""


def reference(model_bytes: int, folder: Path | None = None) -> Reference:
    """ONNX Runtime where it is installed, else ONNX's reference for a small file. A `folder` has weights of the model.
    Raises RefusedError.
    """
    try:
        import onnxruntime
    except ImportError:
        return _onnx_reference(2**63 if folder else model_bytes)
    plain, fused = (partial(_session, fused=each, folder=folder) for each in (False, True))
    return Reference("ONNX Runtime", str(onnxruntime.__version__), plain, fused)


def without_repeats(run: Run) -> Run:
    """The run, which gives the same outputs for the same inputs without computing them once more. Finding the ranges of
    inputs draws numbers that are compared later, and a run of a large model takes seconds.
    """
    known: dict[bytes, list[Array]] = {}

    def once(feed: Feed) -> list[Array]:
        digest = hashlib.sha256()
        for name, array in sorted(feed.items()):
            digest.update(f"{name} {array.dtype} {array.shape} ".encode())
            digest.update(array.tobytes())
        key = digest.digest()
        if key not in known:
            outputs = run(feed)
            if sum(each.nbytes for kept in (*known.values(), outputs) for each in kept) > _KEPT_BYTES:
                known.clear()
            known[key] = outputs
        return known[key]

    return once


def _onnx_reference(model_bytes: int) -> Reference:
    import onnx

    if model_bytes > MOST_REFERENCE_BYTES:
        raise RefusedError(
            f"ONNX Runtime is not installed, and the file is larger than {MOST_REFERENCE_BYTES >> 20} MiB; install "
            "'fractune[onnxruntime]' where models are compiled"
        )
    return Reference("ONNX's reference", str(onnx.__version__), _evaluator, None)


def _session(model: bytes, outputs: Sequence[str], *, fused: bool, folder: Path | None) -> Run:
    try:
        # One thread: the sandbox refuses to place further ones.
        session = OnnxRuntimeSession.exact(model, 1, optimized=fused, arena=False, folder=folder)
    except BadModel as error:
        raise RefusedError(f"ONNX Runtime cannot load it ({first_line(error.__cause__ or error)})") from error
    # As bundles do. ONNX Runtime's own option for it changes the mode of this thread for good.
    run = with_denormals(session.run, kept=False)
    return _checked("ONNX Runtime", lambda feed: run(dict(feed), list(outputs)))


def _evaluator(model: bytes, outputs: Sequence[str]) -> Run:
    import onnx
    from onnx.reference import ReferenceEvaluator

    try:
        evaluator = ReferenceEvaluator(onnx.load_from_string(model))
    except Exception as error:  # it raises several unrelated types
        raise RefusedError(f"ONNX's reference cannot load it ({first_line(error)})") from error
    return _checked("ONNX's reference", lambda feed: evaluator.run(list(outputs), dict(feed)))


def _checked(name: str, run: Callable[[Feed], Any]) -> Run:
    import numpy as np

    def checked(feed: Feed) -> list[Array]:
        try:
            with np.errstate(all="ignore"):
                outputs = run(feed)
        except Exception as error:  # neither has a common base of its errors
            raise RefusedError(f"{name} cannot run it ({first_line(error.__cause__ or error)})") from error
        if not all(isinstance(each, np.ndarray | np.generic) for each in outputs):
            raise RefusedError("an output is not a tensor")
        return [np.asarray(each) for each in outputs]

    return checked


Within = Mapping[str, range]
_BYTES_OF_DATA = 1
"""Integers of one byte are data"""
_LARGEST_BFLOAT16 = float(np.finfo(np.float32).max) * (1 - 2.0**-8)
_ODD_PART = 8
"""One of so many numbers is not finite, where they are mixed"""


@dataclass(frozen=True)
class InputSpec:
    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def is_float(self) -> bool:
        return self.dtype.startswith(("float", "bfloat"))

    @property
    def may_be_index(self) -> bool:
        return self.numpy.kind in "iu" and self.numpy.itemsize > _BYTES_OF_DATA

    @property
    def numpy(self) -> np.dtype[Any]:
        return np.dtype(numpy_dtype(self.dtype))


@dataclass(frozen=True)
class InputSet:
    """A way to fill inputs, for the first outputs where it says something."""

    name: str
    draw: Callable[[Within], dict[str, Array]]
    """the inputs within these ranges; integers that may be indices are else 0 or 1"""
    outputs: tuple[int, ...]
    """places of the outputs that are compared"""
    is_extreme: bool = False
    """NaN or infinite outputs are expected"""


def input_sets(model: onnx.ModelProto, specs: Sequence[InputSpec]) -> Iterator[InputSet]:
    """The sets for a model with these inputs.

    The largest numbers of a type overflow in a sum, and its order decides to what. So they are for outputs without a
    sum before them. What a maximum makes of a NaN is nowhere defined, so these are for outputs without comparisons.
    """
    whole = tuple(range(len(model.graph.output)))
    yield InputSet("random", partial(_drawn, specs, _random), whole)
    yield InputSet("random above zero", partial(_drawn, specs, _positive), whole)
    yield InputSet("zeros", partial(_drawn, specs, _zeros), whole)
    if unsummed := _outputs_within(model.graph, NOT_SUMMING):
        yield InputSet("lowest", partial(_drawn, specs, _lowest), unsummed, is_extreme=True)
        yield InputSet("largest", partial(_drawn, specs, _largest), unsummed, is_extreme=True)
    if any(spec.is_float for spec in specs) and (uncompared := _outputs_within(model.graph, NOT_COMPARING)):
        yield InputSet("NaN and infinity", partial(_drawn, specs, _odd), uncompared, is_extreme=True)


def _outputs_within(graph: onnx.GraphProto, allowed: Collection[str]) -> tuple[int, ...]:
    reached = reached_by_others(graph, allowed)
    return tuple(place for place, output in enumerate(graph.output) if output.name not in reached)


_Draw = Callable[[np.random.Generator, InputSpec, Within], Array]


def _drawn(specs: Sequence[InputSpec], draw: _Draw, within: Within) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    return {spec.name: np.asarray(draw(rng, spec, within)).astype(spec.numpy) for spec in specs}


def _random(rng: np.random.Generator, spec: InputSpec, within: Within) -> Array:
    if spec.is_float:
        return _within(rng, spec, within) if spec.name in within else rng.standard_normal(spec.shape)
    if is_mask(spec.name):
        return np.ones(spec.shape)
    return _integers(rng, spec, within)


def _positive(rng: np.random.Generator, spec: InputSpec, within: Within) -> Array:
    if spec.is_float and spec.name not in within:
        return rng.uniform(0.1, 1.0, spec.shape)
    return _random(rng, spec, within)


def _within(rng: np.random.Generator, spec: InputSpec, within: Within) -> Array:
    return rng.uniform(within[spec.name].start, within[spec.name].stop - 1, spec.shape)


def _integers(rng: np.random.Generator, spec: InputSpec, within: Within) -> Array:
    low, most = _limits(spec, within)
    return rng.integers(low, most, spec.shape, endpoint=True)


def _limits(spec: InputSpec, within: Within) -> tuple[int, int]:
    if spec.numpy.kind == "b":
        return 0, 1
    if spec.may_be_index:
        allowed = within.get(spec.name, range(2))
        return allowed.start, allowed.stop - 1
    info = np.iinfo(spec.numpy)
    return int(info.min), int(info.max)


def _zeros(_rng: np.random.Generator, spec: InputSpec, _within: Within) -> Array:
    return np.zeros(spec.shape)


def _lowest(_rng: np.random.Generator, spec: InputSpec, within: Within) -> Array:
    return np.full(spec.shape, _least_and_most(spec, within)[0])


def _largest(_rng: np.random.Generator, spec: InputSpec, within: Within) -> Array:
    return np.full(spec.shape, _least_and_most(spec, within)[1])


def _least_and_most(spec: InputSpec, within: Within) -> tuple[float, float]:
    if not spec.is_float:
        return _limits(spec, within)
    # NumPy does not know the limits of bfloat16; they are float32's but for the last bits.
    largest = float(np.finfo(spec.numpy).max) if spec.numpy.kind == "f" else _LARGEST_BFLOAT16
    return -largest, largest


def _odd(rng: np.random.Generator, spec: InputSpec, within: Within) -> Array:
    array = _random(rng, spec, within)
    if spec.is_float and array.size:
        places = rng.permutation(array.size)[: max(1, array.size // _ODD_PART)]
        array = np.ravel(array)
        array[places] = rng.choice([math.nan, math.inf, -math.inf], len(places))
    return array.reshape(spec.shape)


def given_set(arrays: Mapping[str, Array], outputs: int) -> InputSet:
    """The caller's own inputs."""
    return InputSet("the given inputs", lambda _within: dict(arrays), tuple(range(outputs)))
