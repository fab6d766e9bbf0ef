"""The loops and blocks of kernels that are not scheduled: what they hold, and how passes make others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import Range, TensorLoad

SPATIAL, REDUCED = 0, 2
"""TVM's numbers of kinds of axes"""


def leaf_blocks(function: Any) -> list[Any]:
    """The blocks of a kernel that compute."""
    found: list[Any] = []
    tvm_ffi.structural_walk(function.body, (s_tir.SBlock, found.append))
    return [block for block in found if block.name_hint != "root"]


def is_plain(function: Any) -> bool:
    """Whether every block of the kernel is one expression for one element, as those from tensor expressions are."""
    blocks = leaf_blocks(function)
    return bool(blocks) and all(isinstance(block.body, tirx.BufferStore) for block in blocks)


def stores_in(body: Any) -> list[Any]:
    """What a part of a kernel writes."""
    found: list[Any] = []
    tvm_ffi.structural_walk(body, (tirx.BufferStore, found.append))
    return found


def loads_in(value: Any) -> list[Any]:
    """What a part of a kernel reads."""
    found: list[Any] = []
    tvm_ffi.structural_walk(value, (TensorLoad, found.append))
    return found


def accumulates(store: Any) -> bool:
    """Whether a buffer is written from its own elements."""
    return any(load.source.same_as(store.buffer) for load in loads_in(store.value))


def is_load_of(value: Any, store: Any) -> bool:
    """Whether a value is an element of the buffer that is written."""
    return isinstance(value, TensorLoad) and value.source.same_as(store.buffer)


def with_nests(root: Any, parts: list[Any], allocated: list[Any]) -> Any:
    """The body of a kernel with these parts, one after the other."""
    flat = [each for part in parts for each in (part.seq if isinstance(part, tirx.SeqStmt) else [part])]
    body = tirx.SeqStmt(flat) if len(flat) > 1 else flat[0]
    block = s_tir.SBlock([], [], [], root.name_hint, body, None, allocated, root.match_buffers, root.annotations)
    return s_tir.SBlockRealize([], predicate=True, block=block)


def nest_of(axes: Sequence[Any], reads: Sequence[Any], write: Any, name: str, body: Any, init: Any, notes: Any) -> Any:
    """The loops over a block with these axes (`IterVar`)."""
    loops = [tirx.Var(f"{axis.var.name}_0", axis.var.ty) for axis in axes]
    block = s_tir.SBlock(axes, reads, [write], name, body, init, annotations=notes)
    nest: Any = s_tir.SBlockRealize(loops, predicate=True, block=block)
    for axis, loop in reversed(list(zip(axes, loops, strict=True))):
        nest = tirx.For(loop, axis.dom.min, axis.dom.extent, tirx.ForKind.SERIAL, nest)
    return nest


def axis_of(extent: Any, name: str, kind: int) -> Any:
    """An axis of a block that begins at 0."""
    whole = tirx.IntImm("int64", extent) if isinstance(extent, int) else extent
    dtype = str(whole.ty.dtype)
    return tirx.IterVar(Range.from_min_extent(tirx.IntImm(dtype, 0), whole), tirx.Var(name, dtype), kind)


def element_of(buffer: Any, at: Sequence[Any]) -> Any:
    """The region of one element."""
    return tirx.BufferRegion(buffer, [Range.from_min_extent(index, tirx.IntImm("int64", 1)) for index in at])
