"""Weights of four bits: the numbers of ONNX Runtime or of ONNX's reference, and weights that stay packed in memory."""

import math
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import helper, numpy_helper

from fractune_core.errors import BadModel
from fractune_workers.children.importing.passes import prepare
from tests.support.onnx_models import (
    TARGET,
    imported,
    onnx_model,
    run_by_onnxruntime,
    run_imported,
    run_reference,
    together,
)

Array = npt.NDArray[Any]
DRAW = np.random.default_rng(5)
COLUMNS, BLOCK = 12, 16
PACKED = "matmul_of_4_bits"


def product(depth: int, zeros: Array | None = None, **changed: Any) -> tuple[onnx.ModelProto, dict[str, Array]]:
    blocks = -(-depth // BLOCK)
    size = BLOCK * (changed.get("bits", 4) // 2) // 4
    weights: dict[str, Array] = {
        "w": DRAW.integers(0, 256, (COLUMNS, blocks, size), dtype=np.uint8),
        "s": DRAW.uniform(0.1, 1, COLUMNS * blocks).astype(np.float32),
        **({} if zeros is None else {"z": zeros}),
    }
    attributes = {"K": depth, "N": COLUMNS, "bits": 4, "block_size": BLOCK, **changed}
    x = {"x": DRAW.normal(0, 1, (2, 3, depth)).astype(np.float32)}
    node = helper.make_node("MatMulNBits", ["x", *weights], ["y"], "it", domain="com.microsoft", **attributes)
    return onnx_model([node], x, weights), x


ZEROS = {
    "none": None,
    "packed": DRAW.integers(0, 256, COLUMNS * 2, dtype=np.uint8),
    "floats": DRAW.uniform(0, 15, (COLUMNS, 3)).astype(np.float32),
}


def test_a_product_of_four_bits() -> None:
    model, x = together([product(depth, zeros) for zeros in ZEROS.values() for depth in (48, 40)])
    for ours, theirs in zip(run_imported(model, x), run_by_onnxruntime(model, x), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


def test_a_product_of_other_bits() -> None:
    cases = []
    for bits, zeros in ((2, "none"), (2, "packed"), (2, "floats"), (8, "none"), (8, "packed")):
        packed = DRAW.integers(0, 256, (COLUMNS, -(-3 * bits // 8)), dtype=np.uint8)
        cases.append(product(40, packed if zeros == "packed" else ZEROS[zeros], bits=bits))
    model, x = together(cases)
    for ours, theirs in zip(run_imported(model, x), run_by_onnxruntime(model, x), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-3)


def test_weights_stay_packed() -> None:
    mod = prepare(imported(product(64)[0]), TARGET)
    assert "unpacked" not in mod.script()
    kernel = next(function for name, function in mod.functions.items() if PACKED in name.name_hint)
    words = next(argument for argument in kernel.params if argument.ty.dtype == "int32")
    assert math.prod(map(int, words.ty.shape)) * 4 == COLUMNS * 64 / 2


def test_weights_that_are_an_input() -> None:
    model, x = product(48)
    weights = {"w": numpy_helper.to_array(model.graph.initializer[0])}
    del model.graph.initializer[0]
    model.graph.input.append(helper.make_tensor_value_info("w", onnx.TensorProto.UINT8, weights["w"].shape))
    given = {**x, **weights}
    np.testing.assert_allclose(run_imported(model, given)[0], run_by_onnxruntime(model, given)[0], rtol=1e-4, atol=1e-4)


FORMS: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "one scale": ((), {}),
    "a scale for each column": ((12,), {}),
    "blocks of a column": ((2, 12), {"axis": 0, "block_size": 16}),
}


def dequantized(kind: Any, shape: tuple[int, ...], attributes: dict[str, Any], *, zeros: bool) -> onnx.ModelProto:
    """A product with a matrix (32, 12) of numbers of four bits."""
    lowest = -8 if kind == ml_dtypes.int4 else 0
    weights: dict[str, Array] = {
        "w": DRAW.integers(lowest, lowest + 16, (32, COLUMNS)).astype(kind),
        "s": np.asarray(DRAW.uniform(0.1, 1, shape), np.float32),
        **({"z": np.asarray(DRAW.integers(lowest, lowest + 16, shape)).astype(kind)} if zeros else {}),
    }
    nodes = [
        helper.make_node("DequantizeLinear", [*weights], ["f"], **attributes),
        helper.make_node("MatMul", ["x", "f"], ["y"]),
    ]
    return onnx_model(nodes, {"x": DATA}, weights)


DATA = DRAW.normal(0, 1, (2, 3, 32)).astype(np.float32)


@pytest.mark.parametrize("kind", [ml_dtypes.int4, ml_dtypes.uint4])
def test_a_product_with_a_dequantized_matrix(kind: Any) -> None:
    models = [dequantized(kind, *form, zeros=zeros) for form in FORMS.values() for zeros in (True, False)]
    for model in models:
        assert PACKED in imported(model).script()
    whole, given = together([(model, {"x": DATA}) for model in models])
    for ours, theirs in zip(run_imported(whole, given), run_reference(whole, given), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


def test_blocks_along_the_columns_become_float32() -> None:
    model = dequantized(ml_dtypes.int4, (32, 3), {"axis": 1, "block_size": 4}, zeros=False)
    assert PACKED not in imported(model).script()
    expected = run_reference(model, {"x": DATA})[0]
    np.testing.assert_allclose(run_imported(model, {"x": DATA})[0], expected, rtol=1e-4, atol=1e-4)


def test_quantized_data_keep_their_product_of_whole_numbers() -> None:
    model = dequantized(ml_dtypes.int4, *FORMS["a scale for each column"], zeros=False)
    quantize = helper.make_node("QuantizeLinear", ["x", "xs", "xz"], ["q"])
    dequantize = helper.make_node("DequantizeLinear", ["q", "xs", "xz"], ["xq"])
    model.graph.node[1].input[0] = "xq"
    nodes = [quantize, dequantize, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    of_data: dict[str, Array] = {"xs": np.array(0.05, np.float32), "xz": np.array(128, np.uint8)}
    for name, value in of_data.items():
        model.graph.initializer.append(numpy_helper.from_array(value, name))
    assert PACKED not in imported(model).script()


def test_the_product_is_counted_before_it_is_made() -> None:
    with pytest.raises(BadModel, match=r"tensor of shape \[2, 3, 1099511627776\], .* is the limit"):
        imported(product(48, N=2**40)[0])


def test_what_follows_knows_the_shape() -> None:
    model, x = product(48)
    model.graph.node.append(helper.make_node("Shape", ["y"], ["n"]))
    model.graph.node.append(helper.make_node("ConstantOfShape", ["n"], ["zeros"]))
    model.graph.node.append(helper.make_node("Add", ["y", "zeros"], ["sum"]))
    model.graph.output[0].name = "sum"
    assert run_imported(model, x)[0].shape == (2, 3, COLUMNS)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"bits": 3}, "its weights have 3 bits; export it with 2, 4, 8"),
        ({"block_size": 24}, "block_size=24 are not sizes"),
        ({"N": 13}, r"weights of shape \[12, 3, 8\], expected"),
        ({"K": 2**40}, r"weights of shape \[12, 3, 8\], expected"),
    ],
)
def test_a_form_that_is_refused(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(BadModel, match=rf"node 'it' \(com\.microsoft\.MatMulNBits\): .*{words}"):
        imported(product(48, **changed)[0])
