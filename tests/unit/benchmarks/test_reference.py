"""ONNX's reference evaluator, with the operators put right that it gets wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from benchmarks.support.reference import expected_outputs

PARAMETERS = ("scale", "bias", "mean", "var")


def test_a_normalisation_of_an_old_opset_applies_the_statistics_that_it_is_given(tmp_path: Path) -> None:
    values = dict(zip(PARAMETERS, ([2.0, 1.0], [0.5, 0.0], [1.0, 3.0], [4.0, 0.25]), strict=True))
    node = helper.make_node("BatchNormalization", ["x", *PARAMETERS], ["y"], epsilon=0.0, momentum=0.9)
    shape = [1, 2, 1, 2]
    graph = helper.make_graph(
        [node],
        "normalised",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [helper.make_tensor(name, TensorProto.FLOAT, [2], held) for name, held in values.items()],
    )
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)]), path)

    (found,) = expected_outputs(path, {"x": np.array([[[[1.0, 3.0]], [[3.0, 4.0]]]], np.float32)})

    assert found.tolist() == [[[[0.5, 2.5]], [[0.0, 2.0]]]]
