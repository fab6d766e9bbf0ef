"""What the reductions of each kernel accumulate in.

- Sums and products of half precision: float32, which is rounded once (`widened.py`)
- Very long sums: several accumulators (`parted.py`)
- Maxima of floating-point numbers begin at -inf, minima at inf. TVM begins at the largest finite number, which would be
  a result.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import s_tir, tirx

from fractune_workers.children.rewriting.nests import is_load_of, leaf_blocks
from fractune_workers.children.rewriting.parted import with_parts
from fractune_workers.children.rewriting.widened import widened
from fractune_workers.children.tvm_api.reducers import LIMITS, limit_of


def accumulating(function: Any) -> Any:
    """One kernel with its accumulators as above; a scheduled one as it is."""
    if bool(function.attrs and function.attrs.get("tirx.is_scheduled", False)):
        return function
    return _with_limits(with_parts(widened(function)))


def _with_limits(function: Any) -> Any:
    """Maxima and minima that begin at an infinity."""

    def block(each: Any) -> Any:
        store: Any = each.body
        init = each.init
        if init is None or not isinstance(store, tirx.BufferStore) or not isinstance(store.value, tuple(LIMITS)):
            return each
        value: Any = store.value
        if not any(is_load_of(side, store) for side in (value.a, value.b)):
            return each
        if "float" not in (dtype := str(store.buffer.dtype)):
            return each
        return s_tir.SBlock(
            each.iter_vars,
            each.reads,
            each.writes,
            each.name_hint,
            store,
            tirx.BufferStore(store.buffer, limit_of(type(store.value), dtype), init.indices),
            each.alloc_buffers,
            each.match_buffers,
            each.annotations,
        )

    if not any(each.init is not None for each in leaf_blocks(function)):
        return function
    return function.with_body(tvm_ffi.structural_map(function.body, ((s_tir.SBlock, block),)))


ACCUMULATORS = tirx.transform.prim_func_pass(lambda function, _mod, _context: accumulating(function), opt_level=0)
"""the pass that does so with every kernel of a module"""
