"""Concatenations without a kernel.

Where all axes before the axis of a concatenation are 1, each part is a contiguous slice of the result. The operator
that computes a part can write it there. This concatenation stays a call of Relax; compiling lays its parts into the
result (`children/compiling/concat_in_place.py`).
"""

from math import prod
from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from fractune_workers.children.rewriting.expressions import (
    bits_of,
    has_fixed_shapes,
    legalized_by_tvm,
    operator_of,
    relax_functions,
    rewritten,
    shape_of,
)

_CONCAT = "concat"
CONCAT = f"relax.{_CONCAT}"
_ALIGNMENT_BITS = 64 * 8
"""Compiled code expects a tensor to begin at a multiple of 64 bytes"""


def kept(builder: relax.BlockBuilder, call: Any) -> Any:
    """Legalize `relax.concat`; a call whose parts are aligned slices of its result stays unchanged."""
    return call if _has_slices(call) else legalized_by_tvm(builder, call)


def settled(mod: tvm.IRModule) -> tvm.IRModule:
    """The fused module with a kernel for each concatenation whose parts cannot be laid into its result.

    An operator of the same block must compute each part; the part may have another shape since. Inputs and weights have
    places already. A part belongs to one result only.
    """
    in_place = set[Any]().union(*map(_in_place, relax_functions(mod).values()))
    return rewritten(mod, _Settler(mod.clone(), in_place))


def _in_place(function: Any) -> set[Any]:
    """The calls that can be laid out, in the blocks of the function itself."""
    found, taken = set[Any](), set[Any]()
    for block in function.body.blocks:
        computed: dict[Any, Any] = {}
        """by variable: the one of the operator that computed it, before it was seen in another shape"""
        for binding in block.bindings:
            var, value = binding.var, binding.value
            name = operator_of(value)
            if name in ("call_tir", _CONCAT) and isinstance(value.ty, relax.TensorType):
                computed[var] = var
            elif name == "reshape" and value.args[0] in computed:
                computed[var] = computed[value.args[0]]
            if name == _CONCAT:
                fields = value.args[0].fields
                parts = {computed.get(field) for field in fields}
                if None not in parts and len(parts) == len(fields) and not parts & taken:
                    taken |= parts
                    found.add(value)
    return found


def _has_slices(call: Any) -> bool:
    parts = call.args[0]
    if not isinstance(parts, relax.Tuple) or not has_fixed_shapes(call):
        return False
    shape = shape_of(call)
    axis = int(call.attrs.axis) % len(shape)
    return prod(shape[:axis]) == 1 and all(bits_of(part) % _ALIGNMENT_BITS == 0 for part in parts.fields[:-1])


@mutator
class _Settler(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, in_place: set[Any]) -> None:
        super().__init__(mod)
        self._in_place = in_place

    def visit_call_(self, call: Any) -> Any:
        visited = super().visit_call_(call)
        needs_kernel = operator_of(call) == _CONCAT and call not in self._in_place
        return legalized_by_tvm(self.builder_, visited) if needs_kernel else visited
