"""The kernel of weights of four bits: right for any shape, whole registers, and one candidate of an operator."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tvm
from onnx import helper

from fractune_workers.children.importing.passes import extract, prepare
from fractune_workers.children.layouts import four_bits
from fractune_workers.children.layouts.kernels.four_bits import Product, laid_out, packed, tiling_for, vector_kernel
from fractune_workers.children.searching.operator_search import OperatorSearch
from fractune_workers.children.tvm_api.target import vector_unit
from fractune_workers.children.tvm_api.traces import read_workload
from tests.support.onnx_models import imported, onnx_model
from tests.support.unoptimized import run_kernel

Array = npt.NDArray[Any]
NARROW = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64", "num-cores": 1})
AVX2 = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 1})
AVX512 = tvm.target.Target({"kind": "llvm", "mcpu": "skylake-avx512", "num-cores": 1})
DRAW = np.random.default_rng(3)
SHAPES = {
    "one row": Product(1, 40, 12, 16),
    "a depth of half a word": Product(2, 43, 5, 44),
    "groups of rows": Product(9, 200, 40, 32),
}


def made(product: Product, target: tvm.target.Target, *, offsets: bool = False) -> tuple[Any, tvm.IRModule]:
    tiling = tiling_for(product, vector_unit(target))
    kernel = vector_kernel(product, tiling, has_offsets=offsets).with_attr("global_symbol", "main")
    return tiling, tvm.IRModule({"main": kernel})


@pytest.mark.parametrize("product", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("target", [NARROW, AVX2], ids=["SSE", "AVX2"])
@pytest.mark.parametrize("offsets", [True, False])
def test_any_shape(product: Product, target: tvm.target.Target, *, offsets: bool) -> None:
    tiling, mod = made(product, target, offsets=offsets)
    numbers = DRAW.integers(0, 16, (product.columns, product.words * 8), dtype=np.uint8)
    scales, added = DRAW.uniform(0.1, 1, (2, product.columns, product.blocks)).astype(np.float32)
    data = DRAW.normal(0, 1, (product.rows, product.depth)).astype(np.float32)
    operands = [packed(product, tiling, numbers[:, ::2] | numbers[:, 1::2] << 4), laid_out(product, tiling, scales)]
    if offsets:
        operands.append(laid_out(product, tiling, added))
    result = np.ones((product.rows, tiling.tiles(product.columns) * tiling.width), np.float32)
    result = run_kernel(mod, target, data, *operands, result)
    scales, added = (np.repeat(each, product.block, axis=1)[:, : product.depth] for each in (scales, added))
    weights = (numbers[:, : product.depth] - 8.0) * scales + added * offsets
    np.testing.assert_allclose(result[:, : product.columns], data @ weights.T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("target", "register"), [(AVX2, "ymm"), (AVX512, "zmm")], ids=["AVX2", "AVX-512"])
@pytest.mark.parametrize("rows", [1, 8])
def test_numbers_are_unpacked_in_whole_registers(target: tvm.target.Target, register: str, rows: int) -> None:
    _, mod = made(Product(rows, 256, 256, 32), target)
    lines = tvm.compile(mod, target).mod.inspect_source("asm").splitlines()
    unpacked = [line for line in lines if "vcvtdq2ps" in line or "vpsrad" in line]
    assert len(unpacked) >= 16
    assert all(register in line for line in unpacked)
    assert not any(word in line for line in lines for word in ("vpextrd", "vpinsrd", "vextract", "vcvtsi2ss"))


def model_of_rows(rows: int) -> Any:
    weights: dict[str, Array] = {
        "w": DRAW.integers(0, 256, (64, 2, 8), dtype=np.uint8),
        "s": np.ones(128, np.float32),
    }
    attributes: dict[str, Any] = {"K": 32, "N": 64, "bits": 4, "block_size": 16}
    node = helper.make_node("MatMulNBits", ["x", *weights], ["y"], domain="com.microsoft", **attributes)
    return imported(onnx_model([node], {"x": np.zeros((rows, 32), np.float32)}, weights))


def test_the_kernel_is_an_operator_with_one_candidate() -> None:
    (operator,) = extract(prepare(model_of_rows(4), AVX2), AVX2)
    assert operator.flops >= 2 * 4 * 32 * 64
    search = OperatorSearch(read_workload(operator.workload_json), AVX2, seed=0, threads=1)
    assert len(search.propose(3, str)) == 1


def test_a_function_of_another_meaning_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(four_bits, "_middle", lambda _bits: 7)
    other = model_of_rows(4)
    monkeypatch.undo()
    assert "unpacked" in prepare(other, AVX2).script()
    assert "unpacked" not in prepare(model_of_rows(4), AVX2).script()
