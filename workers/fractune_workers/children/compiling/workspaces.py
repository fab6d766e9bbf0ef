"""Memory for what several kernels of one operator hand on to each other, planned as the model's other tensors are.

Else the host's code of the operator takes that memory from a pool of its thread. The pool frees it when an operator
needs more, and at the end of the thread. But a CUDA graph remembers where the memory was.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax, s_tir
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.tirx import PrimFunc

from fractune_workers.children.building.triton_archive import with_room_for_partials
from fractune_workers.children.triton_kernels.marks import decisions_in

_GLOBAL = "global"


def with_planned_workspaces(mod: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """The module whose kernels take such memory as arguments behind their outputs. Its calls must be explicit, and its
    tensors not planned yet.
    """
    kernels = {var: each for var, each in mod.functions.items() if isinstance(each, PrimFunc)}
    with_room = {
        var: with_room_for_partials(each, target) if decisions_in(each) else _with_room(each)
        for var, each in kernels.items()
    }
    grown = {var: each for var, each in with_room.items() if len(each.params) > len(kernels[var].params)}
    others = tvm.IRModule({var: each for var, each in mod.functions.items() if var not in grown}, attrs=mod.attrs)
    allocator = _Allocator(others, grown)
    for var, each in others.functions.items():
        if isinstance(each, relax.Function):
            allocator.builder_.update_func(var, allocator.visit_expr(each))
    return allocator.builder_.get()


def _with_room(function: Any) -> Any:
    """The function of a schedule with parameters for the tensors between its kernels."""
    if not isinstance(function.body, s_tir.SBlockRealize):
        return function
    root = function.body.block
    between = [each for each in root.alloc_buffers if each.scope() == _GLOBAL and _has_fixed_shape(each)]
    kept = [each for each in root.alloc_buffers if each not in between]
    block = s_tir.SBlock([], root.reads, root.writes, root.name_hint, root.body, None, kept, [], root.annotations)
    body = s_tir.SBlockRealize([], function.body.predicate, block)
    return PrimFunc([*function.params, *between], body, function.ret_type, function.attrs)


def _has_fixed_shape(buffer: Any) -> bool:
    return all(isinstance(dim, tvm.tirx.IntImm) for dim in buffer.ty.shape)


@mutator
class _Allocator(PyExprMutator):
    """Gives each call of the functions `grown` tensors for their new parameters."""

    def __init__(self, others: tvm.IRModule, grown: dict[Any, Any]) -> None:
        super().__init__(others)
        self._grown = {
            var: (self.builder_.add_func(each, str(var.name_hint)), each.params) for var, each in grown.items()
        }

    def visit_call_(self, op: Any) -> Any:
        visited = super().visit_call_(op)
        if op.op not in self._grown:
            return visited
        function, params = self._grown[op.op]
        rooms = [
            self.builder_.emit(relax.op.builtin.alloc_tensor(relax.ShapeExpr(each.ty.shape), str(each.ty.dtype), 0))
            for each in params[len(visited.args) :]
        ]
        return relax.Call(function, [*visited.args, *rooms], visited.attrs, visited.ty_args)
