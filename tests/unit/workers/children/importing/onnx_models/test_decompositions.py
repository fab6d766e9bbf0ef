"""Operators that are decomposed give what ONNX Runtime computes without optimizing, in exact integer products."""

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import helper

from fractune_core.errors import BadModel
from fractune_workers.children.importing.limits import Limits
from fractune_workers.children.importing.onnx_models.decompositions import DECOMPOSITIONS
from fractune_workers.children.importing.onnx_models.onnx_model import load_onnx
from tests.support.onnx_models import imported, onnx_model, run_by_onnxruntime, run_imported, run_reference, together

Array = npt.NDArray[Any]
DRAW = np.random.default_rng(3)


def floats(*shape: int) -> Array:
    return DRAW.normal(0, 1, shape).astype(np.float32)


def bytes_(*shape: int) -> Array:
    return DRAW.integers(0, 256, shape, dtype=np.uint8)


def signed(*shape: int) -> Array:
    return DRAW.integers(-128, 128, shape, dtype=np.int8)


def one(value: float) -> Array:
    return np.array(value, np.float32)


def point(value: int) -> Array:
    return np.array(value, np.uint8)


ZERO, ZEROS = np.array(0, np.int8), np.zeros(4, np.int8)
A, B = [bytes_(2, 3, 4, 6), one(0.02), point(120)], [bytes_(2, 3, 4, 6), one(0.03), point(90)]
Y = [one(0.05), point(100)]
QKV = [floats(8, 24), floats(24)]
MASK = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32)
CONV = [bytes_(1, 2, 5, 5), one(0.02), point(120), signed(4, 2, 3, 3), np.abs(floats(4)) / 50, ZEROS]

Case = tuple[str, list[Array | None], dict[str, Any]]
"""an operator of com.microsoft, its inputs, and its attributes; the first input is computed, others are constants"""

CASES: list[Case] = [
    ("QLinearAdd", [*A, *B, *Y], {}),
    ("QLinearMul", [*A, *B, *Y], {}),
    ("QLinearSigmoid", [*A, one(1 / 256), point(0)], {}),
    ("QLinearLeakyRelu", [*A, *Y], {"alpha": 0.1}),
    ("QLinearSoftmax", [*A, one(1 / 256), point(0)], {"axis": -1, "opset": 13}),
    ("QLinearGlobalAveragePool", [*A, *Y], {"channels_last": 0}),
    ("QLinearAveragePool", [*A, *Y], {"kernel_shape": [2, 2], "strides": [2, 2]}),
    ("QLinearConv", [*CONV, one(0.2), point(128), np.arange(4, dtype=np.int32)], {"pads": [1, 1, 1, 1]}),
    ("QLinearWhere", [DRAW.random((2, 3, 4, 6)) > 0.5, *A, *B, *Y], {}),
    (
        "QGemm",
        [bytes_(3, 6), one(0.02), point(9), signed(4, 6), one(0.1), ZERO, None, one(4), point(99)],
        {"transB": 1},
    ),
    (
        "QGemm",
        [bytes_(3, 6), one(0.02), point(9), signed(6, 4), np.abs(floats(4)), np.zeros(4, np.int8)],
        {"alpha": 0.5},
    ),
    ("MatMulIntegerToFloat", [bytes_(3, 6), signed(6, 4), one(0.1), one(0.2), point(3), ZERO, floats(4)], {}),
    ("DynamicQuantizeMatMul", [floats(3, 6), signed(6, 4), one(0.2), ZERO, floats(4)], {}),
    ("Gelu", [floats(3, 5)], {}),
    ("BiasGelu", [floats(3, 5), floats(5)], {}),
    ("FastGelu", [floats(3, 5), floats(5)], {}),
    ("QuickGelu", [floats(3, 5)], {"alpha": 1.5}),
    ("FusedMatMul", [floats(2, 4, 3), floats(2, 5, 4)], {"alpha": 0.5, "transA": 1, "transB": 1}),
    ("SkipLayerNormalization", [floats(2, 5, 8), floats(2, 5, 8), floats(8), floats(8), floats(8)], {"epsilon": 1e-5}),
    ("SkipSimplifiedLayerNormalization", [floats(2, 5, 8), floats(2, 5, 8), floats(8)], {"epsilon": 1e-5}),
    ("FusedConv", [floats(1, 2, 5, 5), floats(3, 2, 3, 3), floats(3), floats(1, 3, 3, 3)], {"activation": "Relu"}),
    (
        "EmbedLayerNormalization",
        [MASK, MASK, floats(9, 8), floats(7, 8), floats(2, 8), floats(8), floats(8), MASK],
        {"epsilon": 1e-5},
    ),
    ("Attention", [floats(2, 5, 8), *QKV, MASK], {"num_heads": 2}),
    ("Attention", [floats(2, 5, 8), *QKV, MASK.sum(1, dtype=np.int32)], {"num_heads": 2}),
    ("Attention", [floats(2, 5, 8), *QKV], {"num_heads": 4, "unidirectional": 1, "scale": 0.3}),
    ("Attention", [floats(2, 5, 8), *QKV], {"num_heads": 4, "unidirectional": -1}),
    ("MultiHeadAttention", [floats(2, 5, 8), floats(2, 7, 8), floats(2, 7, 8), floats(24)], {"num_heads": 2}),
    (
        "QAttention",
        [bytes_(2, 5, 8), signed(8, 24), floats(24), one(0.02), one(0.01), MASK, point(128), ZERO],
        {"num_heads": 2},
    ),
]


