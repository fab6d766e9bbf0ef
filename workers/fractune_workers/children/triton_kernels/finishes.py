"""The element-wise operators behind sums, as lines of a Triton function that finishes a tile.

TIR's expressions become Python for Triton. Half precision is computed in float32, and rounded where it is stored.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tvm.ir import TensorLoad

from fractune_workers.children.triton_kernels.sums import Sums, Unfit, kind_of, shape_of
from fractune_workers.children.tvm_api.tir import parts_of

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


_NAME = re.compile(r"\bi\d+\b")
SUMS = "sums"


def finish_lines(sums: Sums) -> list[str]:
    """Lines over `sums`, `batch`, `row`, `column` and the pointers `p0`, `p1`, ... to the arguments.

    Raises Unfit for an operator without a translation.
    """
    lines = _Lines(sums)
    lines.store(sums.function.params[-1])
    return lines.lines


def value_lines(sums: Sums, buffer: Any) -> list[str]:
    """As `finish_lines`, of a function that returns the elements of a buffer, each at the place of its sum.

    Raises Unfit where they lie in another order.
    """
    lines = _Lines(sums)
    lines.give_back(buffer)
    return lines.lines


def part_text(group: str, inner: int, extent: int, whole: int) -> str:
    """The coordinate of an axis of `extent` elements around `inner` ones, of a group of `whole`."""
    text = group if inner == 1 else f"({group} // {inner})"
    return text if inner * extent == whole else f"({text} % {extent})"


def times_text(text: str, factor: int) -> str:
    return text if factor == 1 else f"{text} * {factor}"


class _Lines:
    def __init__(self, sums: Sums) -> None:
        self._sums = sums
        self._groups: dict[str, str] = {}
        """the group of a coordinate, by its name"""
        self._coordinates: dict[Any, str] = {}
        """its name, by axis of the sums"""
        self._known: dict[tuple[Any, tuple[str, ...]], str] = {}
        """variables by buffer and indices"""
        self.lines: list[str] = []
        for group in ("batch", "row", "column"):
            whole = inner = sums.extent(group)
            for axis, extent in sums.groups[group]:
                inner //= extent
                name = f"i{len(self._coordinates)}"
                self._coordinates[axis], self._groups[name] = name, group
                self.lines.append(f"{name} = {part_text(group, inner, extent, whole)}")

    def give_back(self, buffer: Any) -> None:
        """The value of a buffer that lies like the sums."""
        value, indices = self._value(buffer)
        if indices != self._indices_of_sums:
            raise Unfit
        self.lines.append(f"return {value}")

    def store(self, output: Any) -> None:
        """The value of the output, rounded, in its place."""
        value, indices = self._value(output)
        place = _flat_text(indices, shape_of(output)) + " + row * 0 + column * 0"  # a tile, whatever it names
        here = f"(row < {self._sums.extent('row')}) & (column < {self._sums.extent('column')})"
        pointer, rounded = f"p{len(self._sums.function.params) - 1}", f".to({type_text(str(output.ty.dtype))})"
        self.lines.append(f"value = {value}")
        self.lines.append(f"tl.store({pointer} + {place}, value{rounded}, mask={here})")

    def _value(self, buffer: Any) -> tuple[str, tuple[str, ...]]:
        """The value of a buffer that follows from the sums, and its indices."""
        if buffer.same_as(self._sums.buffer):
            return SUMS, self._indices_of_sums
        block = self._sums.made.get(buffer)
        if block is None or block.init is not None:
            raise Unfit
        expressions = Expressions(self._coordinates_of(block), self._load)
        return expressions.text(block.body.value), tuple(map(expressions.text, block.body.indices))

    @property
    def _indices_of_sums(self) -> tuple[str, ...]:
        return tuple(self._coordinates.get(axis, "0") for axis in self._sums.indices)

    def _coordinates_of(self, block: Any) -> dict[Any, str]:
        """The coordinates of a block's variables, found on the way from the block to the sums."""
        extents = {each.var: int(each.dom.extent) for each in block.iter_vars}
        found = self._at_sums(block, {var: var for var in extents})
        # One sum is stored in one place, so a larger tensor that it is added to does not fit.
        if found is None or any(extent > 1 and var not in found for var, extent in extents.items()):
            raise Unfit
        return {var: found.get(var, "0") for var in extents}

    def _at_sums(self, block: Any, own: Mapping[Any, Any]) -> dict[Any, str] | None:
        """Coordinates by axis, which `own` has by variable of the block; None on a way that does not lead to sums."""
        for load in parts_of(block.body.value, TensorLoad):
            axes = [own.get(index) for index in load.indices]
            if load.source.same_as(self._sums.buffer):
                pairs = [
                    (axis, there) for axis, there in zip(axes, self._sums.indices, strict=True) if there is not None
                ]
                if any(axis is None for axis, _ in pairs):
                    raise Unfit
                return {axis: self._coordinates[there] for axis, there in pairs}
            inner = self._sums.made.get(load.source)
            if inner is not None and inner.init is None:
                found = self._at_sums(inner, dict(zip(inner.body.indices, axes, strict=True)))
                if found is not None:
                    return found
        return None

    def _load(self, buffer: Any, indices: tuple[str, ...]) -> str:
        """A variable with the elements of a buffer at these indices."""
        if buffer.same_as(self._sums.buffer):
            if indices != self._indices_of_sums:
                raise Unfit
            return SUMS
        known = self._known.get((buffer, indices))
        if known is None:
            known = self._known[buffer, indices] = f"v{len(self._known)}"
            self.lines.append(f"{known} = {self._elements(buffer, indices)}")
        return known

    def _elements(self, buffer: Any, indices: tuple[str, ...]) -> str:
        block = self._sums.made.get(buffer)
        if block is not None:
            if block.init is not None:
                raise Unfit
            return Expressions(dict(zip(block.body.indices, indices, strict=True)), self._load).text(block.body.value)
        if buffer not in list(self._sums.function.params):
            raise Unfit
        place = _flat_text(indices, shape_of(buffer))
        groups = {self._groups[name] for name in _NAME.findall(place)}
        here = [f"({group} < {self._sums.extent(group)})" for group in ("row", "column") if group in groups]
        masked = f", mask={' & '.join(here)}, other=0" if here else ""
        dtype = str(buffer.ty.dtype)
        widened = f".to({type_text(computed_in(dtype))})" if dtype != computed_in(dtype) else ""
        return f"tl.load(p{list(self._sums.function.params).index(buffer)} + {place}{masked}){widened}"


def _flat_text(indices: Sequence[str], shape: Sequence[int]) -> str:
    """An offset, of indices as text."""
    terms = []
    inner = 1
    for index, extent in zip(reversed(indices), reversed(shape), strict=True):
        if index != "0":
            terms.append(times_text(index, inner))
        inner *= extent
    return f"({' + '.join(reversed(terms))})" if terms else "0"
