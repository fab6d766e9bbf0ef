"""Concatenations without a copy: whoever computes a part writes it into its slice of the result."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

import tvm
from tvm import relax

from fractune_core.errors import FractuneError

_CONCAT = "relax.concat"


def parts_in_place(mod: tvm.IRModule) -> tvm.IRModule:
    """The module, which allocates its tensors by itself already, without its calls of `relax.concat`.

    Their results are allocated before the first of their parts, and the parts are views of them. A result may be a
    part again. Raises FractuneError for a part that no operator of the same block computes: such concatenations are
    kernels (`children/layouts/concats.py`).
    """
    changed = mod.clone()
    for name, function in mod.functions.items():
        if isinstance(function, relax.Function):
            blocks = [relax.BindingBlock(_Block(block.bindings).placed()) for block in function.body.blocks]
            body = relax.SeqExpr(blocks, function.body.body)
            whole = relax.Function(function.params, body, function.ret_ty, function.is_pure, function.attrs)
            changed.update_func(name, whole)
    return relax.transform.Normalize()(changed)


class _Block:
    """The bindings of one block, and where in which result each part of a concatenation lies."""

    def __init__(self, bindings: Any) -> None:
        self._bindings = bindings
        self._tensors: dict[Any, Any] = {}
        """by variable: the one that has been allocated for it"""
        self._places: dict[Any, tuple[Any, int]] = {}
        """by a tensor that is a part: the result, and the offset there in bytes"""
        self._results: set[Any] = set()
        self._made: set[Any] = set()
        for binding in bindings:
            self._look_at(binding.var, binding.value)

    def placed(self) -> list[Any]:
        placed: list[Any] = []
        for binding in self._bindings:
            replaced = binding.var in self._places or binding.var in self._results
            placed.extend(self._allocated(binding.var) if replaced else [binding])
        return placed

    def _look_at(self, var: Any, value: Any) -> None:
        name = str(getattr(getattr(value, "op", None), "name", ""))
        if name in ("relax.builtin.alloc_tensor", _CONCAT):
            self._tensors[var] = var
        source = value.args[0] if name == "relax.reshape" else value
        if source in self._tensors:
            self._tensors[var] = self._tensors[source]
        if name == _CONCAT:
            self._results.add(var)
            self._place(var, value.args[0].fields)

    def _place(self, result: Any, parts: Any) -> None:
        offset = 0
        for part in parts:
            tensor = self._tensors.get(part)
            if tensor is None or tensor in self._places:
                raise FractuneError(f"'{part}' cannot be laid into a concatenation; compile and ingest have come apart")
            self._places[tensor] = result, offset
            offset += _bytes(tensor)

    def _allocated(self, tensor: Any) -> Iterator[Any]:
        """The bindings that make a part or a result, unless there are such already; what it lies in comes first."""
        if tensor in self._made:
            return
        self._made.add(tensor)
        if tensor not in self._places:
            ty = tensor.ty
            yield relax.VarBinding(tensor, relax.op.builtin.alloc_tensor(ty.shape, str(ty.dtype), 0, "global"))
            return
        result, offset = self._places[tensor]
        yield from self._allocated(result)
        view = relax.Var(f"{tensor.name}_slice", tensor.ty)
        shape, start = tensor.ty.shape, relax.prim_value(offset)
        yield relax.VarBinding(view, relax.op.memory.view(result, shape, None, start))
        # A kernel takes tensors that begin where their memory does.
        yield relax.VarBinding(tensor, relax.op.memory.ensure_zero_offset(view))


def _bytes(tensor: Any) -> int:
    return prod(map(int, tensor.ty.shape)) * int(tvm.DataType(str(tensor.ty.dtype)).bits) // 8
