"""Kernels request weights before they read them: passes over scheduled convolutions and matrix products.

A tile of weights serves many pixels or rows, as many at a time as the registers hold. The first of them would wait for
weights that come from memory, and the memory would wait during the others. The processor's own prefetcher does not run
ahead of a stream that stops so often. So every step over the pixels or rows requests a part of the next tile.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import TensorLoad

from fractune_core.tir.canonical import MATMUL
from fractune_workers.children.tvm_api.tir import parts_of

_SECOND_CACHE, _ALL_CACHES = 2, 3
"""LLVM's localities: the caches that a line goes into"""
_READ, _DATA = 0, 1
"""other arguments of LLVM's prefetch: no write is expected, and the line holds no instructions"""


def _prefetch(weights: Any, at: Sequence[Any], locality: int) -> Any:
    """The request of a line of the weights."""
    address = tirx.address_of(tirx.BufferLoad(weights, list(at)))
    return tirx.Evaluate(tirx.call_intrin("void", "tirx.prefetch", address, _READ, locality, _DATA))


def _beginning(function: Any, prefetches: Mapping[Any, Sequence[Any]]) -> Any:
    """The function whose loops, by their variables, begin each iteration with prefetches."""

    def begun(loop: Any) -> Any:
        if loop.loop_var not in prefetches:
            return loop
        body = tirx.SeqStmt([*prefetches[loop.loop_var], loop.body])
        return tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, body, loop.thread_binding, loop.annotations)

    return function.with_body(tvm_ffi.structural_map(function.body, (tirx.For, begun)))


def _variables(expression: Any) -> set[Any]:
    return set(parts_of(expression, tvm.ir.Var))


def _replaced(expression: Any, values: Mapping[Any, Any]) -> Any:
    return tvm_ffi.structural_map(expression, (tvm.ir.Var, lambda var: values.get(var, var)))


# Convolutions, direct or Winograd's

_ELEMENT, _LINE = "float32", 16
"""elements of a cache line"""
_AXES = 6
"""of a convolution's weights; products have prefetches of their own (below)"""
_FEWEST_ELEMENTS = 1 << 16
"""of the weights: fewer are soon in the second cache"""
_FEWEST_LINES, _MOST_LINES_AT_ONCE = 16, 16


@dataclass(frozen=True)
class _Loop:
    """A loop around a product, or a part of a fused loop."""

    variable: Any
    at: Any
    """the iteration, computed from the variable"""
    extent: int
    step: int
    """elements from the weights of one iteration to those of the next; 0 where all iterations read the same"""


