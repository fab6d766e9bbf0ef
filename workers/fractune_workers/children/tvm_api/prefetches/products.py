"""Scheduled matrix products request the weights of their next tile while they multiply those of this one.

A tile of columns multiplies its weights with some rows at a time, as many as the registers hold. The first rows would
wait for weights that come from memory, and the memory would wait during the others. Prefetches spread over all rows
keep both at work.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx

from fractune_core.tir.lookups import MATMUL

FROM_MEMORY_BYTES = 2**23
"""Weights from which on a product prefetches. Smaller ones may still be in the last cache from the run before, and
prefetches would cost some percent."""
_LINE_BYTES = 64
_NAMES = (MATMUL, f"{MATMUL}_update")
"""of a product, and of one whose sums begin in a block of their own"""
_READ, _KEEP, _DATA = 0, 3, 1
"""arguments of LLVM's prefetch: no write is expected, the line goes into all caches, and it holds no instructions"""


def with_product_prefetches(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with prefetches in each product that is scheduled, parallel, and reads its many weights repeatedly."""
    functions = {name: each for name, each in mod.functions.items() if isinstance(each, tirx.PrimFunc)}
    found = {name: product for name, each in functions.items() if (product := _product_of(each)) is not None}
    if not found:
        return mod
    changed = mod.clone()
    for name, product in found.items():
        changed.update_func(name, product.prefetching(functions[name]))
    return changed


@dataclass(frozen=True)
class _Product:
    weights: Any
    begin: Sequence[Any]
    """indices of the first weight of the next tile"""
    tile_bytes: int
    """of the weights that a turn of the parallel loop reads"""
    loops: Sequence[Any]
    """inside the parallel one, down to the outermost loop of the reduction: each of its turns is a chunk"""

    def prefetching(self, function: Any) -> Any:
        inmost = self.loops[-1]

        def with_chunk(loop: Any) -> Any:
            if not loop.loop_var.same_as(inmost.loop_var):
                return loop
            body = tirx.SeqStmt([*self._prefetches(), loop.body])
            return tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, body, None, loop.annotations)

        body = tvm_ffi.structural_map(function.body, (tirx.For, with_chunk))
        return tirx.PrimFunc(function.params, body, function.ret_type, function.attrs)

    def _prefetches(self) -> Iterable[Any]:
        """Those of a chunk: its part of the next tile."""
        chunks = prod(int(loop.extent) for loop in self.loops)
        lines = -(-self.tile_bytes // (chunks * _LINE_BYTES))
        chunk: Any = 0
        for loop in self.loops:
            chunk = chunk * loop.extent + loop.loop_var
        *outer, last = self.begin
        for line in range(lines):
            offset = (chunk * lines + line) * (_LINE_BYTES // tvm.DataType(str(self.weights.ty.dtype)).itemsize)
            address = tirx.address_of(tirx.BufferLoad(self.weights, [*outer, last + offset]))
            yield tirx.Evaluate(tirx.call_intrin("void", "tirx.prefetch", address, _READ, _KEEP, _DATA))


def _product_of(function: Any) -> _Product | None:
    way = _way_to_product(function.body)
    outer = next((at for at, loop in enumerate(way[:-1]) if loop.kind == tirx.ForKind.PARALLEL), None)
    if outer is None:
        return None
    *loops, realize = way
    parallel, *inside = loops[outer:]
    axes = dict(zip((axis.var for axis in realize.block.iter_vars), realize.iter_values, strict=True))
    weights = realize.block.reads[-1]
    dims = [int(dim) for dim in weights.source.ty.shape]
    width = tvm.DataType(str(weights.source.ty.dtype)).itemsize
    if weights.source not in list(function.params) or prod(dims) * width < FROM_MEMORY_BYTES:
        return None
    indices = [_replaced(part.min, axes) for part in weights.region]
    # Only the last index of the data is reduced; the weights' last but one is the same.
    depth = indices[-2]
    chunked = next((at for at, loop in enumerate(inside) if int(loop.extent) > 1 and _reads(depth, loop)), None)
    if chunked is None or not any(int(loop.extent) > 1 for loop in inside[:chunked]):
        return None
    zero = tirx.const(0, str(parallel.loop_var.ty.dtype))
    next_tile = {loop.loop_var: zero for loop in inside} | {parallel.loop_var: parallel.loop_var + 1}
    tile = prod(int(loop.extent) for loop in inside if any(_reads(index, loop) for index in indices))
    return _Product(
        weights.source, [_replaced(index, next_tile) for index in indices], tile * width, inside[: chunked + 1]
    )


def _way_to_product(stmt: Any) -> list[Any]:
    """The loops around a product, outermost first, and the product's block behind them; nothing without a product."""
    if isinstance(stmt, s_tir.SBlockRealize):
        return [stmt] if stmt.block.name_hint in _NAMES else _way_to_product(stmt.block.body)
    if isinstance(stmt, tirx.SeqStmt):
        return next(filter(None, map(_way_to_product, stmt.seq)), [])
    if isinstance(stmt, tirx.For):
        inner = _way_to_product(stmt.body)
        return [stmt, *inner] if inner else []
    return []


def _reads(index: Any, loop: Any) -> bool:
    found: list[Any] = []
    tvm_ffi.structural_walk(index, (tirx.Var, found.append))
    return any(each.same_as(loop.loop_var) for each in found)


def _replaced(expr: Any, values: Mapping[Any, Any]) -> Any:
    return tvm_ffi.structural_map(expr, (tirx.Var, lambda var: values.get(var, var)))
