"""Quantized operands: the whole numbers behind a value, with the step and the zero point that make the value of them.

A product of two such values is a product of whole numbers. A correction for the zero point of the data and a scale
come after it. float32 holds the sums exactly up to 2^24. Two forms are known. In float32, data are `(whole - zero) *
step`, rounded and clipped, and weights are constants. In int32, both are integers less a zero point.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tvm import relax

from fractune_workers.children.layouts.planner import Array, Planner
from fractune_workers.children.rewriting.expressions import operator_of, shape_of

_FLOAT = "float32"
_MOVES = frozenset({"reshape", "permute_dims", "expand_dims", "squeeze"})
_UNSIGNED, _BYTE, WIDE = (0, 255), (-128, 127), (-255, 255)
"""ranges of whole numbers"""
_MOST_STEPS = 255
_SAMPLE = 64
"""rows that are looked at first"""
_ROUNDING = 2.0**-21
"""relative, of weights that were computed in float32 as whole numbers times a step"""


@dataclass(frozen=True)
class Rows:
    """Whole numbers in float32: the value is `(numbers - zero) * step`."""

    numbers: Any
    """a plain variable"""
    bounds: tuple[int, int]
    zero: Any = 0.0
    """a number, or a float32 variable of one element"""
    step: float = 1.0


@dataclass(frozen=True)
class Columns:
    """Constant weights of whole numbers: the value of a column is its numbers times its step."""

    numbers: Array
    """float32"""
    steps: Array

    @property
    def bounds(self) -> tuple[int, int]:
        smallest, largest = float(self.numbers.min(initial=-1)), float(self.numbers.max(initial=0))
        return _range_of(smallest, largest)


def quantized_rows(planner: Planner, value: Any) -> Rows | None:
    """Of a float32 value `(clip(round(x) + zero) - zero) * step`, with what only moves numbers after it."""
    return _in_plain(planner, value, _quantized)


def integer_rows(planner: Planner, value: Any) -> Rows | None:
    """Of an int32 value: bytes, or bytes less a zero point."""
    return _in_plain(planner, value, _integers)


def _in_plain(planner: Planner, value: Any, find: Callable[[Planner, Any], Rows | None]) -> Rows | None:
    """What `find` finds for the value, which may be in blocks."""
    known = planner.in_blocks(value)
    if known is None:
        return find(planner, value)
    found = find(planner, known[0])
    return None if found is None else replace(found, numbers=planner.plain_of(found.numbers, known[1]))


def _quantized(planner: Planner, value: Any) -> Rows | None:
    call = called(planner, value)
    name = operator_of(call)
    if name in _MOVES:
        found = quantized_rows(planner, call.args[0])
        if found is None:
            return None
        moved = planner.emit(relax.Call(call.op, [found.numbers, *call.args[1:]], call.attrs))
        return replace(found, numbers=moved)
    if name != "multiply" or (step := _number(planner, call.args[1])) is None:
        return None
    zero, clipped = 0.0, call.args[0]
    less = called(planner, clipped)
    if operator_of(less) == "subtract" and (given := _number(planner, less.args[1])) is not None:
        zero, clipped = given, less.args[0]
    bounds = _clipped_bounds(planner, clipped)
    if bounds is None or not _has_range(bounds, zero):
        return None
    return Rows(clipped, bounds, zero, step)


def _integers(planner: Planner, value: Any) -> Rows | None:
    less = None
    call = called(planner, value)
    if operator_of(call) == "subtract":
        less = call.args[1]
        call = called(planner, call.args[0])
    if operator_of(call) != "astype":
        return None
    given = call.args[0]
    dtype = str(given.ty.dtype)
    if dtype not in ("uint8", "int8"):
        return None
    zero = 0.0 if less is None else _zero(planner, less, dtype)
    if zero is None:
        return None
    limits = np.iinfo(dtype)
    if isinstance(zero, float) and not _has_range((int(limits.min), int(limits.max)), zero):
        return None
    cast = called(planner, given)
    before = cast.args[0] if operator_of(cast) == "astype" else None
    if before is not None and _clipped_bounds(planner, before) == (limits.min, limits.max):
        numbers = before
    else:
        numbers = planner.emit(relax.op.astype(given, _FLOAT))
    return Rows(numbers, (int(limits.min), int(limits.max)), zero)


def quantized_columns(weights: Array) -> Columns | None:
    """Of float32 weights (K, N), in which each column is a multiple of whole numbers from -255 to 255; else None."""
    largest = np.abs(weights).max(axis=0)
    scaled = np.divide(weights, largest, where=largest > 0, out=np.zeros_like(weights)).astype(np.float64)
    counts = _step_counts(scaled)
    if counts is None:
        return None
    return Columns(
        np.round(scaled * counts).astype(_FLOAT), np.where(largest > 0, largest / counts, 1.0).astype(_FLOAT)
    )


def integer_columns(planner: Planner, value: Any) -> Columns | None:
    """Of constant int32 weights, or of constants less a zero point: (K, N), or a convolution's (N, ...) as (K, N)."""
    numbers = _constant(planner, value)
    if numbers is None or numbers.ndim < 2 or np.abs(numbers).max(initial=0) > WIDE[1]:
        return None
    columns = columns_of(numbers.astype(_FLOAT))
    return Columns(columns, np.ones(columns.shape[1], _FLOAT))


