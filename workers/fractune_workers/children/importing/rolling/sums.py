"""Values as sums of products of parts, by which a cell is recognised however it is written.

`(h - n) * z + n` and `z * h + (1 - z) * n` are one sum. A part is a column range of a tensor, a tensor's product with a
constant matrix, a constant vector, or an activation of another sum. Sums have few terms: where they would grow, a value
stays a part of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from fractune_workers.children.recurrent.activations import Activation

Place = str | tuple[str, int, int]
"""A tensor by its name, or one index of another tensor: its name, the axis and the index"""
Term = tuple[tuple[int, ...], float]
"""the parts whose product it is, by number, and a factor"""
Sum = tuple[Term, ...]
ZERO: Sum = ()
_MOST_TERMS = 12
_MOST_FACTORS = 2


@dataclass(frozen=True)
class Matrix:
    """A range of a constant matrix, as a product reads it: (inputs, outputs)."""

    weight: str
    rows: tuple[int, int]
    columns: tuple[int, int]
    turned: bool = False
    """whether its rows are the weight's columns"""

    def transposed(self) -> Matrix:
        return Matrix(self.weight, self.columns, self.rows, not self.turned)

    def cut(self, axis: int, low: int, high: int) -> Matrix:
        """A range of its rows (axis 0) or columns (axis 1)."""
        rows, columns = (
            (first + low, first + high) if of == axis else (first, last)
            for of, (first, last) in enumerate((self.rows, self.columns))
        )
        return Matrix(self.weight, rows, columns, self.turned)


@dataclass(frozen=True)
class Part:
    """Columns of a tensor that is not looked into."""

    place: Place
    low: int
    high: int


@dataclass(frozen=True)
class Product:
    place: Place
    matrix: Matrix


@dataclass(frozen=True)
class Vector:
    """Elements of a constant vector."""

    key: str
    low: int
    high: int


@dataclass(frozen=True)
class Activated:
    function: Activation
    argument: Sum


@dataclass(frozen=True)
class Mask:
    """A condition for each row, as 1 or 0: a tensor with one column."""

    place: Place


Factor = Part | Product | Vector | Activated | Mask


class Sums:
    """The parts of sums, each with a number of its own."""

    def __init__(self) -> None:
        self.factors: list[Factor] = []
        self._numbers: dict[Factor, int] = {}
        self._plain: list[bool] = []
        """by factor: whether its columns can be taken: it has no activation in an activation"""

    def of(self, factor: Factor) -> Sum:
        number = self._numbers.setdefault(factor, len(self.factors))
        if number == len(self.factors):
            self.factors.append(factor)
            inner = factor.argument if isinstance(factor, Activated) else ZERO
            self._plain.append(not any(isinstance(each, Activated) for each in self.parts(inner)))
        return (((number,), 1.0),)

    def parts(self, of: Sum) -> list[Factor]:
        return [self.factors[number] for numbers, _ in of for number in numbers]

    def terms(self, of: Sum) -> list[tuple[list[Factor], float]]:
        return [([self.factors[number] for number in numbers], factor) for numbers, factor in of]

    def columns(self, of: Sum, low: int, high: int) -> Sum | None:
        """The sum of these columns; None where they cannot be taken of its parts."""
        total: Sum | None = ZERO
        for numbers, factor in of:
            term: Sum | None = number(factor)
            for each in numbers:
                cut = self._cut(each, low, high)
                term = None if cut is None or term is None else multiplied(term, cut)
            total = None if term is None or total is None else added(total, term)
        return total

    def _cut(self, number: int, low: int, high: int) -> Sum | None:
        factor = self.factors[number]
        if isinstance(factor, Mask):
            return self.of(factor)
        if isinstance(factor, Product):
            return self.of(Product(factor.place, factor.matrix.cut(1, low, high)))
        if isinstance(factor, Activated):
            argument = self.columns(factor.argument, low, high) if self._plain[number] else None
            return None if argument is None else self.of(Activated(factor.function, argument))
        moved = factor.low + low, factor.low + high
        return self.of(Part(factor.place, *moved) if isinstance(factor, Part) else Vector(factor.key, *moved))


def number(value: float) -> Sum:
    return (((), value),) if value else ZERO


def added(one: Sum, other: Sum, factor: float = 1.0) -> Sum | None:
    """`one` + `factor` * `other`; None where it has too many terms."""
    terms = dict(one)
    for parts, each in other:
        terms[parts] = terms.get(parts, 0.0) + factor * each
    return _sum(terms)


def multiplied(one: Sum, other: Sum) -> Sum | None:
    """The product; None where it has too many terms, or terms of too many factors."""
    terms = dict[tuple[int, ...], float]()
    for parts, factor in one:
        for others, each in other:
            both = tuple(sorted(parts + others))
            terms[both] = terms.get(both, 0.0) + factor * each
    return _sum(terms)


def _sum(terms: dict[tuple[int, ...], float]) -> Sum | None:
    kept = {parts: factor for parts, factor in terms.items() if factor}
    small = len(kept) <= _MOST_TERMS and all(len(parts) <= _MOST_FACTORS for parts in kept)
    return tuple(sorted(kept.items())) if small else None
