"""Operators that TVM's importer converts with another meaning: ONNX's own numbers, or a refusal by name."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from onnx import helper

from fractune_core.errors import BadModel
from tests.support.onnx_models import imported, onnx_model, run_by_onnxruntime, run_imported, run_reference, together

Array = npt.NDArray[Any]
IMAGE = np.arange(1 * 2 * 4 * 6, dtype=np.float32).reshape(1, 2, 4, 6)
NUMBERS = np.array([-5.5, 5.5, np.inf, -np.inf, 3], np.float32)
RESIZED: list[tuple[str, str, list[float], dict[str, Any]]] = [
    ("nearest", "half_pixel", [1, 1, 1.75, 0.5], {}),
    ("nearest", "asymmetric", [1, 1, 2, 2], {}),
    ("linear", "half_pixel", [1, 1, 0.6, 1.3], {}),
    ("linear", "align_corners", [1, 1, 0.6, 2], {}),
    ("linear", "align_corners", [1, 1, 0.25, 0.5], {}),
    ("linear", "pytorch_half_pixel", [1, 1, 2, 2], {}),
    ("linear", "half_pixel_symmetric", [1, 1, 0.6, 1.3], {}),
    ("linear", "half_pixel", [1, 1, 0.5, 0.3], {"antialias": 1}),
    ("cubic", "half_pixel", [1, 1, 0.6, 1.3], {}),
    ("cubic", "asymmetric", [1, 1, 0.5, 0.4], {"antialias": 1, "cubic_coeff_a": -0.5}),
    ("cubic", "half_pixel", [1, 1, 2, 1.5], {"exclude_outside": 1}),
    ("nearest", "half_pixel", [2, 3], {"axes": [3, 2]}),
]
BETWEEN = [1, 1, 0.75, 0.7]
"""Scales of which float32 has the second not quite: the fourth place is 4.5, between two pixels."""


def test_resize_by_scales() -> None:
    cases = []
    for mode, place, scales, others in RESIZED:
        attributes = {"mode": mode, "coordinate_transformation_mode": place, **others}
        node = helper.make_node("Resize", ["x", "", "s"], ["y"], **attributes)
        cases.append((onnx_model([node], {"x": IMAGE}, {"s": np.array(scales, np.float32)}), {"x": IMAGE}))
    model, given = together(cases)
    for case, ours, theirs in zip(RESIZED, run_imported(model, given), run_reference(model, given), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5, err_msg=str(case))


def test_a_place_between_two_pixels_by_a_decimal_scale() -> None:
    node = helper.make_node("Resize", ["x", "", "s"], ["y"], mode="nearest")
    model = onnx_model([node], {"x": IMAGE}, {"s": np.array(BETWEEN, np.float32)})
    np.testing.assert_array_equal(run_imported(model, {"x": IMAGE})[0], run_by_onnxruntime(model, {"x": IMAGE})[0])


@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
def test_resize_keeps_the_ratio_of_the_sides(policy: str) -> None:
    node = helper.make_node("Resize", ["x", "", "", "s"], ["y"], keep_aspect_ratio_policy=policy, axes=[2, 3])
    model = onnx_model([node], {"x": IMAGE}, {"s": np.array([7, 8])})
    np.testing.assert_array_equal(run_imported(model, {"x": IMAGE})[0], run_reference(model, {"x": IMAGE})[0])


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_an_empty_region_and_empty_scales_are_left_out(mode: str) -> None:
    node = helper.make_node("Resize", ["x", "none", "none", "s"], ["y"], mode=mode)
    height, width = IMAGE.shape[2:]
    constants = {"none": np.zeros(0, np.float32), "s": np.array([*IMAGE.shape[:2], 2 * height, 3 * width])}
    model = onnx_model([node], {"x": IMAGE}, constants)
    np.testing.assert_allclose(
        run_imported(model, {"x": IMAGE})[0], run_by_onnxruntime(model, {"x": IMAGE})[0], rtol=1e-5
    )


def test_a_crop_that_enlarges_needs_no_antialias() -> None:
    attributes: dict[str, Any] = {
        "mode": "linear",
        "antialias": 1,
        "coordinate_transformation_mode": "tf_crop_and_resize",
    }
    node = helper.make_node("Resize", ["x", "roi", "", "s"], ["y"], **attributes)
    roi = np.array([0, 0, 0.2, 0.4, 1, 1, 0.6, 1.3], np.float32)
    model = onnx_model([node], {"x": IMAGE}, {"roi": roi, "s": np.array([1, 2, 9, 7])})
    ours, theirs = run_imported(model, {"x": IMAGE})[0], run_by_onnxruntime(model, {"x": IMAGE})[0]
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_whole_factors_stay_one_operator() -> None:
    node = helper.make_node("Resize", ["x", "", "s"], ["y"])
    model = onnx_model([node], {"x": IMAGE}, {"s": np.array([1, 1, 2, 2], np.float32)})
    assert "image.resize2d" in imported(model).script()


CASES: list[tuple[str, list[Array], dict[str, Any]]] = [
    ("Mod", [NUMBERS, np.array([3, -3, 2, 2, -np.inf], np.float32)], {}),
    ("IsInf", [NUMBERS], {"detect_negative": 0}),
    ("IsInf", [NUMBERS], {"detect_positive": 0}),
    ("BitShift", [np.array([5, 200, 1], np.uint8), np.array([1, 3, 9], np.uint8)], {"direction": "RIGHT"}),
    ("BitShift", [np.array([5, 200, 1], np.uint8), np.array([1, 3, 9], np.uint8)], {"direction": "LEFT"}),
    ("Pow", [np.array([2, 3], np.float32), np.array([3, 2], np.int64)], {}),
    ("Elu", [np.array([-1, 0, 2], np.float64)], {"alpha": 0.5}),
    ("EyeLike", [np.zeros((3, 4), np.int32)], {"dtype": 11, "k": 1}),
    ("LpNormalization", [np.array([[3, 0], [-4, 0]], np.float32)], {"axis": 0}),
    ("ReverseSequence", [IMAGE[0, 0], np.array([4, 1, 2, 0, 3, 4])], {}),
    ("ReduceMax", [np.array([[False, True], [False, False]])], {}),
    ("Sign", [np.array([np.nan, -0.0, np.inf, -3], np.float32)], {}),
    ("Sign", [np.array([0, -3, 5], np.int32)], {}),
]


def test_numbers_as_by_onnx() -> None:
    cases = []
    for operator, values, attributes in CASES:
        given = {f"i{index}": value for index, value in enumerate(values)}
        cases.append((onnx_model([helper.make_node(operator, list(given), ["y"], **attributes)], given), given))
    model, given = together(cases)
    with np.errstate(invalid="ignore"):
        expected = run_reference(model, given)
    for case, ours, theirs in zip(CASES, run_imported(model, given), expected, strict=True):
        np.testing.assert_array_equal(ours, theirs, str(case))


@pytest.mark.parametrize("dtype", ["int32", "uint8"])
@pytest.mark.parametrize("is_constant", [False, True])
def test_no_divisor_of_integers_ends_the_process(dtype: str, *, is_constant: bool) -> None:
    smallest = np.iinfo(dtype).min
    x = np.array([7, 7, -7 if smallest else 9, smallest, smallest, 0], dtype)
    by = np.array([2, 0, 3, -1 if smallest else 1, 2, 0], dtype)
    nodes = [
        helper.make_node("Div", ["x", "by"], ["quotient"]),
        helper.make_node("Mod", ["x", "by"], ["mod"]),
        helper.make_node("Mod", ["x", "by"], ["fmod"], fmod=1),
    ]
    given = {"x": x} if is_constant else {"x": x, "by": by}
    model = onnx_model(nodes, given, {"by": by} if is_constant else {}, outputs=["quotient", "mod", "fmod"])
    with np.errstate(all="ignore"):
        # NumPy's integer quotient is the floor, ONNX's is truncated.
        quotient = np.where(by == 0, 0, np.trunc(x.astype("float64") / by).astype("int64")).astype(dtype)
        expected = [quotient, np.mod(x, by), np.fmod(x, by)]
    for found, wanted in zip(run_imported(model, given), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)


CONSTANTS: list[tuple[str, Array, dict[str, Array], dict[str, Any]]] = [
    ("Pow", np.array([[-3, 0], [2, 11]]), {"e": np.array([0, 5], np.int64)}, {}),
    ("Pow", np.array([-3, 2], np.int32), {"e": np.array(0, np.float32)}, {}),
    ("OneHot", np.array([0, -1, 9, 2]), {"d": np.array(3, np.float32), "v": np.array([2, 5], np.int32)}, {}),
    ("OneHot", np.array([[1, -3]]), {"d": np.array([3]), "v": np.array([0, 1], np.float32)}, {"axis": 1}),
    (
        "OneHot",
        np.array([0.9, 2, -1.2, -1, np.nan], np.float32),
        {"d": np.array(3, np.float32), "v": np.array([0, 1], np.float32)},
        {},
    ),
    ("LpNormalization", np.array([[3, -1], [0, 0]], np.float32), {}, {"p": 1}),
]


def test_numbers_with_constants() -> None:
    cases = []
    for operator, x, constants, attributes in CONSTANTS:
        node = helper.make_node(operator, ["x", *constants], ["y"], **attributes)
        cases.append((onnx_model([node], {"x": x}, constants), {"x": x}))
    model, given = together(cases)
    found, expected = run_imported(model, given), run_by_onnxruntime(model, given)
    for case, ours, theirs in zip(CONSTANTS, found, expected, strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs, str(case))


EXTREMES = np.array([np.finfo(np.float32).max, np.inf, -np.inf, -np.finfo(np.float32).max, -0.0, 1], np.float32)
SMALL = np.array([1e-6, -1e-6, 3e-4, -2e-3, -20, 20, -1, 1], np.float32)
SATURATED: list[tuple[str, dict[str, Any]]] = [
    ("Celu", {"alpha": 0.3}),
    ("Clip", {}),
    ("Elu", {"alpha": 0.3}),
    ("Selu", {}),
    ("Softplus", {}),
    ("ThresholdedRelu", {}),
]


def test_extremes_as_by_onnxruntime() -> None:
    nodes = [helper.make_node(operator, ["x"], [operator], **attributes) for operator, attributes in SATURATED]
    model = onnx_model(nodes, {"x": EXTREMES}, outputs=[operator for operator, _ in SATURATED])
    found, expected = run_imported(model, {"x": EXTREMES}), run_by_onnxruntime(model, {"x": EXTREMES})
    for (operator, _), ours, theirs in zip(SATURATED, found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, err_msg=operator)


def _softplus(x: Array) -> Array:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


PRECISE: dict[str, Callable[[Array], Array]] = {
    "Celu": lambda x: np.where(x > 0, x, np.expm1(x)),
    "Elu": lambda x: np.where(x > 0, x, np.expm1(x)),
    "Mish": lambda x: x * np.tanh(_softplus(x)),
    "Softplus": _softplus,
}


def test_small_results_keep_their_digits() -> None:
    nodes = [helper.make_node(operator, ["x"], [operator]) for operator in PRECISE]
    model = onnx_model(nodes, {"x": SMALL}, opset=22, outputs=[*PRECISE])
    for operator, ours in zip(PRECISE, run_imported(model, {"x": SMALL}), strict=True):
        np.testing.assert_allclose(ours, PRECISE[operator](SMALL.astype(np.float64)), rtol=2e-6, err_msg=operator)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_operators_without_a_kernel_of_half_precision(dtype: Any) -> None:
    x = np.array([0.5, np.nan, -np.inf], dtype)
    wanted: dict[str, list[float]] = {
        "Atan": [0.4636, np.nan, -np.pi / 2],
        "IsInf": [0, 0, 1],
        "IsNaN": [0, 1, 0],
        "Sign": [1, np.nan, -1],
    }
    nodes = [helper.make_node(operator, ["x"], [operator]) for operator in wanted]
    model = onnx_model(nodes, {"x": x}, opset=22, outputs=[*wanted])
    for (operator, expected), ours in zip(wanted.items(), run_imported(model, {"x": x}), strict=True):
        assert ours.dtype == (bool if operator.startswith("Is") else dtype)
        np.testing.assert_allclose(ours.astype(np.float32), expected, rtol=2.0**-7, err_msg=operator)


def test_the_upper_limit_of_a_clip_wins() -> None:
    model = onnx_model(
        [helper.make_node("Clip", ["x", "low", "high"], ["y"])],
        {"x": NUMBERS},
        {"low": np.array(3, np.float32), "high": np.array(1, np.float32)},
    )
    np.testing.assert_array_equal(run_imported(model, {"x": NUMBERS})[0], np.ones(NUMBERS.shape))


def test_an_instance_norm_of_half_precision_is_computed_in_float32() -> None:
    x = np.linspace(80, 90, 3200).reshape(1, 2, 40, 40).astype(np.float16)
    one = np.ones(2, np.float16)
    model = onnx_model(
        [helper.make_node("InstanceNormalization", ["x", "s", "b"], ["y"])], {"x": x}, {"s": one, "b": one}
    )
    np.testing.assert_allclose(run_imported(model, {"x": x})[0], run_by_onnxruntime(model, {"x": x})[0], atol=2e-3)


def test_a_variance_of_nearly_equal_numbers() -> None:
    x = (1000 + IMAGE / 100).astype(np.float32)
    model = onnx_model([helper.make_node("MeanVarianceNormalization", ["x"], ["y"])], {"x": x})
    wide, axes = x.astype(np.float64), (0, 2, 3)
    expected = (wide - wide.mean(axes, keepdims=True)) / wide.std(axes, keepdims=True)
    np.testing.assert_allclose(run_imported(model, {"x": x})[0], expected, atol=1e-3)


@pytest.mark.parametrize("keepdims", [0, 1])
def test_a_row_is_masked_as_a_whole_by_infinity_alone(keepdims: int) -> None:
    """As ONNX Runtime finds it: its maximum of a row ignores a NaN behind the first number."""
    low = np.finfo(np.float32).min
    x = np.array([[-np.inf, -np.inf], [-np.inf, low], [-np.inf, np.nan], [-np.inf, 3]], np.float32)
    nodes = [
        helper.make_node("ReduceMax", ["x", "axes"], ["largest"], keepdims=keepdims),
        helper.make_node("Equal", ["largest", "limit"], ["y"]),
    ]
    model = onnx_model(nodes, {"x": x}, {"axes": np.array([-1]), "limit": np.array([-np.inf], np.float32)})
    masked = run_imported(model, {"x": x})[0]
    assert masked.shape == ((4, 1) if keepdims else (4,))
    assert masked.tolist() == run_by_onnxruntime(model, {"x": x})[0].tolist()
    assert masked.ravel().tolist() == [True, False, True, False]


BOXES = np.array([[[0, 0, 1, 1], [0, 0, 1, 2], [0, 0, 1, 1], [5, 5, 6, 6]]], np.float32)
"""Boxes 0 and 1 overlap by 0.5, boxes 0 and 2 are alike, box 3 is apart."""
SCORES = np.array([[[0.9, 0.8, 0.7, -0.1]]], np.float32)
MOST, HALF, POSITIVE = np.array([4]), np.array([0.5], np.float32), np.array([0], np.float32)
SUPPRESSED = [(["m"], [0, 3]), (["m", "iou"], [0, 1, 3]), (["m", "iou", "score"], [0, 1])]


def test_boxes_are_dropped_above_the_threshold() -> None:
    given = {"boxes": BOXES, "scores": SCORES}
    nodes = [
        helper.make_node("NonMaxSuppression", [*given, *thresholds], [f"y{len(thresholds)}"])
        for thresholds, _ in SUPPRESSED
    ]
    weights = {"m": MOST, "iou": HALF, "score": POSITIVE}
    model = onnx_model(nodes, given, weights, outputs=[node.output[0] for node in nodes])
    for (_, kept), ours, theirs in zip(
        SUPPRESSED, run_imported(model, given), run_by_onnxruntime(model, given), strict=True
    ):
        assert ours.tolist() == [[0, 0, index] for index in kept]
        np.testing.assert_array_equal(theirs[:, 2], kept)


@pytest.mark.parametrize(
    ("operator", "attributes", "words"),
    [
        ("Resize", {"mode": "area"}, "mode='area' is neither nearest, linear nor cubic; export the model again"),
        ("Resize", {"mode": "linear", "antialias": 1}, "it reads 128 pixels for one, and 64 is the limit; resize in"),
        ("Resize", {"antialias": 1}, "antialias=1 with mode='nearest' is not valid ONNX; export it with mode='linear'"),
        (
            "Resize",
            {"mode": "cubic", "antialias": 1, "coordinate_transformation_mode": "tf_crop_and_resize"},
            "antialias=1 with 'tf_crop_and_resize' is not supported; crop before, and resize with half_pixel",
        ),
        ("Cast", {"to": 22}, "it casts to numbers of less than a byte"),
        ("OneHot", {}, "its depth is not a positive constant; export it with a fixed number of classes"),
        ("Pow", {}, "its base is int64, and its exponent is not a constant of whole numbers from 0 to 63; cast"),
    ],
)
def test_a_refusal_names_the_node(operator: str, attributes: dict[str, Any], words: str) -> None:
    x = np.zeros((1, 1, 1, 128), np.float32 if operator == "Resize" else np.int64)
    extra = {"Resize": ["", "s"], "OneHot": ["x", "s"], "Pow": ["x"]}.get(operator, [])
    node = helper.make_node(operator, ["x", *extra], ["y"], "it", **attributes)
    with pytest.raises(BadModel, match=rf"opset 21: cannot import node 'it' \({operator}\): {words}"):
        imported(onnx_model([node], {"x": x}, {"s": np.array([1, 1, 1, 1 / 64], np.float32)} if "s" in extra else {}))


@pytest.mark.parametrize("scale", [np.nan, np.inf, -1])
def test_a_scale_that_is_none_is_refused(scale: float) -> None:
    node = helper.make_node("Resize", ["x", "", "s"], ["y"], "it", mode="linear")
    with pytest.raises(
        BadModel, match=rf"node 'it' \(Resize\): its scale 2 is {scale:.1f}; export it with scales that"
    ):
        imported(onnx_model([node], {"x": IMAGE}, {"s": np.array([1, 1, scale, 1], np.float32)}))


def test_a_crop_that_resizes_the_channels_is_refused() -> None:
    node = helper.make_node("Resize", ["x", "roi", "", "s"], ["y"], "it")
    node.attribute.append(helper.make_attribute("coordinate_transformation_mode", "tf_crop_and_resize"))
    constants = {"roi": np.array([0] * 4 + [1] * 4, np.float32), "s": np.array([1, 3, 4, 6])}
    with pytest.raises(BadModel, match=r"node 'it' \(Resize\): it resizes the batch or the channels while it crops"):
        imported(onnx_model([node], {"x": IMAGE}, constants))


@pytest.mark.parametrize("operator", ["Max", "Min", "Sum", "Mean"])
def test_a_number_beside_tensors_stays_a_number(operator: str) -> None:
    number = np.array(-0.25, np.float32)
    given = {"x": NUMBERS.reshape(1, 5), "y": np.array([[1], [np.nan], [-2]], np.float32)}
    model = onnx_model([helper.make_node(operator, ["x", "number", "y"], ["z"])], given, {"number": number})
    np.testing.assert_allclose(run_imported(model, given)[0], run_by_onnxruntime(model, given)[0], rtol=3e-7)
    assert "broadcast_to" not in imported(model).script()
