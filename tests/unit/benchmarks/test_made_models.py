"""Models that the benchmarks make from others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from benchmarks.support import models
from benchmarks.support.made_models import fold_scaled_weights, save_with_weights

SCALES = np.array([[0.5, 1, 2]], dtype="float32")


def scaled_product(path: Path) -> None:
    """A product with an int8 weight that is cast and multiplied by a scale for each column."""
    whole = np.arange(-6, 6, dtype="int8").reshape(4, 3)
    weights = [numpy_helper.from_array(whole, "w"), numpy_helper.from_array(SCALES, "scale")]
    nodes = [
        helper.make_node("Cast", ["w"], ["cast"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["cast", "scale"], ["scaled"]),
        helper.make_node("MatMul", ["x", "scaled"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, size]) for name, size in (("x", 4), ("y", 3))]
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", ends[:1], ends[1:], weights)), path)


def test_scaled_weights_become_float32_weights(tmp_path: Path) -> None:
    scaled_product(tmp_path / "int8.onnx")
    model = onnx.load(tmp_path / "int8.onnx")
    fold_scaled_weights(model)
    assert [node.op_type for node in model.graph.node] == ["MatMul"]
    (weight,) = model.graph.initializer
    whole = np.arange(-6, 6).reshape(4, 3)
    assert (numpy_helper.to_array(weight) == whole * SCALES).all()


def test_a_made_model_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Path] = []

    def save(source: Path, path: Path) -> None:
        made.append(source)
        path.write_bytes(b"model")

    monkeypatch.setattr(models, "MADE", tmp_path / "models")
    made_model = models._Made(save, ("matmul",), {"x": [1]}, source=lambda: tmp_path / "source.onnx")
    monkeypatch.setitem(models._MADE, "made", made_model)
    first, second = models.find_model("made"), models.find_model("made")
    assert (first.path.read_bytes(), first, made) == (b"model", second, [tmp_path / "source.onnx"])


def test_weights_that_a_model_computes_are_stored_in_its_file(tmp_path: Path) -> None:
    nodes = [
        helper.make_node(
            "ConstantOfShape", ["shape"], ["w"], value=numpy_helper.from_array(np.array([0.5], "float32"))
        ),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, size]) for name, size in (("x", 4), ("y", 3))]
    shape = numpy_helper.from_array(np.array([4, 3]), "shape")
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", ends[:1], ends[1:], [shape])), tmp_path / "small.onnx")
    save_with_weights(tmp_path / "small.onnx", tmp_path / "whole.onnx")
    graph = onnx.load(tmp_path / "whole.onnx").graph
    assert [node.op_type for node in graph.node] == ["MatMul"]
    (weight,) = [numpy_helper.to_array(tensor) for tensor in graph.initializer if tensor.name == "w"]
    assert np.array_equal(weight, np.full((4, 3), 0.5, "float32"))
