"""Products with weights of four bits, which stay four bits in memory; or of two, or of eight.

The importer emits a plain kernel, which unpacks each weight where it multiplies it. Layout planning puts a kernel of
vectors in its place, and packs constant weights for it. Computed weights, data of other types than float32, and GPUs
keep the plain kernel. Where a model allows it (`accuracy_level` 4), and the target has instructions for products of
bytes, the data is rounded to bytes.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm_ffi
from tvm import relax, te, tirx

from fractune_workers.children.layouts.kernels import four_bits as kernels
from fractune_workers.children.layouts.kernels.four_bits import Product, laid_out
from fractune_workers.children.layouts.planner import Array, Planner
from fractune_workers.children.rewriting.expressions import shape_of
from fractune_workers.children.tvm_api.byte_products import multiplies_bytes
from fractune_workers.children.tvm_api.target import VectorUnit, needed_features

BITS, PER_BYTE = 4, 2
MIDDLE = 8
"""of the range of four bits"""
ALL_BITS = (2, 4, 8)
_BYTE_BITS = 8
_FLOAT, _BYTE = "float32", "uint8"
_FLOATS = frozenset({"float16", "float32", "float64"})
_DATA, _WEIGHTS, _SCALES, _ZEROS = range(4)
_RANKS = [2, 3, 1, 1]
_ROUNDS = "fractune.rounds"
"""Attribute of the plain kernel: data may be rounded to bytes, block by block"""


def four_bit_product(
    builder: relax.BlockBuilder, operands: Sequence[relax.Expr], bits: int = BITS, *, rounds: bool = False
) -> relax.Expr:
    """Data (M, K) times weights (N, blocks of K, bytes of a block), the lowest bits of a byte first. Scales are (N *
    blocks). Zero points are numbers like the scales, packed bytes (N * bytes of a column), or left out. `rounds`: the
    data may be rounded to bytes.
    """
    shapes, dtypes = [shape_of(each) for each in operands], [str(each.ty.dtype) for each in operands]
    function = _plain_kernel(shapes, dtypes, bits, rounds=rounds)
    rows, columns = shape_of(operands[_DATA])[0], shape_of(operands[_WEIGHTS])[0]
    made = relax.TensorType((rows, columns), operands[_DATA].ty.dtype)
    return relax.call_tir(builder.add_func(function, _name(bits)), relax.Tuple(list(operands)), made)


def is_product(function: Any, operands: Sequence[Any]) -> bool:
    """Whether a call of the function with these operands is such a product."""
    return _bits_of(function, operands) > 0


def with_data(builder: relax.BlockBuilder, function: Any, operands: Sequence[Any], data: relax.Expr) -> relax.Expr:
    """The product of a plain kernel with other data, of perhaps fewer rows."""
    rounds = _ROUNDS in (function.attrs or {})
    return four_bit_product(builder, [data, *operands[_WEIGHTS:]], _bits_of(function, operands), rounds=rounds)


def _middle(bits: int) -> int:
    """The zero point of weights without zero points."""
    return 1 << (bits - 1)


def _name(bits: int) -> str:
    return f"matmul_of_{bits}_bits"


def _plain_kernel(
    shapes: Sequence[tuple[int, ...]], dtypes: Sequence[str], bits: int, *, rounds: bool = False
) -> tirx.PrimFunc:
    names = ("data", "packed", "scales", "zeros")
    tensors = [te.placeholder(*each) for each in zip(shapes, dtypes, names, strict=False)]
    data, (rows, depth), columns = tensors[_DATA], shapes[_DATA], shapes[_WEIGHTS][0]
    weights = _unpacked(depth, dtypes[_DATA], bits, *tensors[_WEIGHTS:])
    k = te.reduce_axis((0, depth), "k")
    product = te.compute(
        (rows, columns), lambda row, column: te.sum(data(row, k) * weights(column, k), axis=k), name="matmul"
    )
    function = te.create_prim_func([*tensors, product]).without_attr("global_symbol")
    return function.with_attr(_ROUNDS, 1) if rounds else function


def _unpacked(
    depth: int, dtype: str, bits: int, weights: te.Tensor, scales: te.Tensor, zeros: te.Tensor | None = None
) -> te.Tensor:
    """(N, K) in the type of the data."""
    columns, blocks, size = (int(extent) for extent in weights.shape)
    per_byte = _BYTE_BITS // bits

    def part(byte: Any, which: Any) -> Any:
        return (byte.astype("int32") >> (which.astype("int32") * bits)) & (2**bits - 1)

    def element(column: Any, k: Any) -> Any:
        block, within = tirx.floordiv(k, size * per_byte), tirx.floormod(k, size * per_byte)
        number = part(weights(column, block, tirx.floordiv(within, per_byte)), tirx.floormod(within, per_byte))
        zero: Any = tirx.const(_middle(bits), dtype)
        if zeros is not None and str(zeros.dtype) == _BYTE:
            byte = zeros(column * math.ceil(blocks / per_byte) + tirx.floordiv(block, per_byte))
            zero = part(byte, tirx.floormod(block, per_byte)).astype(dtype)
        elif zeros is not None:
            zero = zeros(column * blocks + block).astype(dtype)
        return (number.astype(dtype) - zero) * scales(column * blocks + block).astype(dtype)

    return te.compute((columns, depth), element, name="unpacked")


def in_vectors(planner: Planner, call: Any, unit: VectorUnit) -> tuple[Any, None] | None:
    """The rule for a call of the plain kernel with constant weights; None for another call."""
    function, arguments = call.args
    operands = list(getattr(arguments, "fields", ()))
    bits = _bits_of(planner.builder_.get()[function], operands)
    if not bits:
        return None
    data, *constants = operands
    known = [numbers for each in constants if (numbers := planner.constant(each)) is not None]
    if len(known) < len(constants) or str(data.ty.dtype) != _FLOAT:
        return None
    weights, scales, *zeros = known
    rows, depth = shape_of(data)
    columns, blocks, size = weights.shape
    product = Product(rows, depth, columns, size * _BYTE_BITS // bits, bits)
    if not product.has_whole_words:
        return None
    function = planner.builder_.get()[function]
    may_round = _ROUNDS in (function.attrs or {}) and kernels.fits_bytes(product)
    factors = scales.astype(_FLOAT).reshape(columns, blocks)
    added = [(_middle(bits) - _zero_points(each, product)) * factors for each in zeros]
    if may_round and multiplies_bytes(needed_features(planner.target), unit.lanes, 2**bits - 1):
        tiling = kernels.byte_tiling(product, unit)
        words = kernels.byte_packed(product, tiling, weights.reshape(columns, -1))
        made_kernel = kernels.byte_kernel(product, tiling, has_offsets=bool(zeros))
    else:
        tiling = kernels.tiling_for(product, unit)
        words = kernels.packed(product, tiling, weights.reshape(columns, -1))
        made_kernel = kernels.vector_kernel(product, tiling, has_offsets=bool(zeros))
    laid = [words, *(laid_out(product, tiling, each) for each in (factors, *added))]
    kernel = planner.builder_.add_func(made_kernel, _name(bits))
    width = tiling.tiles(columns) * tiling.width
    made = relax.TensorType((rows, width), _FLOAT)
    value = relax.call_tir(kernel, relax.Tuple([data, *map(relax.const, laid)]), made)
    if width == columns:
        return value, None
    return relax.op.strided_slice(planner.emit(value), [1], [0], [columns]), None


def _bits_of(function: Any, operands: Sequence[Any]) -> int:
    """The bits of the weights of a plain kernel; 0 for another function. A module may come from a file, so its function
    is compared and not its name.
    """
    if len(operands) not in (_ZEROS, _ZEROS + 1) or not all(isinstance(e.ty, relax.TensorType) for e in operands):
        return 0
    shapes, dtypes = [shape_of(each) for each in operands], [str(each.ty.dtype) for each in operands]
    if [len(each) for each in shapes] != _RANKS[: len(shapes)] or min(map(min, shapes)) < 1:
        return 0
    data, weights, scales, *zeros = dtypes
    if weights != _BYTE or not {data, scales} <= _FLOATS or not {_BYTE, *_FLOATS}.issuperset(zeros):
        return 0
    _, blocks, size = shapes[_WEIGHTS]
    if shapes[_SCALES][0] != shapes[_WEIGHTS][0] * blocks:
        return 0
    depth = shapes[_DATA][1]
    fitting = (bits for bits in ALL_BITS if blocks == math.ceil(depth / (size * _BYTE_BITS // bits)))
    rounds = _ROUNDS in (function.attrs or {})
    plain = (
        bits
        for bits in fitting
        if tvm_ffi.structural_equal(function, _plain_kernel(shapes, dtypes, bits, rounds=rounds))
    )
    return next(plain, 0)


def _zero_points(zeros: Array, product: Product) -> Array:
    """(N, blocks)"""
    columns, blocks, bits = product.columns, product.blocks, product.bits
    if zeros.dtype != _BYTE:
        return zeros.astype(_FLOAT).reshape(columns, blocks)
    shifts = np.arange(0, _BYTE_BITS, bits)
    numbers = (zeros.reshape(columns, -1, 1) >> shifts) & (2**bits - 1)
    return numbers.reshape(columns, -1)[:, :blocks].astype(_FLOAT)
