"""Differences of two ONNX files in the words of the files, weights apart."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from fractune_workers.children.fusing.difference import first_onnx_difference


def model(**changes: Any) -> bytes:
    """Convolution, reshape and relu; `changes` to what they are made of."""
    usual = {"kernel": 3, "strides": [1, 1], "shape": [1, -1], "last": "Relu", "size": 8, "more": [], "seed": 0}
    made: dict[str, Any] = {**usual, **changes}
    rng = np.random.default_rng(made["seed"])
    weights = {
        "w": rng.standard_normal((4, 4, made["kernel"], made["kernel"])).astype("float32"),
        "s": np.array(made["shape"], "int64"),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="first", strides=made["strides"]),
        helper.make_node("Reshape", ["c", "s"], ["r"], name="flat"),
        helper.make_node(made["last"], ["r"], ["y"]),
        *(helper.make_node(name, ["y"], [name]) for name in made["more"]),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, made["size"], made["size"]])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    data: bytes = helper.make_model(graph).SerializeToString()
    return data


@pytest.mark.parametrize(
    ("changes", "clause"),
    [
        ({"seed": 1}, ""),
        ({"kernel": 5}, "node 'first' (Conv): weight 'w' is float[4, 4, 5, 5], and not float[4, 4, 3, 3]"),
        ({"strides": [2, 2]}, "node 'first' (Conv): attribute 'strides' is [2, 2], and not [1, 1]"),
        ({"shape": [-1, 1]}, "node 'flat' (Reshape): weight 's' is [-1, 1], and not [1, -1]"),
        ({"last": "Tanh"}, "its node 3 is node with output 'y' (Tanh), and not node with output 'y' (Relu)"),
        ({"size": 9}, "input 'x' is float[1, 4, 9, 9], and not float[1, 4, 8, 8]"),
        ({"more": ["Exp"]}, "it has another node, node with output 'Exp' (Exp)"),
    ],
)
def test_the_first_difference_is_named(changes: dict[str, Any], clause: str) -> None:
    assert first_onnx_difference(model(), model(**changes)) == clause


def test_a_node_that_is_missing_is_named() -> None:
    assert (
        first_onnx_difference(model(more=["Exp"]), model()) == "it has no counterpart of node with output 'Exp' (Exp)"
    )


def test_other_files_have_no_difference_that_could_be_named() -> None:
    assert first_onnx_difference(b"\xff\xff no model", model()) == ""
