"""A model whose slimmed form lacks a node is imported as it was: onnxslim drops scales of optimum's Whisper."""

from __future__ import annotations

from unittest import mock

import onnx
from onnx import TensorProto, helper

from fractune_workers.children.importing.limits import Limits
from fractune_workers.children.importing.onnx_models import onnx_model


def without_first(model: onnx.ModelProto) -> onnx.ModelProto:
    del model.graph.node[0]
    return model


def test_a_slimmed_model_that_lacks_a_node_is_not_taken() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Neg", ["y"], ["z"])]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xz"]
    data = helper.make_model(helper.make_graph(nodes, "two", ends[:1], ends[1:])).SerializeToString()
    with mock.patch.object(onnx_model, "_slim", side_effect=without_first):
        text = str(onnx_model.load_onnx(data, {}, Limits(len(data))))
    assert "R.nn.relu" in text
