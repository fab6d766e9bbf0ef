"""MatMulNBits: the numbers of ONNX Runtime, and weights that stay packed in memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import helper

from fractune_core.errors import BadModel
from fractune_workers.children.importing.passes import prepare
from tests.support.onnx_models import TARGET, imported, onnx_model, run_by_onnxruntime, run_imported

Array = npt.NDArray[Any]
DRAW = np.random.default_rng(5)
COLUMNS, BLOCK = 12, 16


def product(depth: int, zeros: Array | None = None, **changed: Any) -> tuple[onnx.ModelProto, dict[str, Array]]:
    blocks = -(-depth // BLOCK)
    weights: dict[str, Array] = {
        "w": DRAW.integers(0, 256, (COLUMNS, blocks, BLOCK // 2), dtype=np.uint8),
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


@pytest.mark.parametrize("zeros", ZEROS.values(), ids=ZEROS)
@pytest.mark.parametrize("depth", [48, 40])
def test_a_product_of_four_bits(depth: int, zeros: Array | None) -> None:
    model, x = product(depth, zeros)
    np.testing.assert_allclose(run_imported(model, x)[0], run_by_onnxruntime(model, x)[0], rtol=1e-4, atol=1e-4)


def test_weights_stay_packed() -> None:
    script = prepare(imported(product(64)[0]), TARGET).script()
    assert 'T.Buffer((T.int64(12), T.int64(4), T.int64(8)), "uint8")' in script
    assert script.count("R.call_tir(") == 1  # nothing unpacks them before


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
        ({"bits": 8}, "its weights have 8 bits; export it with 4"),
        ({"block_size": 24}, "block_size=24 are not sizes"),
        ({"N": 13}, r"weights of shape \[12, 3, 8\], expected"),
        ({"K": 2**40}, r"weights of shape \[12, 3, 8\], expected"),
    ],
)
def test_a_form_that_is_refused(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(BadModel, match=rf"node 'it' \(com\.microsoft\.MatMulNBits\): .*{words}"):
        imported(product(48, **changed)[0])
