"""Prepared variants of a model become one module that computes all slots at once.

Every value gets the axis of slots outermost, and every weight is stacked along it. A TIR function is called once for
all slots: its arguments, and the buffers between its loop nests, get the axis, and each loop nest a loop around it. So
a search can still schedule the function. A reshape changes the shape of the whole. All other operators, and functions
with numbers of a variant in their code, are called once for each slot, on slices.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax, s_tir, te, tirx, topi
from tvm.ir import Range, TensorLoad, TensorRegion

from fractune_core.errors import BadModel
from fractune_workers.children.fusing import difference
from fractune_workers.children.importing.model_file import Variants
from fractune_workers.children.importing.passes import prepare
from fractune_workers.children.rewriting import expressions
from fractune_workers.children.tvm_api.tir import parts_of

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
        return tirx.BufferRegion(wide, [Range.from_min_extent(self._slot, tirx.IntImm(_INDEX, 1)), *region.region])

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
        return bool(parts_of(body, s_tir.SBlockRealize))

    def _widened(self, buffer: Any) -> Any:
        ty = buffer.ty
        shape = [self._slots, *ty.shape]
        return tirx.decl_buffer(shape, ty.dtype, name=buffer.name, scope=ty.storage_scope)


def _replaced(part: Any, old: Any, new: Any) -> Any:
    return tvm_ffi.structural_map(part, (tvm.ir.Var, lambda var: new if var.same_as(old) else var))


def _zero() -> Any:
    return tirx.IntImm(_INDEX, 0)


@dataclass(frozen=True)
class FusedModule:
    """A module over all slots."""

    module: tvm.IRModule
    apart: tuple[str, ...]
    """names of the operators that are called once for each slot, in their order"""


def prepare_variants(loaded: Variants, target: tvm.target.Target, implementation: str = "") -> FusedModule:
    """As `prepare` of `importing/passes.py`; the variants of a fused model, each prepared by itself, become one module.

    Layouts are planned before, so that it is kernels over blocks that get the axis of slots. Raises BadModel for
    variants that are not built alike, with the first difference.
    """
    modules = [prepare(module, target, implementation) for module in loaded.modules]
    for number in range(1, len(modules)):
        clause = difference.first_difference(modules[0], modules[number])
        if clause:
            raise BadModel(_refusal(loaded, number, clause))
    return fused(modules, loaded.places)


def _refusal(loaded: Variants, number: int, clause: str) -> str:
    """In the words of the model's file where that shows the difference; simplifying may have made it, too."""
    shown = difference.first_onnx_difference(loaded.files[0], loaded.files[number]) or f"when simplified, {clause}"
    return (
        f"'{loaded.names[number]}' is not built as '{loaded.names[0]}' is: {shown}; variants of one model differ in "
        "their weights alone"
    )


def fused(variants: Sequence[tvm.IRModule], places: Sequence[int]) -> FusedModule:
    """The variants as one module: slot k computes the variant with the number `places[k]`. The variants differ in
    numbers alone (`difference.py`). Raises BadModel for shapes that are not fixed, and for branches.
    """
    return _Fuser(variants, places).fused()


