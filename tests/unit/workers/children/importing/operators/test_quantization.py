"""Quantized operators have ONNX's meaning: compared with its reference implementation, bit by bit."""

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper

from fractune_core.errors import BadModel
from tests.support.onnx_models import imported, onnx_model, run_by_onnxruntime, run_imported, run_reference, together

Array = npt.NDArray[Any]
DRAW = np.random.default_rng(0)
X = np.concatenate([[0.5, 1.5, 2.5, -0.5, 3.5, -2.5, 300, -300], DRAW.normal(0, 40, 16)]).astype(np.float32)
ROWS = X.reshape(3, 8)
SCALES = np.array([0.5, 1, 3], np.float32)


def quantized_and_back(weights: dict[str, Array], **attributes: Any) -> onnx.ModelProto:
    names = list(weights)
    down = helper.make_node("QuantizeLinear", ["x", *names], ["q"], **attributes)
    up = helper.make_node("DequantizeLinear", ["q", *names], ["y"], **attributes)
    return onnx_model([down, up], {"x": ROWS}, weights, outputs=["q", "y"])


def check(*cases: tuple[onnx.ModelProto, dict[str, Array]]) -> None:
    """The same numbers and types as by the reference, where types of less than a byte are bytes."""
    model, inputs = together(cases)
    for ours, theirs in zip(run_imported(model, inputs), run_reference(model, inputs), strict=True):
        kind = np.int8 if theirs.dtype == ml_dtypes.int4 else np.uint8 if theirs.dtype == ml_dtypes.uint4 else None
        assert ours.dtype == (kind or theirs.dtype)
        np.testing.assert_array_equal(ours, theirs.astype(ours.dtype))


def test_one_scale_and_one_for_each_row() -> None:
    half = {"s": np.array(0.5, np.float32)}
    zeros = (np.uint8(7), np.int8(-3), np.uint16(900), np.int16(-5))
    models = [quantized_and_back(half), *(quantized_and_back({**half, "z": np.array(zero)}) for zero in zeros)]
    several = (np.array([1, 2, 3], np.uint8), np.array([-1, 0, 5], np.int8))
    models += [quantized_and_back({"s": SCALES, "z": zero}, axis=-2) for zero in several]
    check(*((model, {"x": ROWS}) for model in models))


@pytest.mark.parametrize("kind", [ml_dtypes.int4, ml_dtypes.uint4])
def test_four_bits(kind: Any) -> None:
    check((quantized_and_back({"s": np.array(8, np.float32), "z": np.array(3, kind)}), {"x": ROWS}))


def test_a_scale_for_each_block_of_which_the_last_may_be_shorter() -> None:
    cases = list[tuple[onnx.ModelProto, dict[str, Array]]]()
    for size in (2, 3, 100):
        blocks = -(-ROWS.shape[1] // size)
        weights: dict[str, Array] = {
            "s": DRAW.uniform(0.5, 2, (3, blocks)).astype(np.float32),
            "z": DRAW.integers(0, 9, (3, blocks)).astype(np.uint8),
        }
        cases.append((quantized_and_back(weights, axis=1, block_size=size), {"x": ROWS}))
        node = helper.make_node("QuantizeLinear", ["x", "s", "z"], ["y"], axis=1, block_size=size)
        cases.append((onnx_model([node], {"x": ROWS, **weights}), {"x": ROWS, **weights}))
    check(*cases)


def test_scales_of_other_blocks_are_refused() -> None:
    model = quantized_and_back({"s": SCALES[:, None].repeat(2, 1)}, axis=1, block_size=3)
    with pytest.raises(
        BadModel, match=r"'q' \(QuantizeLinear\): scales of shape \[3, 2\], but its blocks need \[3, 3\]"
    ):
        imported(model)


@pytest.mark.parametrize("zeros", [np.zeros(1, np.uint8), np.zeros((3, 1), np.uint8)], ids=str)
def test_a_zero_point_of_another_shape_than_its_scale_is_refused(zeros: Array) -> None:
    with pytest.raises(
        BadModel, match=r"its zero point has the shape \[.*\], and its scale \[3\]; export it with equal"
    ):
        imported(quantized_and_back({"s": SCALES, "z": zeros}, axis=0))


def test_numbers_that_no_kernel_reads_are_refused() -> None:
    model = onnx_model([helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT8E5M2)], {"x": X})
    with pytest.raises(BadModel, match=r"\(Cast\): 'y' has elements of type FLOAT8E5M2, which no kernel reads"):
        imported(model)


def test_computed_scales_and_zero_points() -> None:
    inputs: dict[str, Array] = {"x": ROWS, "s": SCALES, "z": np.array([1, 2, 3], np.uint8)}
    node = helper.make_node("QuantizeLinear", list(inputs), ["y"], axis=0)
    check((onnx_model([node], inputs), inputs))


