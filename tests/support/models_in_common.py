"""Small models that share operators, which TVM names differently in each."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import tvm
from tvm import relax
from tvm.relax import op

_SHAPE = [4, 64]
_ROWS, _SIZE = 64, 1024


@dataclass(frozen=True)
class Model:
    name: str
    """of its input, after which TVM names blocks"""
    before: int
    """operators before the shared ones, each of which counts Relax's variables on"""
    clamp: Callable[[Any], Any]
    """zero for what is negative, in one of two ways that become the same loops with different names"""


def _maximum(value: Any) -> Any:
    return op.maximum(value, relax.const(0.0, "float32"))


MODELS = [
    Model(name, before, clamp)
    for clamp in (op.nn.relu, _maximum)
    for name, before in (("x", 0), ("ids", 1), ("lv", 3), ("lv13_red", 12))
]


def shared_model(model: Model) -> tvm.IRModule:
    """Layer normalization, softmax, and reductions."""
    builder = relax.BlockBuilder()
    ones = relax.const(np.ones(_SHAPE[-1], "float32"))
    x = relax.Var(model.name, relax.TensorType(_SHAPE, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            value = x
            for _ in range(model.before):
                value = builder.emit(op.sin(builder.emit(op.permute_dims(value))))
                value = builder.emit(op.permute_dims(value))
            normal = builder.emit(op.nn.layer_norm(value, ones, ones, axes=[-1]))
            clamped = builder.emit(model.clamp(builder.emit(op.nn.softmax(normal))))
            spread = builder.emit(op.variance(clamped, axis=[1], keepdims=True))
            totals = builder.emit(op.sum(normal, axis=1))
            places = builder.emit(op.argmax(value, axis=1))
            result = builder.emit_output(relax.Tuple([spread, totals, places]))
        builder.emit_func_output(result)
    return builder.get()


def product(name: str) -> tvm.IRModule:
    """A product for tensor cores, whose blocks are named after its arguments."""
    builder = relax.BlockBuilder()
    one, other = (relax.Var(each, relax.TensorType([64, 64], "float16")) for each in (name, f"{name}_weight"))
    with builder.function("main", [one, other]):
        with builder.dataflow():
            result = builder.emit_output(op.nn.relu(builder.emit(op.matmul(one, other))))
        builder.emit_func_output(result)
    return builder.get()


def write_reductions(folder: Path, number: int) -> Path:
    """A layer normalization and a sum, after so many operators, each of which counts TVM's variables on. Untuned code
    adds up the numbers of a row one by one: a schedule that looks blocks up by name is faster by far.
    """
    sines = [onnx.helper.make_node("Sin", [f"s{at}"], [f"s{at + 1}"]) for at in range(number)]
    # Its value is used twice, so it stays apart from what comes after it.
    value = f"s{number}"
    nodes = [
        *sines,
        onnx.helper.make_node("LayerNormalization", [value, "scale"], ["normal"]),
        onnx.helper.make_node("ReduceSum", [value, "axes"], ["total"], keepdims=0),
    ]
    ends = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
        for name, shape in (("s0", [_ROWS, _SIZE]), ("total", [_ROWS]), ("normal", [_ROWS, _SIZE]))
    ]
    weights = [
        onnx.numpy_helper.from_array(np.ones(_SIZE, "float32"), "scale"),
        onnx.numpy_helper.from_array(np.array([1]), "axes"),
    ]
    graph = onnx.helper.make_graph(nodes, "reductions", ends[:1], ends[1:], weights)
    path = folder / f"reductions{number}.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), path)
    return path