class _Fuser:
    def __init__(self, variants: Sequence[tvm.IRModule], places: Sequence[int]) -> None:
        self._variants, self._places = variants, places
        self._builder = relax.BlockBuilder()
        self._whole: dict[Any, Any] = {}
        """by a variable of the first variant: the value of all slots"""
        self._stacked: dict[tuple[Any, ...], Any] = {}
        """by the tensors of the variants: their constant"""
        self._widened: dict[Any, Any] = {}
        """by a function's variable in the first variant: the function over all slots, or None"""
        self._parts = expressions.used_once(variants[0]["main"]) & {
            binding.var
            for binding in expressions.bindings_of(variants[0]["main"])
            if expressions.operator_of(binding.value) == difference.CALL
            and isinstance(binding.var.ty, relax.TensorType)
        }
        self._slices: dict[tuple[Any, int], Any] = {}
        self._apart: list[str] = []

    def fused(self) -> FusedModule:
        main = self._variants[0]["main"]
        params = [relax.Var(param.name, self._lifted(param.ty)) for param in main.params]
        self._whole.update(zip(main.params, params, strict=True))
        attrs = {str(name): value for name, value in main.attrs.items()} if main.attrs else None
        with self._builder.function("main", params, attrs=attrs):
            with self._builder.dataflow():
                for bindings in zip(
                    *(expressions.bindings_of(variant["main"]) for variant in self._variants), strict=True
                ):
                    self._whole[bindings[0].var] = self._builder.emit(self._value(bindings))
                bodies = [variant["main"].body.body for variant in self._variants]
                out = self._builder.emit_output(self._all_slots(bodies))
            self._builder.emit_func_output(out)
        return FusedModule(self._builder.get(), tuple(dict.fromkeys(self._apart)))

    def _value(self, bindings: Sequence[Any]) -> Any:
        """The value of all slots for a variable, from the variants' bindings."""
        values = [binding.value for binding in bindings]
        call = values[0]
        if not isinstance(bindings[0], relax.VarBinding) or isinstance(call, relax.If | relax.Function):
            raise BadModel(f"cannot be fused: it branches, or checks a shape, at '{bindings[0].var.name}'")
        if not isinstance(call, relax.Call):
            return self._all_slots(values)
        if not expressions.has_fixed_shapes(call):
            raise BadModel(
                f"cannot be fused: the shape of what '{difference.binding_text(bindings[0])}' gives depends on its data"
            )
        rule = _RULES.get(expressions.operator_of(call))
        whole = rule(self, values) if rule else None
        if whole is None:
            self._apart.append(difference.binding_text(bindings[0]))
            whole = self._called_apart(values)
        return whole

    def _all_slots(self, values: Sequence[Any]) -> Any:
        """An operand of all slots, of the variants' operands."""
        first = values[0]
        if isinstance(first, relax.Var):
            return self._whole[first]
        if expressions.is_constant(first):
            key = tuple(value.value for value in values)
            if key not in self._stacked:
                numbers = [value.value.numpy() for value in values]
                stacked = np.stack([numbers[place] for place in self._places])
                self._stacked[key] = relax.const(stacked, str(stacked.dtype))
            return self._stacked[key]
        if isinstance(first, relax.Tuple):
            return relax.Tuple(
                [self._all_slots(fields) for fields in zip(*(each.fields for each in values), strict=True)]
            )
        if isinstance(first, relax.TupleGetItem):
            return relax.TupleGetItem(self._all_slots([each.tuple_value for each in values]), first.index)
        raise BadModel(f"cannot be fused: it computes with a {type(first).__name__}")

    def _lifted(self, ty: Any) -> Any:
        """The type of all slots, of that of one."""
        if isinstance(ty, relax.TupleType):
            return relax.TupleType([self._lifted(field) for field in ty.fields])
        return relax.TensorType([len(self._places), *map(int, ty.shape)], ty.dtype)

    def call_tir(self, calls: Sequence[Any]) -> Any | None:
        """One call for all slots."""
        function = self._over_slots([call.args[0] for call in calls])
        # A third argument has numbers that are known at run time only.
        if function is None or len(calls[0].args) != 2:
            return None
        operands = self._all_slots([call.args[1] for call in calls])
        made = self._lifted(calls[0].ty)
        return relax.call_tir(function, operands, list(made.fields) if isinstance(made, relax.TupleType) else made)

    def reshape(self, calls: Sequence[Any]) -> Any:
        """A view of the whole."""
        data = self._all_slots([call.args[0] for call in calls])
        return relax.op.reshape(data, [len(self._places), *expressions.shape_of(calls[0])])

    def concat(self, calls: Sequence[Any]) -> Any | None:
        """A concatenation along the same axis, which moves one place inwards. It stays a call of Relax where its parts
        are computed for it alone: each part can then be computed in its place, in one slice for each slot
        (`rewriting/concats.py`).
        """
        parts, rank = calls[0].args[0], len(expressions.shape_of(calls[0]))
        if not isinstance(parts, relax.Tuple):
            return None
        whole = self._all_slots([call.args[0] for call in calls])
        axis = int(calls[0].attrs.axis) % rank + 1
        if set(parts.fields) <= self._parts and len(set(parts.fields)) == len(parts.fields):
            return relax.op.concat(whole, axis)
        return self._builder.call_te(topi.concatenate, list(whole.fields), axis, primfunc_name_hint="concat")

    def _over_slots(self, names: Sequence[Any]) -> Any | None:
        first = names[0]
        if first not in self._widened:
            functions = [variant[name] for variant, name in zip(self._variants, names, strict=True)]
            same = all(difference.same_function(functions[0], each) for each in functions[1:])
            wide = with_slot_axis(functions[0], len(self._places)) if same else None
            self._widened[first] = None if wide is None else self._builder.add_func(wide, str(first.name_hint))
        return self._widened[first]

    def _called_apart(self, calls: Sequence[Any]) -> Any:
        """One call for each slot, their results stacked."""
        made = [
            self._builder.emit(self._of_slot(calls[0], calls[place], slot)) for slot, place in enumerate(self._places)
        ]
        if not isinstance(made[0].ty, relax.TupleType):
            return self._stack(made)
        fields = range(len(made[0].ty.fields))
        return relax.Tuple(
            [self._stack([self._builder.emit(relax.TupleGetItem(each, at)) for each in made]) for at in fields]
        )

    def _stack(self, values: Sequence[Any]) -> Any:
        return self._builder.emit_te(lambda *each: topi.stack(each, 0), *values, primfunc_name_hint="stack_slots")

    def _of_slot(self, first: Any, own: Any, slot: int) -> Any:
        """The expression of one slot: its variant's `own`, on slices of the value that `first` stands for."""
        if isinstance(own, tvm.ir.GlobalVar):
            return self._builder.add_func(self._variants[self._places[slot]][own], str(own.name_hint))
        if isinstance(own, relax.Call):
            arguments = [self._of_slot(*both, slot) for both in zip(first.args, own.args, strict=True)]
            return relax.Call(own.op, arguments, own.attrs, own.ty_args)
        if isinstance(own, relax.Tuple):
            return relax.Tuple([self._of_slot(*both, slot) for both in zip(first.fields, own.fields, strict=True)])
        return self._slice(self._whole[first], slot) if isinstance(own, relax.Var) else own

    def _slice(self, whole: Any, slot: int) -> Any:
        if (whole, slot) not in self._slices:
            self._slices[whole, slot] = self._builder.emit_te(_slice, whole, slot, primfunc_name_hint="slice_slot")
        return self._slices[whole, slot]


def _slice(data: te.Tensor, slot: int) -> te.Tensor:
    """(slots, ...) -> (...)."""
    return te.compute(data.shape[1:], lambda *index: data(slot, *index), name="slice_slot")


_RULES: dict[str, Callable[[_Fuser, Sequence[Any]], Any | None]] = {
    difference.CALL: _Fuser.call_tir,
    "reshape": _Fuser.reshape,
    "concat": _Fuser.concat,
}
"""by the operator of Relax that is called"""