def in_bytes(columns: Columns) -> tuple[Columns, Array] | None:
    """Columns that need more than 8 bits only because of their zero points: moved into a byte, and by how much each was
    moved. None for other columns.
    """
    low, high = columns.numbers.min(axis=0), columns.numbers.max(axis=0)
    moved = np.maximum(high - _BYTE[1], 0) + np.minimum(low - _BYTE[0], 0)
    if not moved.any() or (high - low).max() > _UNSIGNED[1]:
        return None
    return replace(columns, numbers=columns.numbers - moved), moved


def columns_of(weights: Array) -> Array:
    """Weights as (K, N): those of a convolution have their outputs first."""
    return weights if weights.ndim == 2 else weights.reshape(len(weights), -1).T


def of_bytes(planner: Planner, rows: Rows) -> Rows:
    """The rows with numbers from 0 on, as the dot products of bytes need them."""
    lowest = rows.bounds[0]
    if lowest >= 0:
        return rows
    shift = relax.const(np.array([-lowest], _FLOAT))
    zero = rows.zero - lowest if isinstance(rows.zero, float) else planner.emit(relax.op.add(rows.zero, shift))
    numbers = _shifted(planner, relax.op.add, rows.numbers, shift)
    return replace(rows, numbers=numbers, bounds=(0, rows.bounds[1] - lowest), zero=zero)


def centred(planner: Planner, rows: Rows) -> Rows:
    """The rows with zero as their zero point, as padding with zeros needs them."""
    if not isinstance(rows.zero, float):
        return Rows(_shifted(planner, relax.op.subtract, rows.numbers, rows.zero), WIDE, step=rows.step)
    low, high = (int(bound - rows.zero) for bound in rows.bounds)
    numbers = rows.numbers
    if rows.zero:
        numbers = _shifted(planner, relax.op.subtract, numbers, relax.const(np.array([rows.zero], _FLOAT)))
    return Rows(numbers, _range_of(low, high), step=rows.step)


def _shifted(planner: Planner, operator: Any, numbers: Any, by: Any) -> Any:
    """In blocks where the numbers are, so that it is part of the kernel before."""
    known = planner.in_blocks(numbers)
    if known is None:
        return planner.emit(operator(numbers, by))
    value = planner.emit(operator(known[0], by))
    return planner.plain_of(value, known[1])


def _has_range(bounds: tuple[int, int], zero: float) -> bool:
    """Whether numbers within the bounds, less the zero point, are whole and in one of the ranges."""
    return zero.is_integer() and max(abs(bound - zero) for bound in bounds) <= WIDE[1]


