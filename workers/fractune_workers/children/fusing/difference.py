"""The first difference between prepared modules that must be variants of one model: the same calls, on
other numbers.
"""

from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx

from fractune_workers.children.rewriting.expressions import bindings_of, is_constant, operator_of

CALL = "call_tir"


def first_difference(one: tvm.IRModule, other: tvm.IRModule) -> str:
    """The first difference of the second module from the first, as a clause; empty where only numbers differ."""
    return _Comparison(one, other).first()


def same_function(one: Any, other: Any) -> bool:
    """Whether two TIR functions compute the same, whatever they are called."""
    return bool(tvm_ffi.structural_equal(_nameless(one), _nameless(other)))


def described(binding: Any) -> str:
    """The operator that a binding calls, by its name."""
    value = binding.value
    if not isinstance(value, relax.Call):
        return type(value).__name__
    if operator_of(value) == CALL:
        return str(value.args[0].name_hint)
    return str(getattr(value.op, "name", getattr(value.op, "name_hint", "")))


class _Comparison:
    def __init__(self, one: tvm.IRModule, other: tvm.IRModule) -> None:
        self._mods = one, other
        self._same: dict[Any, Any] = {}
        """by a variable of the first: the other's"""

    def first(self) -> str:
        mains = [mod["main"] for mod in self._mods]
        counts = [len(main.params) for main in mains]
        if counts[0] != counts[1]:
            return f"it has {counts[1]} inputs, and not {counts[0]}"
        for params in zip(*(main.params for main in mains), strict=True):
            if not _equal(params[0].ty, params[1].ty):
                return f"input '{params[1].name}' is {_type(params[1])}, and not {_type(params[0])}"
            self._same[params[0]] = params[1]
        ours, theirs = (bindings_of(mod["main"]) for mod in self._mods)
        for number, (own, their) in enumerate(zip(ours, theirs, strict=False), 1):
            if not self._agree(own, their):
                return f"operator {number} is {_shown(their)}, and {_instead(_shown(own), _shown(their))}"
            self._same[own.var] = their.var
        if len(ours) != len(theirs):
            return f"it computes {len(theirs)} operators, and not {len(ours)}"
        results = [main.body.body for main in mains]
        return "" if self._alike(*results) else "its outputs are others"

    def _agree(self, own: Any, their: Any) -> bool:
        return _equal(own.var.ty, their.var.ty) and self._alike(own.value, their.value)

    def _alike(self, own: Any, their: Any) -> bool:
        """Whether two expressions are the same but for the numbers in them."""
        if isinstance(own, tvm.ir.GlobalVar) and isinstance(their, tvm.ir.GlobalVar):
            return self._same_but_for_numbers(own, their)
        if type(own) is not type(their):
            return False
        if isinstance(own, relax.Var):
            return self._same.get(own, own).same_as(their)
        if is_constant(own):
            return _equal(own.ty, their.ty)
        if isinstance(own, relax.Tuple):
            return self._all_alike(own.fields, their.fields)
        if isinstance(own, relax.TupleGetItem):
            return own.index == their.index and self._alike(own.tuple_value, their.tuple_value)
        if isinstance(own, relax.Call):
            same = own.op.same_as(their.op) and _equal(own.attrs, their.attrs)
            return same and _equal(list(own.ty_args), list(their.ty_args)) and self._all_alike(own.args, their.args)
        return _equal(own, their)

    def _all_alike(self, own: Any, their: Any) -> bool:
        return len(own) == len(their) and all(map(self._alike, own, their))

    def _same_but_for_numbers(self, own: Any, their: Any) -> bool:
        functions = self._mods[0][own], self._mods[1][their]
        return same_function(*functions) or same_function(*map(_numberless, functions))


def _nameless(function: Any) -> Any:
    return function.without_attr("global_symbol") if function.attrs else function


def _numberless(function: Any) -> Any:
    """The function with all numbers of floating point zero: scalars among the weights are in the code."""
    return tvm_ffi.structural_map(function, (tirx.FloatImm, lambda number: tirx.FloatImm(number.ty, 0.0)))


def _equal(one: Any, other: Any) -> bool:
    return bool(tvm_ffi.structural_equal(one, other, map_free_vars=True))


def _type(value: Any) -> str:
    ty = value.ty
    if not isinstance(ty, relax.TensorType) or ty.shape is None:
        return str(ty)
    return f"{ty.dtype}{[int(dim) for dim in ty.shape]}"


def _instead(own: str, their: str) -> str:
    return "computes something else" if own == their else f"not {own}"


def _shown(binding: Any) -> str:
    return f"'{described(binding)}' of {_type(binding.var)}"
