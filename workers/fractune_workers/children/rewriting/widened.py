"""Kernels that add or multiply in half precision, as kernels in float32 that round once at the end.

Only copies, as of padded images, keep their type, so that tensor cores and caches get what they had.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import Call, TensorLoad

from fractune_workers.children.rewriting.nests import (
    SPATIAL,
    accumulates,
    axis_of,
    element_of,
    is_plain,
    leaf_blocks,
    loads_in,
    nest_of,
    stores_in,
    with_nests,
)

HALVES = frozenset({"float16", "bfloat16"})
_WIDE = "float32"
_COMPARED = (tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.And, tirx.Or)
_COMPUTED = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod, tirx.Min, tirx.Max)
_CHOICE, _BITS = "prim.if_then_else", "tirx.reinterpret"


def widened(function: Any) -> Any:
    """The kernel, in float32 if it adds in half precision."""
    if not (is_plain(function) and any(map(adds_in_half, leaf_blocks(function)))):
        return function
    return _Widened(function).function()


def adds_in_half(block: Any) -> bool:
    """Whether a block adds or multiplies into a number of half precision."""
    return any(
        str(store.buffer.dtype) in HALVES and accumulates(store) and not isinstance(store.value, (tirx.Max, tirx.Min))
        for store in stores_in(block.body)
    )


def _is_moved(value: Any) -> bool:
    """Whether an element is copied, or chosen from others and constants."""
    if isinstance(value, tirx.Select):
        return _is_moved(value.true_value) and _is_moved(value.false_value)
    if isinstance(value, Call) and value.op.name == _CHOICE:
        return all(map(_is_moved, value.args[1:]))
    return isinstance(value, (TensorLoad, tirx.FloatImm))


class _Widened:
    """One kernel in float32."""

    def __init__(self, function: Any) -> None:
        self._function = function
        self._wide: dict[Any, Any] = {}
        """by the buffer in half precision: the one in its place"""
        self._ended: list[Any] = []
        """parameters that a sum was written into: they are rounded by blocks of their own"""
        reduced = {
            store.buffer for block in leaf_blocks(function) for store in stores_in(block.body) if accumulates(store)
        }
        read = {load.source for block in leaf_blocks(function) for load in loads_in(block.body)}
        for store in (store for block in leaf_blocks(function) for store in stores_in(block.body)):
            buffer = store.buffer
            if buffer in self._wide or str(buffer.dtype) not in HALVES or _is_moved(store.value):
                continue
            if buffer in function.params:
                if buffer not in reduced | read:
                    continue
                self._ended.append(buffer)
            self._wide[buffer] = tirx.decl_buffer(buffer.shape, _WIDE, f"{buffer.name}_wide")

    def function(self) -> Any:
        root = self._function.body.block
        body = tvm_ffi.structural_map(root.body, ((s_tir.SBlock, self._block),))
        allocated = [self._wide.get(each, each) for each in root.alloc_buffers]
        allocated += [self._wide[each] for each in self._ended]
        rounded = [_rounded(self._wide[each], each) for each in self._ended]
        return self._function.with_body(with_nests(root, [body, *rounded], allocated))

    def _block(self, block: Any) -> Any:
        def store(each: Any) -> Any:
            value = self._number(each.value)
            if each.buffer in self._wide:
                return tirx.BufferStore(self._wide[each.buffer], value, each.indices)
            if str(each.buffer.dtype) in HALVES:
                is_kept = _is_moved(each.value) and not any(load.source in self._wide for load in loads_in(each.value))
                value = each.value if is_kept else tirx.Cast(str(each.buffer.dtype), value)
            return tirx.BufferStore(each.buffer, value, each.indices)

        def region(each: Any) -> Any:
            return tirx.BufferRegion(self._wide.get(each.source, each.source), each.region)

        return s_tir.SBlock(
            block.iter_vars,
            [region(each) for each in block.reads],
            [region(each) for each in block.writes],
            block.name_hint,
            tvm_ffi.structural_map(block.body, ((tirx.BufferStore, store),)),
            None if block.init is None else tvm_ffi.structural_map(block.init, ((tirx.BufferStore, store),)),
            block.alloc_buffers,
            block.match_buffers,
            block.annotations,
        )

    def _number(self, value: Any) -> Any:
        """The value, in float32 where it was in half precision."""
        is_half = str(value.ty.dtype) in HALVES
        if isinstance(value, tirx.FloatImm):
            return tirx.FloatImm(_WIDE, float(value.value)) if is_half else value
        if isinstance(value, TensorLoad):
            at = [self._number(index) for index in value.indices]
            load = tirx.BufferLoad(self._wide.get(value.source, value.source), at)
            return tirx.Cast(_WIDE, load) if str(load.ty.dtype) in HALVES else load
        if isinstance(value, tirx.Cast):
            dtype = _WIDE if is_half else str(value.ty.dtype)
            number = self._number(value.value)
            return number if str(number.ty.dtype) == dtype else tirx.Cast(dtype, number)
        if isinstance(value, (*_COMPUTED, *_COMPARED)):
            return type(value)(self._number(value.a), self._number(value.b))
        if isinstance(value, tirx.Not):
            return tirx.Not(self._number(value.a))
        if isinstance(value, tirx.Select):
            parts = (value.condition, value.true_value, value.false_value)
            return tirx.Select(*map(self._number, parts))
        if isinstance(value, Call):
            return self._called(value)
        if is_half:
            raise ValueError(f"{type(value).__name__} in half precision")
        return value

    def _called(self, value: Any) -> Any:
        is_half = str(value.ty.dtype) in HALVES
        if value.op.name == _BITS:
            bits = [tirx.Cast(str(each.ty.dtype), self._number(each)) for each in value.args]
            call = Call(value.op, bits, value.attrs, ret_ty=value.ty)
            return tirx.Cast(_WIDE, call) if is_half else call
        parts = [self._number(each) for each in value.args]
        return Call(value.op, parts, value.attrs, ret_ty=_WIDE if is_half else value.ty)


def _rounded(source: Any, buffer: Any) -> Any:
    """The loops that round a buffer into another."""
    axes = [axis_of(extent, f"v{at}", SPATIAL) for at, extent in enumerate(buffer.shape)]
    at = [axis.var for axis in axes]
    value = tirx.Cast(str(buffer.dtype), tirx.BufferLoad(source, at))
    store = tirx.BufferStore(buffer, value, at)
    return nest_of(axes, [element_of(source, at)], element_of(buffer, at), f"{buffer.name}_rounded", store, None, None)
