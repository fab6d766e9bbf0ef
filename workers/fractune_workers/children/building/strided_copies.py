"""Asynchronous copies into shared memory whose vectors have a stride, such as those of a transposed operand.

TVM's pass InjectPTXAsyncCopy takes the first address of a vector and ignores its stride: such a copy would become a
contiguous one, of wrong and often misaligned bytes. Number by number it copies right: asynchronously where a number has
4 bytes, and through a register where it has fewer.
"""

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.instrument import pass_instrument
from tvm.tirx.stmt import ForKind

_ASYNC, _DMA = "s_tir.InjectPTXAsyncCopy", "s_tir.LowerAsyncDMA"
_SCOPE, _SELECT = "async_scope", "prim.if_then_else"


@pass_instrument
class StridedCopies:
    """Looks at a module right before TVM makes its copies asynchronous."""

    def __init__(self) -> None:
        self.operands: set[str] = set()
        """names of the tensors that would be copied wrongly"""

    def should_run(self, mod: tvm.IRModule, info: Any) -> bool:
        """Not the pass that makes one copy of a whole loop: it is for processors with a copy engine of another kind."""
        del mod
        return bool(info.name != _DMA)

    def run_before_pass(self, mod: tvm.IRModule, info: Any) -> None:
        if info.name != _ASYNC:
            return
        for function in mod.functions.values():
            tvm_ffi.structural_walk(function.body, (tirx.AttrStmt, self._note_scope))

    def _note_scope(self, node: Any) -> None:
        if node.attr_key == _SCOPE:
            tvm_ffi.structural_walk(node.body, (tirx.BufferStore, self._note_copy))

    def _note_copy(self, store: Any) -> None:
        load = _load_of(store)
        if load is not None and any(map(_has_stride, [*store.indices, *load.indices])):
            self.operands.add(str(load.source.name))


def copied_singly(mod: tvm.IRModule, operands: set[str]) -> tvm.IRModule:
    """The scheduled module; its copies of the operands into shared memory copy number by number."""

    def unrolled(loop: Any) -> Any:
        if loop.kind != ForKind.VECTORIZED or not _copies(loop, operands):
            return loop
        return tirx.For(loop.loop_var, loop.min, loop.extent, ForKind.UNROLLED, loop.body)

    def changed(function: Any) -> Any:
        return function.with_body(tvm_ffi.structural_map(function.body, (tirx.For, unrolled)))

    named = {var: changed(each) if isinstance(each, tirx.PrimFunc) else each for var, each in mod.functions.items()}
    return tvm.IRModule(named, attrs=mod.attrs)


def _copies(loop: Any, operands: set[str]) -> bool:
    found: list[Any] = []
    tvm_ffi.structural_walk(loop.body, (tirx.BufferStore, found.append))
    loads = [_load_of(store) for store in found if str(store.buffer.scope()).startswith("shared")]
    return any(load is not None and str(load.source.name) in operands for load in loads)


def _load_of(store: Any) -> Any:
    """What the statement copies, also if it copies a part of a tile's numbers only; None if it computes."""
    value = store.value
    if isinstance(value, tvm.ir.Call) and value.op.name == _SELECT:
        value = value.args[1]
    return value if isinstance(value, tvm.ir.TensorLoad) else None


def _has_stride(index: Any) -> bool:
    ramps: list[Any] = []
    tvm_ffi.structural_walk(index, (tirx.Ramp, ramps.append))
    return any(not isinstance(ramp.stride, tirx.IntImm) or int(ramp.stride) != 1 for ramp in ramps)