def _range_of(low: float, high: float) -> tuple[int, int]:
    """One of the few ranges that operators have: few ranges make few operators."""
    return next(each for each in (_UNSIGNED, _BYTE, WIDE) if each[0] <= low and high <= each[1])


def _step_counts(scaled: Array) -> Array | None:
    """For each column of numbers from -1 to 1, the fewest steps from 0 to 1 that make all of them whole."""
    counts = np.zeros(scaled.shape[1])
    for steps in range(1, _MOST_STEPS + 1):
        left = np.flatnonzero(counts == 0)
        likely = left[_are_whole(scaled[:_SAMPLE, left], steps)]
        counts[likely[_are_whole(scaled[:, likely], steps)]] = steps
    return counts if counts.all() else None


def _are_whole(columns: Array, steps: int) -> Array:
    """Whether all numbers of a column are multiples of `1 / steps`, up to rounding."""
    apart = np.abs(columns * steps - np.round(columns * steps))
    found: Array = apart.max(axis=0, initial=0) <= _ROUNDING * steps
    return found


def _clipped_bounds(planner: Planner, value: Any) -> tuple[int, int] | None:
    """The range of whole numbers that a value is rounded and clipped to, by one operator or by two."""
    call = called(planner, value)
    inner = called(planner, call.args[0]) if operator_of(call) == "maximum" else None
    low: float | None
    high: float | None
    if operator_of(call) == "clip":
        whole = call.args[0]
        low, high = (float(bound.value) for bound in call.args[1:])
    elif operator_of(inner) == "minimum" and inner is not None:
        whole, low, high = inner.args[0], _number(planner, call.args[1]), _number(planner, inner.args[1])
    else:
        return None
    if low is None or high is None or not (low.is_integer() and high.is_integer() and _is_whole(planner, whole)):
        return None
    return (int(low), int(high)) if 0 < high - low <= np.iinfo("uint8").max else None


def _is_whole(planner: Planner, value: Any) -> bool:
    call = called(planner, value)
    if operator_of(call) == "add":
        left, right = call.args
        number = _number(planner, right)
        is_whole = _is_whole(planner, right) if number is None else number.is_integer()
        return is_whole and _is_whole(planner, left)
    return operator_of(call) == "round"


def _zero(planner: Planner, value: Any, dtype: str) -> Any:
    """An int32 zero point in float32; None for several, and for a computed one that was not a byte of type `dtype`."""
    number = _number(planner, value)
    if number is not None:
        return number
    if int(np.prod(shape_of(value))) != 1 or not _was_byte(planner, value, dtype):
        return None
    emit = planner.emit
    return emit(relax.op.reshape(emit(relax.op.astype(value, _FLOAT)), [1]))


def _was_byte(planner: Planner, value: Any, dtype: str) -> bool:
    call = called(planner, value)
    if operator_of(call) in _MOVES:
        return _was_byte(planner, call.args[0], dtype)
    return operator_of(call) == "astype" and str(call.args[0].ty.dtype) == dtype


def _constant(planner: Planner, value: Any) -> Array | None:
    """The numbers of a constant, of a cast one, or of a difference of constants."""
    numbers = planner.constant(value)
    call = called(planner, value)
    if numbers is not None or call is None:
        return numbers
    if operator_of(call) == "astype" and (inner := _constant(planner, call.args[0])) is not None:
        return inner.astype(str(call.ty.dtype))
    if operator_of(call) == "subtract":
        left, right = (_constant(planner, each) for each in call.args)
        return None if left is None or right is None else left - right
    return None


def _number(planner: Planner, value: Any) -> float | None:
    """The one number of a constant."""
    numbers = _constant(planner, value)
    return float(numbers.ravel()[0]) if numbers is not None and numbers.size == 1 else None


def called(planner: Planner, value: Any) -> Any:
    """The call that a variable is bound to; None for another value."""
    bound = planner.builder_.lookup_binding(value) if isinstance(value, relax.Var) else value
    return bound if isinstance(bound, relax.Call) else None
