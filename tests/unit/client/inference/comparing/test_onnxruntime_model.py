"""A model in ONNX Runtime by itself: what it takes, and what it cannot do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from fractune.inference.comparing.onnxruntime_model import OnnxRuntimeModel
from fractune.inference.tvm_runtime.tensors import TensorSpec
from fractune_core.errors import BadModel


def write_sum(path: Path, *dims: str | int) -> Path:
    """`y = a + b`, both of the shape `dims` and doubles."""
    ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.DOUBLE, dims) for name in ("a", "b", "y")]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Add", ["a", "b"], ["y"])], "sum", ends[:2], ends[2:])
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_fixed_shapes_need_no_words(tmp_path: Path) -> None:
    model = OnnxRuntimeModel(write_sum(tmp_path / "m.onnx", 2, 3), 1)
    assert model.input_specs({}) == [TensorSpec(name, "float64", (2, 3)) for name in ("a", "b")]


def test_a_named_dimension_is_the_same_at_every_input(tmp_path: Path) -> None:
    model = OnnxRuntimeModel(write_sum(tmp_path / "m.onnx", "batch", 3), 1)
    assert [spec.shape for spec in model.input_specs({"a": [4, 3]})] == [(4, 3), (4, 3)]
    with pytest.raises(BadModel, match=r"m.onnx: input 'a' has the open shape \['batch', 3\]; give it by --input a="):
        model.input_specs({})


def test_inputs_that_it_cannot_run_are_one_line(tmp_path: Path) -> None:
    model = OnnxRuntimeModel(write_sum(tmp_path / "m.onnx", "left", "right"), 1)
    ones = {"a": np.ones((2, 3)), "b": np.ones((2, 3))}
    (total,) = model.run(ones, ["y"])
    assert (total == 2).all()
    with pytest.raises(BadModel, match="ONNX Runtime cannot run it") as refused:
        model.run({**ones, "b": np.ones((5, 3))}, ["y"])
    assert "\n" not in str(refused.value)
