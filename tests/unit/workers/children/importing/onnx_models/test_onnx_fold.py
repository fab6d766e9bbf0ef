"""What of a model's shape arithmetic is computed on its way in, and what is left alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from fractune_workers.children.importing.limits import Limits
from fractune_workers.children.importing.model_file import load_model
from fractune_workers.children.importing.onnx_models.onnx_fold import Folding
from tests.support.expanding_models import after, model, node


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div"])
def test_a_shape_computed_from_a_shape_is_known(op: str, tmp_path: Path) -> None:
    nodes = [
        node("Shape", ["x"], ["n"]),
        node(op, ["n", "two"], ["m"]),
        node("ConstantOfShape", ["m"], ["c"]),
        node("ReduceSum", ["c"], ["s"]),
    ]
    (tmp_path / "m.onnx").write_bytes(model(after(nodes, "s"), {"two": np.array([2])}))
    load_model(tmp_path / "m.onnx")


def branch(shape: list[int]) -> onnx.GraphProto:
    """A branch of an `If` that computes a tensor of that shape."""
    nodes = [node("Expand", ["t", f"n{shape}"], ["out"])]
    shape_of = numpy_helper.from_array(np.array(shape), f"n{shape}")
    output = helper.make_tensor_value_info("out", TensorProto.FLOAT, None)
    return helper.make_graph(nodes, "branch", [], [output], [shape_of])


@pytest.mark.parametrize(("other", "left"), [([2, 3], []), ([3, 2], ["n"])])
def test_a_shape_is_known_where_both_branches_agree(other: list[int], left: list[str]) -> None:
    nodes = [
        node("ReduceSum", ["x"], ["t"], keepdims=0),
        node("Cast", ["t"], ["yes"], to=TensorProto.BOOL),
        node("If", ["yes"], ["c"], then_branch=branch([2, 3]), else_branch=branch(other)),
        node("Shape", ["c"], ["n"]),
        node("Cast", ["n"], ["y"], to=TensorProto.FLOAT),
    ]
    read = onnx.load_from_string(model(nodes))
    Folding(read, Limits(1000)).run()
    assert [each.output[0] for each in read.graph.node if each.op_type == "Shape"] == left
