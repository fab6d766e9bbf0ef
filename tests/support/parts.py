"""Models with an operator that cannot be imported."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from fractune_core.operators import RefusedNode

SHAPE = [2, 4]
CDIST = RefusedNode("cdist", "", ("com.microsoft.CDist",))


def weight(name: str, *shape: int) -> onnx.TensorProto:
    return numpy_helper.from_array(np.random.default_rng(len(name)).uniform(-1, 1, shape).astype(np.float32), name)


def write_middle(path: Path, shape: Sequence[int | str] = SHAPE) -> Path:
    """`x`: a product and a ReLU, then distances between rows, which nothing imports, then a product to `y`."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("CDist", ["b", "b"], ["c"], name="cdist", domain="com.microsoft", metric="sqeuclidean"),
        helper.make_node("MatMul", ["c", "vv"], ["y"]),
    ]
    return write_parted(path, nodes, {"y": TensorProto.FLOAT}, shape)


def write_parted(
    path: Path, nodes: Sequence[onnx.NodeProto], outputs: dict[str, int], shape: Sequence[int | str] = SHAPE
) -> Path:
    """A model of the nodes with the input `x` and the weights `w` (4 x 6), `v` (3 x 2) and `vv` (2 x 3)."""
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs.items()],
        [weight("w", 4, 6), weight("v", 3, 2), weight("vv", 2, 3)],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path
