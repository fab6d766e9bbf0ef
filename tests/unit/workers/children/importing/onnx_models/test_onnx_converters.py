"""Operators that are converted here: found by domain and name, refused by the node's name."""

import numpy as np
import pytest
from onnx import helper

from fractune_core.errors import BadModel
from tests.support.onnx_models import imported, onnx_model, run_by_onnxruntime, run_imported

X = np.linspace(-1, 3, 12, dtype=np.float32).reshape(3, 4)


def test_an_operator_of_another_domain_is_another_operator() -> None:
    node = helper.make_node("Relu", ["x"], ["y"], name="mine", domain="com.example")
    with pytest.raises(BadModel, match=r"node 'mine' \(com\.example\.Relu\): no kernel computes this operator"):
        imported(onnx_model([node], {"x": X}))


@pytest.mark.parametrize("x", [X, -X - 4, X + 5, np.zeros((3, 4), np.float32)], ids=["both", "below", "above", "zeros"])
def test_quantizing_by_the_range_of_the_numbers(x: np.ndarray) -> None:
    model = onnx_model([helper.make_node("DynamicQuantizeLinear", ["x"], ["y", "scale", "zero"])], {"x": x})
    for ours, theirs in zip(run_imported(model, {"x": x}), run_by_onnxruntime(model, {"x": x}), strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)