def model_of(case: Case) -> tuple[onnx.ModelProto, dict[str, Array]]:
    operator, values, attributes = case
    names = [f"i{index}" if value is not None else "" for index, value in enumerate(values)]
    given = {name: value for name, value in zip(names, values, strict=True) if value is not None}
    results = ["y", "lengths"] if operator == "EmbedLayerNormalization" else ["y"]
    node = helper.make_node(operator, names, results, "it", domain="com.microsoft", **attributes)
    computed = {"i0": given.pop("i0")}
    return onnx_model([node], computed, given, opset=17), computed


def test_a_decomposed_operator() -> None:
    model, inputs = together([model_of(case) for case in CASES])
    for output, ours, theirs in zip(
        model.graph.output, run_imported(model, inputs), run_by_onnxruntime(model, inputs), strict=True
    ):
        assert ours.dtype == theirs.dtype, output.name
        if ours.dtype == np.uint8:
            # A step apart where float32 rounds another way just beside a tie
            assert np.abs(ours.astype(int) - theirs).max() <= 1
            assert (ours == theirs).mean() >= 0.95
        else:
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5, err_msg=output.name)


def test_every_decomposition_is_tried() -> None:
    tried = {f"com.microsoft.{operator}" for operator, _, _ in CASES}
    elsewhere = {"QLinearConv", "QLinearMatMul", "SimplifiedLayerNormalization", "com.microsoft.TransposeMatMul"}
    elsewhere |= {
        f"com.microsoft.{name}" for name in ("DequantizeLinear", "QuantizeLinear", "SimplifiedLayerNormalization")
    }
    elsewhere |= {"com.microsoft.FusedGemm", "com.microsoft.QLinearConcat"}
    assert set(DECOMPOSITIONS) - tried <= elsewhere


@pytest.mark.parametrize(
    ("case", "words"),
    [
        (("Attention", [floats(2, 5, 8), *QKV], {"num_heads": 3}), "num_heads=3 does not divide 8 and 8 and 8"),
        (("Attention", [floats(2, 5, 8), *QKV], {"num_heads": 2, "do_rotary": 1}), "attribute do_rotary=1"),
        (("FusedConv", CASES[20][1], {"activation": "Swish"}), "activation 'Swish' is not one of Clip"),
    ],
)
def test_a_refused_form_names_the_node(case: Case, words: str) -> None:
    with pytest.raises(BadModel, match=rf"cannot import node 'it' \(com\.microsoft\.{case[0]}\): {words}"):
        imported(model_of(case)[0])


