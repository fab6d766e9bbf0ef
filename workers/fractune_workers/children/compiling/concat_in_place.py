"""Concatenations without a copy: the operator that computes a part writes it into its slice of the result.

A contiguous slice is a tensor of its own, a view. In a fused model each slot has a slice. There the operator gets the
whole result, and writes with an offset.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.ir import Range, TensorLoad, TensorRegion

from fractune_core.errors import FractuneError
from fractune_core.files.manifests import ALIGNMENT_BYTES
from fractune_workers.children.rewriting.expressions import bits_of, operator_of, relax_functions, shape_of

_CONCAT = "concat"


def parts_in_place(mod: tvm.IRModule) -> tvm.IRModule:
    """The module without its calls of `relax.concat`. Its tensors must be allocated already.

    Each result is allocated before its first part, and the parts are views of it. A result may itself be a part. Raises
    FractuneError for a part that no operator of the same block computes: such concatenations are kernels
    (`children/rewriting/concats.py`).
    """
    kernels = _Kernels(mod)
    rewritten = {}
    for name, function in relax_functions(mod).items():
        blocks = [relax.BindingBlock(_Block(block.bindings, kernels).placed()) for block in function.body.blocks]
        body = relax.SeqExpr(blocks, function.body.body)
        rewritten[name] = relax.Function(function.params, body, function.ret_ty, function.is_pure, function.attrs)
    changed = kernels.all()
    for name, function in rewritten.items():
        changed.update_func(name, function)
    return relax.transform.Normalize()(changed)


@dataclass(frozen=True)
class Slice:
    """The place of a part in a result: from `offset` on along `axis`."""

    result: Any
    axis: int
    offset: int


class _Kernels:
    """The TIR functions of a module, and copies of them that write their output into slices of a larger tensor."""

    def __init__(self, mod: tvm.IRModule) -> None:
        self._mod = mod
        self._builder = relax.BlockBuilder(mod.clone())
        self._made: dict[Any, Any] = {}

    def all(self) -> tvm.IRModule:
        """The module with those that were made."""
        return self._builder.get()

    def writing(self, name: Any, parameter: int, place: Slice) -> Any:
        """The variable of the function `name` with another tensor for that parameter."""
        shape = shape_of(place.result)
        key = name.name_hint, parameter, shape, place.axis, place.offset
        if key not in self._made:
            made = into_slice(self._mod[name], parameter, shape, place.axis, place.offset)
            self._made[key] = self._builder.add_func(made, f"{name.name_hint}_part{len(self._made)}")
        return self._made[key]


def into_slice(
    function: Any, parameter: int, shape: Sequence[Any], axis: int, offset: int, alignment: int = ALIGNMENT_BYTES
) -> Any:
    """A TIR function, scheduled or not, with a buffer of `shape` for one of its parameters. It uses the slice of the
    buffer from `offset` on along `axis`. `alignment`: bytes at whose multiple the buffer begins.
    """
    old = function.params[parameter]
    ty = old.ty
    dims = [tirx.IntImm("int64", dim) if isinstance(dim, int) else dim for dim in shape]
    new = tirx.decl_buffer(dims, ty.dtype, name=old.name, scope=ty.storage_scope, data_alignment=alignment)

    def moved(indices: Any) -> list[Any]:
        return [index + offset if at == axis else index for at, index in enumerate(indices)]

    def load(each: Any) -> Any:
        return tirx.BufferLoad(new, moved(each.indices)) if each.source.same_as(old) else each

    def store(each: Any) -> Any:
        return tirx.BufferStore(new, each.value, moved(each.indices)) if each.buffer.same_as(old) else each

    def region(each: Any) -> Any:
        if not each.source.same_as(old):
            return each
        starts = moved([part.min for part in each.region])
        ranges = [Range.from_min_extent(start, part.extent) for start, part in zip(starts, each.region, strict=True)]
        return tirx.BufferRegion(new, ranges)

    rules = ((TensorLoad, load), (tirx.BufferStore, store), (TensorRegion, region))
    body = tvm_ffi.structural_map(function.body, rules)
    params = [new if at == parameter else each for at, each in enumerate(function.params)]
    return tirx.PrimFunc(params, body, function.ret_type, function.attrs).without_attr("global_symbol")


class _Block:
    """The bindings of one block, and where in which result each part of a concatenation lies."""

    def __init__(self, bindings: Any, kernels: _Kernels) -> None:
        self._bindings = bindings
        self._kernels = kernels
        self._tensors: dict[Any, Any] = {}
        """by variable: the one that has been allocated for it"""
        self._places: dict[Any, tuple[Any, int]] = {}
        """by a tensor that is a part: the result, and the offset there in bytes"""
        self._slices: dict[Any, Slice] = {}
        """by a tensor that is a part in slices: where it lies in the result"""
        self._results: set[Any] = set()
        self._made: set[Any] = set()
        for binding in bindings:
            self._look_at(binding.var, binding.value)

    def placed(self) -> list[Any]:
        placed: list[Any] = []
        for binding in self._bindings:
            replaced = binding.var in self._places or binding.var in self._results
            if binding.var in self._slices:
                placed.extend(self._allocated(self._slices[binding.var].result))
            elif replaced:
                placed.extend(self._allocated(binding.var))
            else:
                placed.extend(self._in_slices(binding))
        return placed

    def _in_slices(self, binding: Any) -> Iterator[Any]:
        """A call of a kernel that computes a part in slices gets the result instead. Other names of the part are
        dropped.
        """
        value = binding.value
        if isinstance(value, relax.Var) and self._tensors.get(value) in self._slices:
            return
        arguments = list(value.args) if isinstance(value, relax.Call) else []
        at = next((at for at, each in enumerate(arguments) if each in self._slices), None)
        if at is None:
            yield binding
            return
        place = self._slices[arguments[at]]
        arguments[at] = place.result
        kernel = self._kernels.writing(value.op, at, place)
        yield relax.VarBinding(binding.var, relax.Call(kernel, arguments, value.attrs, value.ty_args))

    def _look_at(self, var: Any, value: Any) -> None:
        name = operator_of(value)
        if name in ("builtin.alloc_tensor", _CONCAT):
            self._tensors[var] = var
        source = value.args[0] if name == "reshape" else value
        if source in self._tensors:
            self._tensors[var] = self._tensors[source]
        if name == _CONCAT:
            self._results.add(var)
            axis = int(value.attrs.axis) % len(var.ty.shape)
            if prod(shape_of(var)[:axis]) == 1:
                self._place(var, value.args[0].fields)
            else:
                self._place_slices(var, value.args[0].fields, axis)

    def _place_slices(self, result: Any, parts: Any, axis: int) -> None:
        offset = 0
        for part in parts:
            tensor = self._tensors.get(part)
            if tensor is None or tensor in self._places or tensor in self._slices or tensor in self._results:
                raise FractuneError(f"'{part}' cannot be laid into a concatenation; compile and ingest have come apart")
            self._slices[tensor] = Slice(result, axis, offset)
            offset += int(part.ty.shape[axis])

    def _place(self, result: Any, parts: Any) -> None:
        offset = 0
        for part in parts:
            tensor = self._tensors.get(part)
            if tensor is None or tensor in self._places:
                raise FractuneError(f"'{part}' cannot be laid into a concatenation; compile and ingest have come apart")
            self._places[tensor] = result, offset
            offset += bits_of(tensor) // 8

    def _allocated(self, tensor: Any) -> Iterator[Any]:
        """The bindings that allocate a part or a result, unless it is allocated already. The result of a part comes
        first.
        """
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
