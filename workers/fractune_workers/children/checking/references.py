"""ONNX models as ONNX Runtime or ONNX's own reference runs them, and what in their graphs decides on inputs and on the
rounding.
"""

import hashlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy.typing as npt
import onnx

from fractune_core.agreement import Precision
from fractune_core.errors import BadModel, FractuneError, first_line
from fractune_runtime.right_outputs import Feed, Run
from fractune_runtime.sessions import OnnxRuntimeSession
from fractune_runtime.tvm_runtime.runtime import with_denormals
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
