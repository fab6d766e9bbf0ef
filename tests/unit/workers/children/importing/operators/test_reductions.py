"""Reductions of whole numbers keep their type, and are exact."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from onnx import helper

from fractune_core.errors import BadModel
from tests.support.onnx_models import imported, onnx_model, run_by_onnxruntime, run_imported, run_reference

LARGE = 2**31 - 1
NUMBERS = np.array([[7, -3, 100_000, 5], [LARGE, LARGE, -9, 1], [-7, 0, 0, 0]], np.int32)
AXES = {"a": np.array([1])}


def model_of(operator: str, x: npt.NDArray[Any], **attributes: Any) -> Any:
    return onnx_model([helper.make_node(operator, ["x", "a"], ["y"], "it", **attributes)], {"x": x}, AXES)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("operator", ["ReduceMean", "ReduceL2"])
def test_whole_numbers(operator: str, dtype: Any) -> None:
    x = NUMBERS.astype(dtype)
    model = model_of(operator, x, keepdims=0)
    (ours,), (theirs,) = run_imported(model, {"x": x}), run_by_onnxruntime(model, {"x": x})
    assert ours.dtype == dtype
    np.testing.assert_array_equal(ours, theirs)


def test_unsigned_numbers() -> None:
    x = np.abs(NUMBERS[:1]).astype(np.uint32)
    for operator in ("ReduceMean", "ReduceL2"):
        model = model_of(operator, x)
        (ours,), (theirs,) = run_imported(model, {"x": x}), run_reference(model, {"x": x})
        assert ours.dtype == np.uint32
        if operator == "ReduceMean":  # the reference's squares wrap around in 32 bits
            np.testing.assert_array_equal(ours, theirs)
        else:
            assert ours.tolist() == [[100_000]]


def test_a_mean_in_a_difference() -> None:
    nodes = [helper.make_node("ReduceMean", ["x", "a"], ["m"]), helper.make_node("Sub", ["x", "m"], ["y"])]
    model = onnx_model(nodes, {"x": NUMBERS[2:]}, AXES)
    np.testing.assert_array_equal(run_imported(model, {"x": NUMBERS[2:]})[0], [[-6, 1, 1, 1]])


def test_a_mean_of_64_unsigned_bits_is_refused() -> None:
    with pytest.raises(BadModel, match=r"'it' \(ReduceMean\): it averages uint64, which no kernel does; cast it to"):
        imported(model_of("ReduceMean", np.ones((2, 3), np.uint64)))


@pytest.mark.parametrize("operator", ["ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare"])
def test_over_no_axis_each_number_is_reduced_alone(operator: str) -> None:
    x = np.array([[2, 0.5, 3]] if "Log" in operator else [[-2, 0, 3]], np.float32)
    model = onnx_model([helper.make_node(operator, ["x"], ["y"], noop_with_empty_axes=1)], {"x": x})
    np.testing.assert_allclose(run_imported(model, {"x": x})[0], run_by_onnxruntime(model, {"x": x})[0], rtol=1e-6)
