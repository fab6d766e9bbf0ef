"""Small text encoders as ONNX files with an open batch and an open length."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WORDS, HIDDEN = 32, 8
_OPEN = ["batch", "length"]


def write_encoder(path: Path, *, mean_of_all: bool = False, quantized: bool = False) -> Path:
    """One layer of masked attention over embedded words, and the mean of its outputs over the real words.

    `mean_of_all` takes the mean over the padding too. `quantized`: the output's product has one dynamic scale.
    """
    rng = np.random.default_rng(0)
    weights = {
        "table": rng.normal(size=(WORDS, HIDDEN)).astype("float32"),
        **{name: rng.normal(size=(HIDDEN, HIDDEN)).astype("float32") / 3 for name in ("wq", "wk", "wv", "wo")},
        "gain": np.ones(HIDDEN, "float32"),
        "bias": np.zeros(HIDDEN, "float32"),
        "low": np.array(-1e4, "float32"),
        "one": np.array(1, "float32"),
        "last": np.array([2], "int64"),
        "middle": np.array([1], "int64"),
    }
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["x"]),
        *(helper.make_node("MatMul", ["x", f"w{name}"], [name]) for name in "qkv"),
        helper.make_node("Transpose", ["k"], ["kt"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["q", "kt"], ["scores"]),
        helper.make_node("Cast", ["mask"], ["real"], to=TensorProto.FLOAT),
        helper.make_node("Sub", ["one", "real"], ["hidden_words"]),
        helper.make_node("Mul", ["hidden_words", "low"], ["lowered"]),
        helper.make_node("Unsqueeze", ["lowered", "middle"], ["lowered3"]),
        helper.make_node("Add", ["scores", "lowered3"], ["masked"]),
        helper.make_node("Softmax", ["masked"], ["parts"], axis=-1),
        helper.make_node("MatMul", ["parts", "v"], ["mixed"]),
        *(_quantized_product() if quantized else [helper.make_node("MatMul", ["mixed", "wo"], ["out"])]),
        helper.make_node("Add", ["x", "out"], ["summed"]),
        helper.make_node("LayerNormalization", ["summed", "gain", "bias"], ["hidden"], axis=-1),
        *(_mean_of_all() if mean_of_all else _mean_of_real()),
    ]
    if quantized:
        weights |= {
            "wo8": rng.integers(-100, 100, (HIDDEN, HIDDEN)).astype("int8"),
            "wo_scale": np.array(0.01, "float32"),
        }
    graph = helper.make_graph(
        nodes,
        "encoder",
        [helper.make_tensor_value_info(name, TensorProto.INT64, _OPEN) for name in ("ids", "mask")],
        [
            helper.make_tensor_value_info("hidden", TensorProto.FLOAT, [*_OPEN, HIDDEN]),
            helper.make_tensor_value_info("mean", TensorProto.FLOAT, ["batch", HIDDEN]),
        ],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def inputs_of(length: int, batch: int = 1, seed: int = 0, padding: int = 0) -> dict[str, Any]:
    """Random words; the last `padding` of them are masked."""
    rng = np.random.default_rng(seed)
    mask = np.ones((batch, length), "int64")
    mask[:, length - padding :] = 0
    return {"ids": rng.integers(0, WORDS, (batch, length)), "mask": mask}


def _quantized_product() -> list[onnx.NodeProto]:
    return [
        helper.make_node("DynamicQuantizeLinear", ["mixed"], ["mixed8", "scale", "zero"]),
        helper.make_node("MatMulInteger", ["mixed8", "wo8", "zero"], ["out32"]),
        helper.make_node("Cast", ["out32"], ["outf"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["scale", "wo_scale"], ["both"]),
        helper.make_node("Mul", ["outf", "both"], ["out"]),
    ]


def _mean_of_all() -> list[onnx.NodeProto]:
    return [helper.make_node("ReduceMean", ["hidden"], ["mean"], axes=[1], keepdims=0)]


def _mean_of_real() -> list[onnx.NodeProto]:
    return [
        helper.make_node("Unsqueeze", ["real", "last"], ["real3"]),
        helper.make_node("Mul", ["hidden", "real3"], ["kept"]),
        helper.make_node("ReduceSum", ["kept", "middle"], ["total"], keepdims=0),
        helper.make_node("ReduceSum", ["real", "middle"], ["count"], keepdims=1),
        helper.make_node("Div", ["total", "count"], ["mean"]),
    ]
