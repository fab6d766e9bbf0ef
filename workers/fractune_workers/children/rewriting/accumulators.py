"""What the reductions of each kernel accumulate in.

- Sums and products of half precision: float32, which is rounded once (`widened.py`)
- Very long sums: several accumulators (`parted.py`)
- Maxima of floating-point numbers begin at -inf, minima at inf, and so does the padding that they read. TVM takes the
  largest finite number, which would be a result.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx

from fractune_workers.children.rewriting.nests import is_load_of, leaf_blocks, loads_in
from fractune_workers.children.rewriting.parted import with_parts
from fractune_workers.children.rewriting.widened import widened
from fractune_workers.children.tvm_api.reducers import LIMITS, limit_of

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


ACCUMULATORS = tirx.transform.prim_func_pass(lambda function, _mod, _context: accumulating(function), opt_level=0)
"""the pass that does so with every kernel of a module"""
