"""Arguments by which an operator quantizes its output, as its blocks show them."""

import math
from typing import Any

import tvm
from tvm import s_tir
from tvm.script import from_source

from fractune_core.targets import TF32
from fractune_core.tir.canonical import WHOLE_NUMBERS
from fractune_workers.children.tvm_api import arrays
from fractune_workers.children.tvm_api.tir import parts_of

_SELECT = "prim.if_then_else"

# Operators that round to half precision: the operands of their sums, and the same operator in float32.
#
# Targets that allow TensorFloat-32 round the operands of products in float32.


def rounded_to(mod: tvm.IRModule, *, tf32: bool = False) -> list[str]:
    """The coarsest type in half precision that a block of the operator writes, as `["float16"]`. Where `tf32` is
    allowed, that of products in float32 is `tf32`.

    Empty where no block writes such a type, and where the output has whole numbers.
    """
    if "float" not in str(mod["main"].params[-1].dtype):
        return []
    written = {str(block.writes[0].source.dtype) for block in _blocks(mod)} & arrays.UNIT_ROUNDOFFS.keys()
    is_tf32 = tf32 and operands(mod, tf32=True) != operands(mod)
    coarsest = max(written, key=arrays.UNIT_ROUNDOFFS.__getitem__, default=TF32 if is_tf32 else "")
    return [coarsest] if coarsest else []


def operands(mod: tvm.IRModule, *, tf32: bool = False) -> dict[int, list[str]]:
    """The role of arguments in half precision, and where `tf32` is allowed in float32, that are multiplied in sums of
    products, by place.
    """
    rounded = {*arrays.UNIT_ROUNDOFFS, "float32"} if tf32 else arrays.UNIT_ROUNDOFFS.keys()
    blocks, params = _blocks(mod), list(mod["main"].params)
    made = {block.writes[0].source: block for block in blocks}
    factors = [factor for block in blocks if block.init is not None for factor in _factors(block.body.value)]
    sources = {_source(factor, made) for factor in factors}
    return {at: [arrays.OPERAND] for at, each in enumerate(params) if each in sources and str(each.dtype) in rounded}


def with_reference(mod: tvm.IRModule) -> tvm.IRModule:
    """The operator, and beside it the one in float32 if it rounds to half precision."""
    if not rounded_to(mod):
        return mod
    wide = mod.script()
    for narrow in ("bfloat16", "float16"):  # the longer name first: it contains the other
        wide = wide.replace(narrow, "float32")
    reference = from_source(wide)["main"].with_attr("global_symbol", arrays.REFERENCE)
    return tvm.IRModule({**{var.name_hint: each for var, each in mod.functions.items()}, arrays.REFERENCE: reference})


def _blocks(mod: tvm.IRModule) -> list[Any]:
    return [block for block in parts_of(mod["main"].body, s_tir.SBlock) if len(block.writes) == 1]


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


def whole_numbers(mod: Any) -> dict[int, list[int]]:
    """By the place of an argument: its smallest and its largest number, and a 1 behind them for weights that are
    computed. The data come before the weights.
    """
    function = mod["main"]
    blocks = parts_of(function.body, s_tir.SBlock)
    kernel = next((block for block in blocks if WHOLE_NUMBERS in block.annotations), None)
    if kernel is None:
        return {}
    made = {block.writes[0].source: block for block in blocks if len(block.writes) == 1}
    params = list(function.params)
    numbers = [int(number) for number in kernel.annotations[WHOLE_NUMBERS]]
    found = {}
    for region, bounds in zip(kernel.reads, (numbers[:2], numbers[2:]), strict=True):
        source = region.source
        while source not in params:  # a padded image
            source = made[source].reads[0].source
        found[params.index(source)] = bounds
    return found


_ROUND = "tirx.nearbyint"
_LIMITS = {"Min": arrays.HIGH, "Max": arrays.LOW}


_Roles = dict[int, list[str]]


def quantizing_roles(mod: Any) -> _Roles:
    """The roles of arguments by their place; empty where the output is not quantized.

    The output is quantized where it is a rounded value, perhaps limited, times steps, with other values added. A limit,
    scale or step that is an argument of one element has a role, or two.
    """
    function = mod["main"]
    blocks = parts_of(function.body, s_tir.SBlock)
    params = list(function.params)
    made = {block.writes[0].source: block for block in blocks if len(block.writes) == 1}
    found = _Finder(params, made).of_buffer(params[-1])
    return {} if found is None else {**found, len(params) - 1: [arrays.QUANTIZED]}


class _Finder:
    """Follows values back to a rounding. The methods return roles of arguments, None where no rounding is found."""

    def __init__(self, params: list[Any], made: dict[Any, Any]) -> None:
        self._params = params
        self._made = made
        """blocks by the buffer that they write"""
        self._known: dict[Any, _Roles | None] = {}

    def of_buffer(self, buffer: Any) -> _Roles | None:
        if buffer not in self._known:
            self._known[buffer] = None  # a sum may read the buffer that it writes
            value = self._value_of(buffer)
            self._known[buffer] = None if value is None else self._of_value(value)
        return self._known[buffer]

    def _value_of(self, buffer: Any) -> Any:
        """What a block writes into the buffer; None for sums."""
        block = self._made.get(buffer)
        return None if block is None or block.init is not None else getattr(block.body, "value", None)

    def _of_value(self, value: Any) -> _Roles | None:
        kind = type(value).__name__
        if kind == "TensorLoad":
            return self.of_buffer(value.source)
        if kind == "Cast":
            return self._of_value(value.value)
        if kind == "Call":
            return self._of_call(value)
        return self._of_pair(kind, value) if kind in ("Add", "Sub", "Mul", "Min", "Max") else None

    def _of_call(self, call: Any) -> _Roles | None:
        if call.op.name == _SELECT:
            return self._of_value(call.args[1])
        return self._scale(call.args[0]) if call.op.name == _ROUND else None

    def _of_pair(self, kind: str, value: Any) -> _Roles | None:
        sides = [(self._of_value(one), other) for one, other in ((value.a, value.b), (value.b, value.a))]
        rounded = [(roles, other) for roles, other in sides if roles is not None]
        if len(rounded) != 1:
            return None
        ((roles, other),) = rounded
        place = self._single(other)
        if kind == "Mul":
            return None if place is None else _with(roles, place, arrays.STEP)
        return roles if place is None or kind not in _LIMITS else _with(roles, place, _LIMITS[kind])

    def _scale(self, value: Any) -> _Roles:
        """Of a value that is rounded."""
        while type(value).__name__ == "TensorLoad" and (before := self._value_of(value.source)) is not None:
            value = before
        place = self._single(value.b) if type(value).__name__ == "Div" else None
        return {} if place is None else {place: [arrays.SCALE]}

    def _single(self, value: Any) -> int | None:
        """The place of an argument of one element."""
        if type(value).__name__ != "TensorLoad" or value.source not in self._params:
            return None
        is_single = math.prod(int(dim) for dim in value.source.shape) == 1
        return self._params.index(value.source) if is_single else None


def _with(roles: _Roles, place: int, role: str) -> _Roles:
    return {**roles, place: [*roles.get(place, []), role]}
