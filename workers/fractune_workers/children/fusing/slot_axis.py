"""A TIR function over one more axis, the outermost: for each slot it computes the original function.

Every argument and every buffer between its loop nests gets the axis. Each loop nest gets a loop around it, and its
block a spatial axis. So a search can still schedule the function, with one more spatial loop.
"""

from collections.abc import Iterable
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import Range, TensorLoad, TensorRegion

_ROOT = "root"
_INDEX = "int64"


def with_slot_axis(function: Any, slots: int) -> Any | None:
    """The function for `slots` slots. None for a function that is not a sequence of loop nests around blocks, or that
    passes a buffer to an unknown place, like an external call.
    """
    root = function.body
    if not isinstance(root, s_tir.SBlockRealize) or not _is_plain_root(root.block):
        return None
    buffers = [*function.params, *root.block.alloc_buffers]
    if not all(map(_is_plain_buffer, buffers)):
        return None
    axis = _SlotAxis(buffers, slots)
    block = axis.root(root.block)
    if block is None or axis.is_left_in(block):
        return None
    params = [axis.buffer(param) for param in function.params]
    realized = s_tir.SBlockRealize([], root.predicate, block)
    return tirx.PrimFunc(params, realized, function.ret_type, function.attrs)


def _is_plain_root(block: Any) -> bool:
    return block.name_hint == _ROOT and not block.iter_vars and not block.match_buffers and block.init is None


def _is_plain_buffer(value: Any) -> bool:
    """Whether it is a buffer that lies in memory without gaps, of a shape that is known."""
    if not tirx.is_buffer_var(value):
        return False
    return not value.ty.strides and all(isinstance(dim, tirx.IntImm) for dim in value.ty.shape)


class _SlotAxis:
    """The rewriting of one function."""

    def __init__(self, buffers: Iterable[Any], slots: int) -> None:
        self._slots = tirx.IntImm(_INDEX, slots)
        self._buffers = {each: self._widened(each) for each in buffers}
        self._slot = tirx.Var("slot", _INDEX)
        """stands for the block's axis until that is made"""
        self._loop = tirx.Var("slot_loop", _INDEX)
        """stands for the loop of the nest"""
        self._misfit = False

    def buffer(self, old: Any) -> Any:
        return self._buffers.get(old, old)

    def root(self, block: Any) -> Any | None:
        """The root block with a loop over slots around each of its loop nests; None where that cannot be."""
        body = block.body
        nests = [self._nest(nest) for nest in (body.seq if isinstance(body, tirx.SeqStmt) else [body])]
        if self._misfit:
            return None
        whole = tirx.SeqStmt(nests) if len(nests) > 1 else nests[0]
        allocated = [self.buffer(each) for each in block.alloc_buffers]
        return s_tir.SBlock([], [], [], _ROOT, whole, None, allocated, [], block.annotations)

    def is_left_in(self, block: Any) -> bool:
        """Whether something still names a buffer without the axis."""
        left: list[Any] = []
        tvm_ffi.structural_walk(block, (tvm.ir.Var, lambda var: left.append(var) if var in self._buffers else None))
        return bool(left)

    def _nest(self, nest: Any) -> Any:
        rules = (
            (TensorLoad, self._load),
            (tirx.BufferStore, self._store),
            (TensorRegion, self._region),
            (s_tir.SBlock, self._block),
            (s_tir.SBlockRealize, self._realize),
            (tirx.For, self._for),
        )
        rewritten = tvm_ffi.structural_map(nest, rules)
        loop = tirx.Var("slot", _INDEX)
        return tirx.For(loop, _zero(), self._slots, tirx.ForKind.SERIAL, _replaced(rewritten, self._loop, loop))

    def _load(self, load: Any) -> Any:
        wide = self._buffers.get(load.source)
        return load if wide is None else tirx.BufferLoad(wide, [self._slot, *load.indices])

    def _store(self, store: Any) -> Any:
        wide = self._buffers.get(store.buffer)
        return store if wide is None else tirx.BufferStore(wide, store.value, [self._slot, *store.indices])

    def _region(self, region: Any) -> Any:
        wide = self._buffers.get(region.source)
        if wide is None:
            return region
        return tirx.BufferRegion(wide, [Range.from_min_extent(self._slot, _one()), *region.region])

    def _block(self, block: Any) -> Any:
        if self._holds_block(block.body):
            self._misfit = True
            return block
        var = tirx.Var("v_slot", _INDEX)
        axis = tirx.IterVar(Range.from_min_extent(_zero(), self._slots), var, tirx.IterVar.DataPar)

        def own(part: Any) -> Any:
            return None if part is None else _replaced(part, self._slot, var)

        return s_tir.SBlock(
            [axis, *block.iter_vars],
            [own(each) for each in block.reads],
            [own(each) for each in block.writes],
            block.name_hint,
            own(block.body),
            own(block.init),
            block.alloc_buffers,
            [own(each) for each in block.match_buffers],
            block.annotations,
        )

    def _realize(self, realize: Any) -> Any:
        return s_tir.SBlockRealize([self._loop, *realize.iter_values], realize.predicate, realize.block)

    def _for(self, loop: Any) -> Any:
        self._misfit |= loop.thread_binding is not None
        return loop

    def _holds_block(self, body: Any) -> bool:
        found: list[Any] = []
        tvm_ffi.structural_walk(body, (s_tir.SBlockRealize, found.append))
        return bool(found)

    def _widened(self, buffer: Any) -> Any:
        ty = buffer.ty
        shape = [self._slots, *ty.shape]
        return tirx.decl_buffer(shape, ty.dtype, name=buffer.name, scope=ty.storage_scope)


def _replaced(part: Any, old: Any, new: Any) -> Any:
    return tvm_ffi.structural_map(part, (tvm.ir.Var, lambda var: new if var.same_as(old) else var))


def _zero() -> Any:
    return tirx.IntImm(_INDEX, 0)


def _one() -> Any:
    return tirx.IntImm(_INDEX, 1)
