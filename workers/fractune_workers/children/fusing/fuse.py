"""Prepared variants of a model become one module that computes all slots at once.

Every value gets the axis of slots outermost, and every weight is stacked along it. A TIR function is called once for
all slots, over one more axis (`slot_axis.py`). A reshape changes the shape of the whole. All other operators, and
functions with numbers of a variant in their code, are called once for each slot, on slices.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, topi

from fractune_core.errors import BadModel
from fractune_workers.children.fusing.difference import CALL, described, first_difference, same_function
from fractune_workers.children.fusing.onnx_difference import first_onnx_difference
from fractune_workers.children.fusing.slot_axis import with_slot_axis
from fractune_workers.children.importing.model_file import Variants
from fractune_workers.children.importing.passes import prepare
from fractune_workers.children.rewriting.expressions import (
    bindings_of,
    has_fixed_shapes,
    is_constant,
    operator_of,
    shape_of,
    used_once,
)


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
        clause = first_difference(modules[0], modules[number])
        if clause:
            raise BadModel(_refusal(loaded, number, clause))
    return fused(modules, loaded.places)


def _refusal(loaded: Variants, number: int, clause: str) -> str:
    """In the words of the model's file where that shows the difference; simplifying may have made it, too."""
    shown = first_onnx_difference(loaded.files[0], loaded.files[number]) or f"when simplified, {clause}"
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
        self._parts = used_once(variants[0]["main"]) & {
            binding.var
            for binding in bindings_of(variants[0]["main"])
            if operator_of(binding.value) == CALL and isinstance(binding.var.ty, relax.TensorType)
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
                for bindings in zip(*(bindings_of(variant["main"]) for variant in self._variants), strict=True):
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
        if not has_fixed_shapes(call):
            raise BadModel(f"cannot be fused: the shape of what '{described(bindings[0])}' gives depends on its data")
        rule = _RULES.get(operator_of(call))
        whole = rule(self, values) if rule else None
        if whole is None:
            self._apart.append(described(bindings[0]))
            whole = self._called_apart(values)
        return whole

    def _all_slots(self, values: Sequence[Any]) -> Any:
        """An operand of all slots, of the variants' operands."""
        first = values[0]
        if isinstance(first, relax.Var):
            return self._whole[first]
        if is_constant(first):
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
        return relax.op.reshape(data, [len(self._places), *shape_of(calls[0])])

    def concat(self, calls: Sequence[Any]) -> Any | None:
        """A concatenation along the same axis, which moves one place inwards. It stays a call of Relax where its parts
        are computed for it alone: each part can then be computed in its place, in one slice for each slot
        (`rewriting/concats.py`).
        """
        parts, rank = calls[0].args[0], len(shape_of(calls[0]))
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
            same = all(same_function(functions[0], each) for each in functions[1:])
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
    CALL: _Fuser.call_tir,
    "reshape": _Fuser.reshape,
    "concat": _Fuser.concat,
}
"""by the operator of Relax that is called"""