@dataclass(frozen=True)
class _Tile:
    """Weights that lie in memory as equal runs of cache lines."""

    run: int
    """lines"""
    runs: tuple[tuple[int, int], ...]
    """extents and steps of the loops over runs"""

    @classmethod
    def of(cls, loops: Sequence[_Loop]) -> _Tile:
        elements, runs = 1, []
        for loop in sorted(loops, key=lambda loop: loop.step):
            if loop.step <= elements:
                elements += loop.step * (loop.extent - 1)
            else:
                runs.append((loop.extent, loop.step))
        return cls(-(-elements // _LINE), tuple(runs))

    @property
    def lines(self) -> int:
        return self.run * prod(extent for extent, _ in self.runs)

    def element(self, line: Any) -> Any:
        """The first element of a line, counted from the beginning of the tile."""
        element, rest = line % self.run * _LINE, line // self.run
        for extent, step in self.runs:
            element, rest = element + rest % extent * step, rest // extent
        return element


def with_convolution_prefetches(mod: tvm.IRModule) -> tvm.IRModule:
    """The module for a CPU, its scheduled functions with prefetches where large weights are read tile by tile. These
    functions are loops afterwards; all others stay as they are.
    """
    changed = mod.clone()
    for name, function in mod.functions.items():
        if isinstance(function, tirx.PrimFunc) and any(map(_is_large, function.params)):
            changed.update_func(name, _with_prefetches(function))
    return changed


def _with_prefetches(function: Any) -> Any:
    loops = _as_loops(function)
    products = ((around, load) for around, store in _stores(loops.body, ()) for load in _weights(loops, around, store))
    prefetches = dict(filter(None, (_of_tile(around, load) for around, load in products)))
    if not prefetches:
        return function

    return _beginning(loops, prefetches)


def _as_loops(function: Any) -> Any:
    """The function without blocks: TVM's own first passes of lowering."""
    transform = s_tir.transform
    passes = tvm.transform.Sequential(
        [
            transform.CanonicalizeLoop(),
            transform.LowerInitBlock(),
            transform.PlanAndUpdateBufferAllocationLocation(),
            transform.ConvertBlocksToOpaque(),
            transform.CompactBufferAllocation(),
            transform.LowerMatchBuffer(),
            transform.StmtSimplify(),
            transform.LowerOpaqueBlock(),
        ]
    )
    return passes(tvm.IRModule({"main": function}))["main"]


def _stores(part: Any, loops: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """The loops around each store of a statement, and the store."""
    if isinstance(part, tirx.BufferStore):
        yield loops, part
    elif isinstance(part, tirx.SeqStmt):
        for each in part.seq:
            yield from _stores(each, loops)
    elif isinstance(part, tirx.For):
        yield from _stores(part.body, (*loops, part))
    elif isinstance(part, tirx.AttrStmt):
        yield from _stores(part.body, loops)


def _weights(function: Any, loops: Sequence[Any], store: Any) -> Iterator[Any]:
    """Loads of a large argument: vectors that are multiplied with one number each, and added to sums."""
    value = store.value
    if not loops or not isinstance(value, tirx.Add) or not isinstance(value.b, tirx.Mul):
        return
    factors = [value.b.a, value.b.b]
    if not all(isinstance(factor, TensorLoad) for factor in factors):
        return
    lane = loops[-1].loop_var
    steps = [_step(_offset(factor), lane) for factor in factors]
    for factor, own, other in zip(factors, steps, reversed(steps), strict=True):
        is_argument = any(factor.source.same_as(each) for each in function.params)
        if is_argument and _is_large(factor.source) and (own, other) == (1, 0):
            yield factor


def _is_large(argument: Any) -> bool:
    """Whether it may be the weights of a convolution, and many."""
    shape = getattr(argument.ty, "shape", ())  # an address has none
    return len(shape) == _AXES and argument.ty.dtype == _ELEMENT and prod(map(int, shape)) >= _FEWEST_ELEMENTS


def _of_tile(around: Sequence[Any], load: Any) -> tuple[Any, list[Any]] | None:
    """The variable of a loop, and the prefetches with which each of its iterations begins; None where no tile of
    weights is used several times.
    """
    loops = [part for loop in around for part in _parts(loop, load)]
    again = next((at for at in range(len(loops)) if _begins_tile(loops, at)), None)
    if again is None:
        return None
    tile = _tile_within(loops, again)
    ahead = max(at for at in range(again) if _advances(loops[at]))
    position, count, last = loops[again].at, loops[again].extent, again
    # The innermost of the loops that are not unrolled is too short for more than its products.
    while count * _MOST_LINES_AT_ONCE < tile.lines and _tile_within(loops, last + 1).lines >= _FEWEST_LINES:
        last += 1
        position, count = position * loops[last].extent + loops[last].at, count * loops[last].extent
    at_once = -(-tile.lines // count)
    line = tirx.Var("line", "int64")
    inside = {loop.variable: tirx.const(0, "int64") for loop in loops[ahead + 1 :]}
    inside.pop(loops[ahead].variable, None)
    begin = _replaced(_offset(load), inside) + loops[ahead].step
    element = begin + tile.element(position * at_once + line)
    first = [tirx.const(0, "int64")] * (len(load.indices) - 1)
    request = _prefetch(load.source, [*first, element], _SECOND_CACHE)
    zero, extent = tirx.const(0, "int64"), tirx.const(at_once, "int64")
    return loops[last].variable, [tirx.For(line, zero, extent, tirx.ForKind.UNROLLED, request)]


def _begins_tile(loops: Sequence[_Loop], at: int) -> bool:
    """Whether all iterations of this loop use the same tile, and an outer loop goes on to the next one."""
    used_again = loops[at].extent > 1 and loops[at].step == 0
    return used_again and any(map(_advances, loops[:at])) and _tile_within(loops, at).lines >= _FEWEST_LINES


def _advances(loop: _Loop) -> bool:
    return loop.extent > 1 and loop.step != 0


def _tile_within(loops: Sequence[_Loop], at: int) -> _Tile:
    """The weights of one iteration."""
    return _Tile.of([loop for loop in loops[at + 1 :] if _advances(loop)])


def _parts(loop: Any, load: Any) -> list[_Loop]:
    """The loop. Of one that was fused from a loop over weights and another one inside, these two."""
    variable, extent, offset = loop.loop_var, int(loop.extent), _offset(load)
    step = _step(offset, variable)
    if step is not None:
        return [_Loop(variable, variable, extent, step)]
    others = _variables(offset) - {variable}
    alone = _replaced(offset, dict.fromkeys(others, tirx.const(0, "int64")))
    for period in range(1, extent):
        step = int(tvm.sym.Analyzer().simplify(_replaced(alone, {variable: tirx.const(period, "int64")})))
        if step:
            inner = [_Loop(variable, variable % period, period, 0)] if period > 1 else []
            return [_Loop(variable, variable // period, extent // period, step), *inner]
    return [_Loop(variable, variable, extent, 0)]


def _offset(load: Any) -> Any:
    """Of an element in its tensor."""
    offset = tirx.const(0, "int64")
    for index, extent in zip(load.indices, load.source.ty.shape, strict=True):
        offset = offset * extent + index
    return offset


def _step(offset: Any, variable: Any) -> int | None:
    """From one value of the variable to the next; None where it varies."""
    step = tvm.sym.Analyzer().simplify(_replaced(offset, {variable: variable + 1}) - offset)
    return int(step) if isinstance(step, tirx.IntImm) else None


# Matrix products

FROM_MEMORY_BYTES = 2**23
"""Weights from which on a product prefetches. Smaller ones may still be in the last cache from the run before, and
prefetches would cost some percent."""
_LINE_BYTES = 64
_NAMES = (MATMUL, f"{MATMUL}_update")
"""of a product, and of one whose sums begin in a block of their own"""


def with_product_prefetches(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with prefetches in each product that is scheduled, parallel, and reads its many weights repeatedly."""
    functions = {name: each for name, each in mod.functions.items() if isinstance(each, tirx.PrimFunc)}
    found = {name: product for name, each in functions.items() if (product := _product_of(each)) is not None}
    if not found:
        return mod
    changed = mod.clone()
    for name, product in found.items():
        prefetches = {product.loops[-1].loop_var: list(product.prefetches())}
        changed.update_func(name, _beginning(functions[name], prefetches))
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

    def prefetches(self) -> Iterable[Any]:
        """Those of a chunk: its part of the next tile."""
        chunks = prod(int(loop.extent) for loop in self.loops)
        lines = -(-self.tile_bytes // (chunks * _LINE_BYTES))
        chunk: Any = 0
        for loop in self.loops:
            chunk = chunk * loop.extent + loop.loop_var
        *outer, last = self.begin
        for line in range(lines):
            offset = (chunk * lines + line) * (_LINE_BYTES // tvm.DataType(str(self.weights.ty.dtype)).itemsize)
            yield _prefetch(self.weights, [*outer, last + offset], _ALL_CACHES)


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
    depth = _variables(indices[-2])
    chunked = next((at for at, loop in enumerate(inside) if int(loop.extent) > 1 and loop.loop_var in depth), None)
    if chunked is None or not any(int(loop.extent) > 1 for loop in inside[:chunked]):
        return None
    zero = tirx.const(0, str(parallel.loop_var.ty.dtype))
    next_tile = {loop.loop_var: zero for loop in inside} | {parallel.loop_var: parallel.loop_var + 1}
    tile = prod(int(loop.extent) for loop in inside if any(loop.loop_var in _variables(index) for index in indices))
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