def test_half_precision() -> None:
    x = ROWS.astype(np.float16)
    node = helper.make_node("QuantizeLinear", ["x", "s"], ["y"], output_dtype=TensorProto.INT8)
    check((onnx_model([node], {"x": x}, {"s": np.array(0.7, np.float16)}), {"x": x}))


def test_a_dequantized_weight_is_a_constant() -> None:
    weights: dict[str, Array] = {"w": np.arange(-12, 12, dtype=np.int8).reshape(8, 3), "s": SCALES}
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s"], ["f"], axis=1),
        helper.make_node("MatMul", ["x", "f"], ["y"]),
    ]
    model = onnx_model(nodes, {"x": ROWS}, weights)
    assert "dequantize" not in imported(model).script()
    np.testing.assert_allclose(run_imported(model, {"x": ROWS})[0], run_reference(model, {"x": ROWS})[0], rtol=1e-5)


ZEROS: list[dict[str, Array]] = [
    {},
    {"az": np.array(9, np.uint8), "bz": np.array(-3, np.int8)},
    {"az": np.arange(5, dtype=np.uint8)[:, None], "bz": np.arange(4, dtype=np.int8)},
]


@pytest.mark.parametrize("is_constant", [True, False])
def test_products_of_whole_numbers(*, is_constant: bool) -> None:
    cases = []
    for points in ZEROS:
        a = {"a": DRAW.integers(0, 256, (5, 6), dtype=np.uint8)}
        b = {"b": DRAW.integers(-128, 128, (6, 4), dtype=np.int8)}
        node = helper.make_node("MatMulInteger", ["a", "b", *points], ["y"])
        known = {**b, **points} if is_constant else {}
        given = a if known else {**a, **b, **points}
        cases.append((onnx_model([node], given, known), given))
    check(*cases)


def test_convolutions_of_whole_numbers() -> None:
    cases = []
    for zero in (np.array(5, np.int8), np.array([1, -2, 3, 0], np.int8)):
        x = {"x": DRAW.integers(0, 256, (1, 2, 6, 6), dtype=np.uint8)}
        weights = {"w": DRAW.integers(-128, 128, (4, 1, 3, 3), dtype=np.int8), "xz": np.array(7, np.uint8), "wz": zero}
        node = helper.make_node("ConvInteger", ["x", *weights], ["y"], pads=[1, 1, 1, 1], group=2, strides=[2, 1])
        cases.append((onnx_model([node], x, weights), x))
    check(*cases)


@pytest.mark.parametrize("zero", [np.ones(2, np.uint8), np.ones((5, 6), np.uint8), np.ones((1, 1), np.uint8)], ids=str)
def test_a_zero_point_that_does_not_fit_is_refused(zero: Array) -> None:
    node = helper.make_node("MatMulInteger", ["a", "b", "z"], ["y"], "it")
    model = onnx_model([node], {"a": np.ones((5, 6), np.uint8)}, {"b": np.ones((6, 4), np.int8), "z": zero})
    with pytest.raises(
        BadModel, match=r"node 'it' \(MatMulInteger\): its zero point 'z' has the shape \[.*\], which does"
    ):
        imported(model)


@pytest.mark.parametrize("dtype", ["int32", "uint8"])
def test_a_dynamic_scale_of_whole_numbers_is_refused(dtype: str) -> None:
    """It would be a division of whole numbers, by 0."""
    x = np.ones((3, 6), dtype)
    node = helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"], name="d")
    with pytest.raises(
        BadModel, match=rf"'d' \(DynamicQuantizeLinear\): it quantizes {dtype}, and only floating-point"
    ):
        imported(onnx_model([node], {"x": x}))
    product = helper.make_node("DynamicQuantizeMatMul", ["x", "w", "s"], ["y"], name="d", domain="com.microsoft")
    weights: dict[str, Array] = {"w": np.ones((6, 2), np.int8), "s": np.array(0.1, np.float32)}
    with pytest.raises(BadModel, match=rf"it quantizes {dtype}, and only floating-point"):
        imported(onnx_model([product], {"x": x}, weights))


def test_a_scale_of_0_is_refused() -> None:
    node = helper.make_node("QuantizeLinear", ["x", "s"], ["y"], name="q")
    with pytest.raises(BadModel, match=r"'q' \(QuantizeLinear\): its scale is 0"):
        imported(onnx_model([node], {"x": np.ones((2, 3), np.float32)}, {"s": np.zeros((), np.float32)}))


def test_quantizing_by_the_range_of_the_numbers() -> None:
    """Zeros have a scale of one."""
    x = np.linspace(-1, 3, 12, dtype=np.float32).reshape(3, 4)
    node = helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"])
    both_signs_below_above_zeros = (x, -x - 4, x + 5, np.zeros_like(x))
    model, given = together([(onnx_model([node], {"x": each}), {"x": each}) for each in both_signs_below_above_zeros])
    for ours, theirs in zip(run_imported(model, given), run_by_onnxruntime(model, given), strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)
