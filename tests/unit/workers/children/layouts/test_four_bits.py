"""The kernel of weights of four bits: right for any shape, whole registers, and one candidate of an operator."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tvm
from onnx import helper

from fractune_workers.children.importing.passes import extract, prepare
from fractune_workers.children.layouts import four_bits
from fractune_workers.children.layouts.kernels import four_bits as kernels
from fractune_workers.children.layouts.kernels.four_bits import Product, laid_out, packed, tiling_for, vector_kernel
from fractune_workers.children.searching.operator_search import OperatorSearch
from fractune_workers.children.tvm_api.byte_products import multiplies_bytes, with_byte_products
from fractune_workers.children.tvm_api.target import default_target, missing_features, needed_features, vector_unit
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


@pytest.mark.parametrize("target", [NARROW, AVX2], ids=["SSE", "AVX2"])
@pytest.mark.parametrize(
    ("product", "offsets"), [(product, True) for product in SHAPES.values()] + [(SHAPES["groups of rows"], False)]
)
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


def rounded(data: Array, size: int) -> Array:
    """Each block of a row as 255 multiples of a step."""
    parts = [data[:, begin : begin + size] for begin in range(0, data.shape[1], size)]
    largest = [np.abs(part).max(axis=1, keepdims=True) for part in parts]
    steps = [np.where(each > 0, each, 1) / np.float32(127) for each in largest]
    return np.hstack([np.rint(part / step) * step for part, step in zip(parts, steps, strict=True)])


def instructions() -> list[Any]:
    """A target of each way to multiply bytes, if this host has it."""
    targets = [AVX2, default_target(1)]
    return [each for each in targets if not missing_features(each)]


@pytest.mark.parametrize("target", instructions(), ids=lambda each: str(each.attrs["mcpu"]))
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize(
    ("product", "offsets"),
    [
        ((1, 64, 12, 32), True),
        ((7, 160, 40, 32), True),
        ((7, 160, 40, 32), False),
        ((5, 96, 100, 16), True),
        ((1, 80, 33, 32), False),
    ],
    ids=str,
)
def test_data_rounded_to_bytes(
    product: tuple[int, int, int, int], bits: int, target: tvm.target.Target, *, offsets: bool
) -> None:
    of, unit = Product(*product, bits=bits), vector_unit(target)
    if not multiplies_bytes(needed_features(target), unit.lanes, 2**bits - 1):
        pytest.skip("products of eight bits might overflow")
    assert kernels.fits_bytes(of)
    tiling = kernels.byte_tiling(of, unit)
    numbers = DRAW.integers(0, 2**bits, (of.columns, of.depth), dtype=np.uint8)
    shifts = np.arange(0, 8, bits).astype(np.uint8)
    in_bytes = np.bitwise_or.reduce(numbers.reshape(of.columns, -1, len(shifts)) << shifts, axis=2)
    scales, added = DRAW.uniform(0.1, 1, (2, of.columns, of.blocks)).astype(np.float32)
    data = DRAW.normal(0, 1, (of.rows, of.depth)).astype(np.float32)
    data[0, :16] = 0  # a block of zeros has no largest number
    operands = [kernels.byte_packed(of, tiling, in_bytes), laid_out(of, tiling, scales)]
    operands += [laid_out(of, tiling, added)] if offsets else []
    kernel = kernels.byte_kernel(of, tiling, has_offsets=offsets).with_attr("global_symbol", "main")
    result = np.ones((of.rows, tiling.tiles(of.columns) * tiling.width), np.float32)
    mod = with_byte_products(tvm.IRModule({"main": kernel}), target)
    assert "call_llvm_pure_intrin" in mod.script()
    result = run_kernel(mod, target, data, *operands, result)
    scales, added = (np.repeat(each, of.block, axis=1)[:, : of.depth] for each in (scales, added))
    weights = (numbers - float(1 << (bits - 1))) * scales + added * offsets
    expected = rounded(data, of.block) @ weights.T
    np.testing.assert_allclose(result[:, : of.columns], expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("level", [0, 1, 4])
def test_data_is_rounded_if_the_model_allows_it(level: int) -> None:
    def multiplies_bytes_on(target: tvm.target.Target) -> bool:
        prepared = prepare(model_of_rows(4, accuracy_level=level), target)
        return "call_llvm_pure_intrin" in with_byte_products(prepared, target).script()

    assert multiplies_bytes_on(AVX2) == (level == 4)
    assert not multiplies_bytes_on(NARROW)


def model_of_rows(rows: int, **more: int) -> Any:
    weights: dict[str, Array] = {
        "w": DRAW.integers(0, 256, (64, 2, 8), dtype=np.uint8),
        "s": np.ones(128, np.float32),
    }
    attributes: dict[str, Any] = {"K": 32, "N": 64, "bits": 4, "block_size": 16, **more}
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