@pytest.mark.long
def test_decomposed_nodes_count() -> None:
    nodes = [helper.make_node("Gelu", [f"x{i}"], [f"x{i + 1}"], domain="com.microsoft") for i in range(20)]
    nodes += [helper.make_node("QuickGelu", ["x20"], [f"y{i}"], domain="com.microsoft") for i in range(8_000)]
    model = onnx_model(nodes, {"x0": floats(4)}, outputs=["y0"])
    with pytest.raises(BadModel, match=r"with operators like node with output .* decomposed, has 3\d,\d+ nodes"):
        load_onnx(model.SerializeToString(), {}, Limits(1000))


def test_a_causal_mask_is_counted_before_it_is_made() -> None:
    node = helper.make_node("Attention", ["x", "w"], ["y"], domain="com.microsoft", num_heads=1, unidirectional=1)
    model = onnx_model([node], {"x": np.zeros((1, 1), np.float32)}, {"w": floats(1, 3)})
    dims = model.graph.input[0].type.tensor_type.shape.dim
    dims.add().CopyFrom(dims[1])
    dims[1].dim_value = 2**17
    with pytest.raises(BadModel, match=r"is the limit"):
        load_onnx(model.SerializeToString(), {}, Limits(1000))


def test_an_operator_of_onnx_that_only_onnx_defines() -> None:
    x = floats(3, 4)
    model = onnx_model([helper.make_node("Celu", ["x"], ["y"], alpha=2.0)], {"x": x})
    np.testing.assert_allclose(run_imported(model, {"x": x})[0], run_reference(model, {"x": x})[0], rtol=1e-5)


def test_a_function_of_onnx_has_the_defaults_of_its_attributes() -> None:
    given = {"x": floats(3, 4)}
    model = onnx_model([helper.make_node("Celu", ["x"], ["y"])], given)
    np.testing.assert_allclose(run_imported(model, given)[0], run_reference(model, given)[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("shape", "dtype"), [((2, 4, 5, 8), np.float32), ((2, 5, 32), np.float16)])
def test_rotary_embeddings(shape: tuple[int, ...], dtype: Any) -> None:
    """Over the whole head, where ONNX's function splits off a part of no size, and over a part of it."""
    x, places = floats(*shape).astype(dtype), np.array([[0, 3, 1, 9, 4], [2, 2, 5, 7, 8]])
    given: dict[str, Array] = {"x": x, "places": places}
    nodes, weights, outputs = list[onnx.NodeProto](), dict[str, Array](), list[str]()
    for turned, interleaved, by_places in itertools.product((0, 4), (0, 1), (True, False)):
        name = f"{turned} {interleaved} {by_places}"
        angles = np.outer(np.arange(10), 0.1 ** np.arange((turned or 8) // 2))
        angles = angles if by_places else angles[places]
        weights |= {f"{name} cos": np.cos(angles).astype(dtype), f"{name} sin": np.sin(angles).astype(dtype)}
        inputs = ["x", f"{name} cos", f"{name} sin", *(["places"] if by_places else [])]
        heads = {"num_heads": 4} if x.ndim == 3 else {}
        attributes: dict[str, Any] = {"rotary_embedding_dim": turned, "interleaved": interleaved, **heads}
        nodes.append(helper.make_node("RotaryEmbedding", inputs, [name], **attributes))
        outputs.append(name)
    model = onnx_model(nodes, given, weights, opset=23, outputs=outputs)
    for name, ours, right in zip(outputs, run_imported(model, given), run_by_onnxruntime(model, given), strict=True):
        tolerance = 1e-5 if dtype == np.float32 else 4e-3
        np.testing.assert_allclose(ours, right, tolerance, tolerance, err_msg=name)
