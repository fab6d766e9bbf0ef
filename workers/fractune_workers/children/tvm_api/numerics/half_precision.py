"""Operators that round to half precision: the operands of their sums, and the same operator in float32.

Targets that allow TensorFloat-32 round the operands of products in float32.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir
from tvm.script import from_source

from fractune_core.targets import TF32

UNIT_ROUNDOFFS = {"float16": 2.0**-11, "bfloat16": 2.0**-8}
"""largest relative error of one rounding, by type"""
OPERAND = "operand"
"""role of an argument that a sum of products multiplies"""
REFERENCE = "reference"
"""name of the untuned operator in float32, beside `main`"""

_SELECT = "prim.if_then_else"


def rounded_to(mod: tvm.IRModule, *, tf32: bool = False) -> list[str]:
    """The coarsest type in half precision that a block of the operator writes, as `["float16"]`. Where `tf32` is
    allowed, that of products in float32 is `tf32`.

    Empty where no block writes such a type, and where the output has whole numbers.
    """
    if "float" not in str(mod["main"].params[-1].dtype):
        return []
    written = {str(block.writes[0].source.dtype) for block in _blocks(mod)} & UNIT_ROUNDOFFS.keys()
    is_tf32 = tf32 and operands(mod, tf32=True) != operands(mod)
    coarsest = max(written, key=UNIT_ROUNDOFFS.__getitem__, default=TF32 if is_tf32 else "")
    return [coarsest] if coarsest else []


def operands(mod: tvm.IRModule, *, tf32: bool = False) -> dict[int, list[str]]:
    """The role of arguments in half precision, and where `tf32` is allowed in float32, that are multiplied in sums of
    products, by place.
    """
    rounded = {*UNIT_ROUNDOFFS, "float32"} if tf32 else UNIT_ROUNDOFFS.keys()
    blocks, params = _blocks(mod), list(mod["main"].params)
    made = {block.writes[0].source: block for block in blocks}
    factors = [factor for block in blocks if block.init is not None for factor in _factors(block.body.value)]
    sources = {_source(factor, made) for factor in factors}
    return {at: [OPERAND] for at, each in enumerate(params) if each in sources and str(each.dtype) in rounded}


def with_reference(mod: tvm.IRModule) -> tvm.IRModule:
    """The operator, and beside it the one in float32 if it rounds to half precision."""
    if not rounded_to(mod):
        return mod
    wide = mod.script()
    for narrow in ("bfloat16", "float16"):  # the longer name first: it contains the other
        wide = wide.replace(narrow, "float32")
    reference = from_source(wide)["main"].with_attr("global_symbol", REFERENCE)
    return tvm.IRModule({**{var.name_hint: each for var, each in mod.functions.items()}, REFERENCE: reference})


def _blocks(mod: tvm.IRModule) -> list[Any]:
    found: list[Any] = []
    tvm_ffi.structural_walk(mod["main"].body, (s_tir.SBlock, found.append))
    return [block for block in found if len(block.writes) == 1]


def _factors(value: Any) -> list[Any]:
    """Both factors of the product that is added to a sum."""
    if type(value).__name__ != "Add":
        return []
    products = [_uncast(side) for side in (value.a, value.b)]
    return [factor for each in products if type(each).__name__ == "Mul" for factor in (each.a, each.b)]


def _source(value: Any, made: dict[Any, Any]) -> Any:
    """The buffer that a value was copied from, through padding, changes of layout and of type."""
    value = _uncast(value)
    if type(value).__name__ == "Call" and value.op.name == _SELECT:
        return _source(value.args[1], made)
    if type(value).__name__ != "TensorLoad":
        return None
    block = made.get(value.source)
    if block is None or block.init is not None:
        return value.source
    return _source(block.body.value, made)


def _uncast(value: Any) -> Any:
    while type(value).__name__ == "Cast":
        value = value.value
    return value
