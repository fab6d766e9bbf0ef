"""What the reductions of each kernel accumulate in.

- Sums and products of half precision: float32, which is rounded once (`widened.py`)
- Very long sums: several accumulators, whose sums are added: one alone loses what is small beside it
- Maxima of floating-point numbers begin at -inf, minima at inf, and so does the padding that they read. TVM takes the
  largest finite number, which would be a result.
"""

from __future__ import annotations

import math
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx

from fractune_workers.children.rewriting.nests import (
    REDUCED,
    SPATIAL,
    axis_of,
    element_of,
    is_load_of,
    is_plain,
    leaf_blocks,
    loads_in,
    nest_of,
    with_nests,
)
from fractune_workers.children.rewriting.widened import widened
from fractune_workers.children.tvm_api.reducers import LIMITS, limit_of

LONG = 2**15
"""terms of a sum with one accumulator, at most"""
_TERMS = 2**12
"""of each accumulator of a longer sum"""
_SELECT = "prim.if_then_else"


def accumulating(function: Any) -> Any:
    """One kernel with its accumulators as above; a scheduled one as it is."""
    if bool(function.attrs and function.attrs.get("tirx.is_scheduled", False)):
        return function
    return _with_limits(with_parts(widened(function)))


def _with_limits(function: Any) -> Any:
    """Maxima and minima that begin at an infinity, and the padding of what they read."""
    extremes = [block for block in leaf_blocks(function) if _is_extreme(block)]
    if not extremes:
        return function
    read = {load.source: type(block.body.value) for block in extremes for load in loads_in(block.body.value)}

    def changed(block: Any) -> Any:
        store: Any = block.body
        if _is_extreme(block):
            limit = limit_of(type(store.value), str(store.buffer.dtype))
            return _with(block, store, tirx.BufferStore(store.buffer, limit, block.init.indices))
        if block.init is None and isinstance(store, tirx.BufferStore) and store.buffer in read:
            value = _padded(store.value, read[store.buffer])
            return _with(block, tirx.BufferStore(store.buffer, value, store.indices), None)
        return block

    return function.with_body(tvm_ffi.structural_map(function.body, ((s_tir.SBlock, changed),)))


def _is_extreme(block: Any) -> bool:
    """Whether the block finds the largest or the smallest of floating-point numbers."""
    store: Any = block.body
    if block.init is None or not isinstance(store, tirx.BufferStore) or not isinstance(store.value, tuple(LIMITS)):
        return False
    value: Any = store.value
    return "float" in str(store.buffer.dtype) and any(is_load_of(side, store) for side in (value.a, value.b))


def _padded(value: Any, reduction: type) -> Any:
    """Padded by an infinity where TVM pads by the largest finite number."""
    if not (isinstance(value, tvm.ir.Call) and value.op.name == _SELECT and isinstance(value.args[2], tirx.FloatImm)):
        return value
    dtype = str(value.ty.dtype)
    finite = tirx.min_value(dtype) if reduction is tirx.Max else tirx.max_value(dtype)
    if float(value.args[2].value) != float(finite.value):
        return value
    return tirx.if_then_else(value.args[0], value.args[1], limit_of(reduction, dtype))


def _with(block: Any, store: Any, init: Any) -> Any:
    return s_tir.SBlock(
        block.iter_vars,
        block.reads,
        block.writes,
        block.name_hint,
        store,
        init,
        block.alloc_buffers,
        block.match_buffers,
        block.annotations,
    )


def with_parts(function: Any) -> Any:
    """Each long sum in parts, and their sum."""
    if not is_plain(function) or not any(map(_is_long, leaf_blocks(function))):
        return function
    root = function.body.block
    nests = list(root.body.seq) if isinstance(root.body, tirx.SeqStmt) else [root.body]
    made: list[Any] = []
    allocated = list(root.alloc_buffers)
    for nest in nests:
        found: list[Any] = []
        tvm_ffi.structural_walk(nest, (s_tir.SBlockRealize, found.append))
        parted = _parted(found[0]) if len(found) == 1 and _is_long(found[0].block) else None
        made.extend(parted[0] if parted else [nest])
        allocated.extend([parted[1]] if parted else [])
    return function.with_body(with_nests(root, made, allocated))


def _terms(block: Any) -> int:
    """Numbers that a block reduces to one; 0 for an extent that is not fixed."""
    extents = [axis.dom.extent for axis in block.iter_vars if int(axis.iter_type) == REDUCED]
    return math.prod(int(each) if isinstance(each, tirx.IntImm) else 0 for each in extents)


def _is_long(block: Any) -> bool:
    """Whether a block adds many floating-point numbers to one."""
    store = block.body
    if (
        block.init is None
        or block.annotations
        or not isinstance(store.value, tirx.Add)
        or "float" not in str(store.buffer.dtype)
    ):
        return False
    return _terms(block) > LONG and is_load_of(store.value.a, store)


def _parted(realize: Any) -> tuple[list[Any], Any] | None:
    """The loops of the sums and of their sum, and the buffer between. None for a block whose axes are no loops.

    The longest axis is parted; neighbours on it go to neighbouring accumulators, so that these are a vector.
    """
    block = realize.block
    reduced = [axis for axis in block.iter_vars if int(axis.iter_type) == REDUCED]
    if not all(isinstance(each, tirx.Var) for each in realize.iter_values):
        return None
    longest = max(reduced, key=lambda axis: int(axis.dom.extent))
    extent = int(longest.dom.extent)
    count = min(extent, 1 << (_terms(block) // _TERMS).bit_length())
    part = axis_of(count, f"{longest.var.name}_part", SPATIAL)
    step = axis_of(-(-extent // count), longest.var.name, REDUCED)
    place = step.var * count + part.var
    kept = [axis for axis in block.iter_vars if int(axis.iter_type) != REDUCED]
    axes = [*kept, *(step if axis.var.same_as(longest.var) else axis for axis in reduced), part]
    store = block.body
    sums = tirx.decl_buffer([*store.buffer.shape, count], str(store.buffer.dtype), f"{store.buffer.name}_parts")
    at = [*store.indices, part.var]
    term = _moved(store.value.b, longest.var, place)
    zero = tirx.FloatImm(str(store.buffer.dtype), 0.0)
    if extent % count:
        term = tirx.if_then_else(place < extent, term, zero)
    reads = [_moved(region, longest.var, place) for region in block.reads]
    first = nest_of(
        axes,
        reads,
        element_of(sums, at),
        f"{block.name_hint}_parts",
        tirx.BufferStore(sums, tirx.Add(tirx.BufferLoad(sums, at), term), at),
        tirx.BufferStore(sums, zero, at),
        block.annotations,
    )
    other = axis_of(count, longest.var.name, REDUCED)
    into = [*store.indices, other.var]
    total = tirx.Add(store.value.a, tirx.BufferLoad(sums, into))
    last = nest_of(
        [*kept, other],
        [element_of(sums, into)],
        block.writes[0],
        block.name_hint,
        tirx.BufferStore(store.buffer, total, store.indices),
        block.init,
        None,
    )
    return [first, last], sums


def _moved(what: Any, var: Any, place: Any) -> Any:
    return tvm_ffi.structural_map(what, ((tirx.Var, lambda each: place if each.same_as(var) else each),))


ACCUMULATORS = tirx.transform.prim_func_pass(lambda function, _mod, _context: accumulating(function), opt_level=0)
"""the pass that does so with every kernel of a module"""
