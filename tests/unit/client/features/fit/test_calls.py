"""A model as calls of one inference: inputs that it lacks are refused."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from fractune.features.fit.calls import onnx_calls
from fractune_core.errors import BadRequest


def test_an_input_that_the_model_lacks_is_refused(tmp_path: Path) -> None:
    ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2]) for name in ("x", "y")]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "relu", ends[:1], ends[1:])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "m.onnx")
    (call,) = onnx_calls(str(tmp_path / "m.onnx"), [1], {"x": [2]})[1]
    assert call()[0].shape == (2,)
    with pytest.raises(BadRequest, match=r"^--input 'z': no such input; the inputs are x$"):
        onnx_calls(str(tmp_path / "m.onnx"), [1], {"x": [2], "z": [2]})
