"""TIR's expressions as Python for Triton. Half precision is computed in float32, and rounded where it is stored."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fractune_workers.children.triton_kernels.sums import Unfit, kind_of

_TYPES = {"bool": "tl.int1", "float16": "tl.float16", "bfloat16": "tl.bfloat16", "float32": "tl.float32"}
_TYPES |= {"int8": "tl.int8", "uint8": "tl.uint8", "int32": "tl.int32", "int64": "tl.int64"}
_NARROW = ("float16", "bfloat16")
_FORMS = {
    "Add": "({} + {})",
    "And": "({} & {})",
    "EQ": "({} == {})",
    "GE": "({} >= {})",
    "GT": "({} > {})",
    "LE": "({} <= {})",
    "LT": "({} < {})",
    "Max": "tl.maximum({}, {})",
    "Min": "tl.minimum({}, {})",
    "Mul": "({} * {})",
    "NE": "({} != {})",
    "Or": "({} | {})",
    "Sub": "({} - {})",
    "abs": "tl.abs({})",
    "ceil": "tl.ceil({})",
    "cos": "tl.cos({})",
    "erf": "tl.erf({})",
    "exp": "tl.exp({})",
    "fabs": "tl.abs({})",
    "floor": "tl.floor({})",
    "if_then_else": "tl.where({}, {}, {})",
    "log": "tl.log({})",
    "rsqrt": "tl.rsqrt({})",
    "sigmoid": "tl.sigmoid({})",
    "sin": "tl.sin({})",
    "sqrt": "tl.sqrt({})",
    "tanh": "(2 * tl.sigmoid(2 * {}) - 1)",
}
"""by the kind of an expression, or the function that it calls"""


def type_text(dtype: str) -> str:
    """Raises Unfit for a type that kernels do not store."""
    if dtype not in _TYPES:
        raise Unfit
    return _TYPES[dtype]


def computed_in(dtype: str) -> str:
    """The type in which numbers of a type are computed."""
    return "float32" if dtype in _NARROW else dtype


class Expressions:
    """Translates expressions over variables `at`; `load` translates the elements of a buffer, given indices as text."""

    def __init__(self, at: Mapping[Any, str], load: Callable[[Any, tuple[str, ...]], str]) -> None:
        self._at = at
        self._load = load

    def text(self, value: Any) -> str:
        """Raises Unfit for an expression without a translation."""
        kind = kind_of(value)
        if value in self._at:
            return self._at[value]
        if kind == "IntImm":
            return str(int(value.value))
        if kind == "FloatImm":
            return _number(float(value.value))
        if kind == "Cast":
            return self._cast(value)
        if kind == "TensorLoad":
            return self._load(value.source, tuple(self.text(index) for index in value.indices))
        form, parts = _form(value, kind)
        return form.format(*map(self.text, parts))

    def _cast(self, value: Any) -> str:
        inner = self.text(value.value)
        given, wanted = (computed_in(str(each.ty.dtype)) for each in (value.value, value))
        is_number = kind_of(value.value) in ("IntImm", "FloatImm")
        return inner if given == wanted or is_number else f"{inner}.to({type_text(wanted)})"


def _form(value: Any, kind: str) -> tuple[str, Sequence[Any]]:
    if kind == "Call" and (name := value.op.name.rpartition(".")[2]) in _FORMS:
        return _FORMS[name], list(value.args)
    if kind == "Select":
        return _FORMS["if_then_else"], (value.condition, value.true_value, value.false_value)
    if kind == "Div" and "float" in str(value.ty.dtype):
        return "({} / {})", (value.a, value.b)
    if kind in _FORMS:
        return _FORMS[kind], (value.a, value.b)
    raise Unfit


def _number(value: float) -> str:
    return repr(value) if math.isfinite(value) else f'float("{value}")'
