"""The element-wise operators behind sums, as lines of a Triton function that finishes a tile."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import tvm_ffi
from tvm.ir import TensorLoad

from fractune_workers.children.triton_kernels.expressions import Expressions, computed_in, type_text
from fractune_workers.children.triton_kernels.sums import Sums, Unfit, shape_of

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
        for load in _loads(block.body.value):
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


def _loads(value: Any) -> list[Any]:
    found: list[Any] = []
    tvm_ffi.structural_walk(value, (TensorLoad, found.append))
    return found


def _flat_text(indices: Sequence[str], shape: Sequence[int]) -> str:
    """An offset, of indices as text."""
    terms = []
    inner = 1
    for index, extent in zip(reversed(indices), reversed(shape), strict=True):
        if index != "0":
            terms.append(times_text(index, inner))
        inner *= extent
    return f"({' + '.join(reversed(terms))})" if terms else "0"
