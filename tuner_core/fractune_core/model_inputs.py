"""Inputs of a model as a job fixes them: shapes for open dimensions, constants, and sizes of open axes by name.

In a job, shapes are by name. A constant has no place of its own there: it is a name with its numbers, such as
`sr=const:16000`, with an empty shape. So it goes wherever shapes go, and an older reader names it as an unknown input.
If the model leaves dimensions of a constant open, its shape stands beside it, by the name of the input.

An axis has a number, a name (`sequence_length`), or sums and products of names (`past_sequence_length + 1`). An axis
without a name goes by its place (`ids:1`). Sizes by name, shapes of inputs and what a graph forces are equations alike.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from types import MappingProxyType
from typing import NamedTuple, TypeAlias, cast

from fractune_core.errors import BadRequest, shortened, some_of

CONSTANT = "const:"
_JOINED = f"={CONSTANT}"
_LARGEST_SIZE = 2**63 - 1
"""ONNX's and the messages' numbers have 64 bits."""
_BOTH = 2
"""a shape and a constant"""
_WORDS = {"true": True, "false": False, "1": True, "0": False}

Input = tuple[Sequence[int], str] | Sequence[int] | str
"""a shape, or `const:` and numbers with commas between them, or a tuple of both"""
Inputs = Mapping[str, Input]
"""by name"""
SeveralShapes = Mapping[str, Input | Sequence[Sequence[int]] | Sequence[str]]
"""by name; a list of shapes, or of constants, for a model that is tuned for several"""


def each_shape(inputs: SeveralShapes) -> list[Inputs]:
    """The inputs of each tuning: the n-th shape of each input that has several. Raises BadRequest if two inputs have
    different numbers of shapes.
    """
    several = {name: cast("Sequence[Sequence[int]]", given) for name, given in inputs.items() if _has_several(given)}
    counts = {name: len(shapes) for name, shapes in several.items()}
    if len(set(counts.values())) > 1:
        texts = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise BadRequest(f"inputs have different numbers of shapes ({texts}); give as many for each, or one")
    return [
        cast("Inputs", {name: several[name][number] if name in several else given for name, given in inputs.items()})
        for number in range(max(counts.values(), default=1))
    ]


def combined_shapes(axes: Mapping[str, Sequence[tuple[int, ...]]]) -> dict[str, list[int] | list[list[int]]]:
    """Shapes by input, of the sizes of each of its axes: several for an input with axes of several sizes.

    Axes with equal sizes go together. An axis with other sizes goes with the axis of another input that has as many,
    and the same place among the axes of several sizes. All else gives all combinations. Raises BadRequest for a size
    that is given twice for an axis.
    """
    groups: list[tuple[int, tuple[int, ...]]] = []
    group_of: dict[tuple[str, int], int] = {}
    for name, sizes_of in axes.items():
        several = [(axis, sizes) for axis, sizes in enumerate(sizes_of) if len(sizes) > 1]
        for place, (axis, sizes) in enumerate(several):
            if len(set(sizes)) < len(sizes):
                raise BadRequest(f"input '{name}': axis {axis} has a size twice ({'|'.join(map(str, sizes))})")
            known = [at for at, group in enumerate(groups) if group[1] == sizes]
            alike = [at for at, group in enumerate(groups) if group[0] == place and len(group[1]) == len(sizes)]
            taken = {group_of.get((name, other)) for other in range(axis)}
            found = next((at for at in known + alike if at not in taken), len(groups))
            if found == len(groups):
                groups.append((place, sizes))
            group_of[name, axis] = found
    numbers = list(product(*(range(len(sizes)) for _, sizes in groups)))

    def shape(name: str, chosen: tuple[int, ...]) -> list[int]:
        return [
            sizes[chosen[group_of[name, axis]]] if len(sizes) > 1 else sizes[0] for axis, sizes in enumerate(axes[name])
        ]

    return {
        name: [shape(name, chosen) for chosen in numbers]
        if any(len(sizes) > 1 for sizes in axes[name])
        else shape(name, ())
        for name in axes
    }


def _has_several(given: object) -> bool:
    shapes = given if isinstance(given, Sequence) and not isinstance(given, str) else ()
    kinds = {str if isinstance(each, str) else Sequence if isinstance(each, Sequence) else int for each in shapes}
    return kinds in ({str}, {Sequence})


def as_shapes(inputs: Inputs) -> dict[str, list[int]]:
    """The inputs as a job has them. Raises BadRequest for a size below 1, and for text without `const:` or numbers."""
    made: dict[str, list[int]] = {}
    for name, given in inputs.items():
        shape, constant = _parts(given)
        if shape is not None:
            made[name] = _sizes(name, shape)
        if constant is not None:
            made[f"{name}{_JOINED}{_numbers(name, constant)}"] = []
    names = [name.partition(_JOINED)[0] for name in made if _JOINED in name]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise BadRequest(f"inputs: '{twice}' is given twice")
    return made


def _parts(given: Input) -> tuple[Sequence[int] | None, str | None]:
    """The shape and the constant, None for one that is not given."""
    if isinstance(given, str):
        return None, given
    if len(given) == _BOTH and isinstance(given[1], str):
        if _has_several(given[0]):
            raise BadRequest("inputs: a constant with several shapes; give it one")
        return cast("tuple[Sequence[int], str]", given)
    if _has_several(given):
        raise BadRequest(f"inputs: {len(given)} shapes for an input; give one (tune takes several)")
    return cast("Sequence[int]", given), None


def _sizes(name: str, shape: Sequence[int]) -> list[int]:
    if any(size < 1 for size in shape):
        raise BadRequest(f"inputs: '{name}' has the shape {list(shape)}; every size must be at least 1")
    if any(size > _LARGEST_SIZE for size in shape):
        raise BadRequest(f"inputs: '{name}' has a size above {_LARGEST_SIZE:,}, which no memory holds; correct it")
    return [int(size) for size in shape]


def _numbers(name: str, constant: str) -> str:
    numbers = constant.removeprefix(CONSTANT)
    if numbers == constant or not numbers.strip():
        raise BadRequest(f"inputs: '{name}' is '{constant}'; write a list of sizes, or {CONSTANT}16000")
    return numbers.strip()


def shapes_in(inputs: Mapping[str, Sequence[int]]) -> dict[str, Sequence[int]]:
    """The shapes among the inputs of a job, of constants too."""
    return {name: shape for name, shape in inputs.items() if _JOINED not in name}


def constants_in(inputs: Mapping[str, Sequence[int]]) -> dict[str, str]:
    """The numbers of each constant among the inputs of a job, as text."""
    parts = (name.partition(_JOINED) for name in inputs if _JOINED in name)
    return {name: numbers for name, _, numbers in parts}


def is_mask(name: str) -> bool:
    """Whether an input of this name says which positions are real."""
    return "mask" in name.lower()


def parse_numbers(name: str, text: str, dtype: str) -> list[int | float | bool]:
    """The numbers of the constant `name`, as elements of NumPy's type `dtype`. Raises BadRequest."""
    return [_number(name, part.strip(), dtype) for part in text.split(",")]


def _number(name: str, text: str, dtype: str) -> int | float | bool:
    try:
        if dtype == "bool":
            return _WORDS[text.lower()]
        if dtype.startswith("float"):
            return float(text)
        number = int(text)
    except (ValueError, KeyError):
        raise BadRequest(f"input '{name}': '{text}' is not a number of type {dtype}") from None
    signed = dtype.startswith("int")
    bits = int(dtype.removeprefix("u").removeprefix("int"))
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    if not low <= number <= high:
        raise BadRequest(f"input '{name}': {number} does not fit into {dtype}, which has {low} to {high}")
    return number


def fitting_shape(name: str, count: int, dims: Sequence[int | None]) -> list[int]:
    """The shape of a constant of `count` numbers at an input of these dimensions, None for an open one. One number
    fills a fixed shape; several numbers fix one open dimension. Raises BadRequest where the numbers do not fit.
    """
    if list(dims) == [None] and count > 1:
        return [count]
    shape = [size for size in dims if size is not None]
    if len(shape) < len(dims):
        raise BadRequest(
            f"input '{name}' is a constant with open dimensions; give its shape too, as --input {name}=DIM,DIM,..."
        )
    size = math.prod(shape)
    if count not in (1, size):
        raise BadRequest(f"input '{name}' has the shape {shape}, and {count} numbers are given; give 1 or {size}")
    return shape


Dim: TypeAlias = int | str | None
"""a size, the name of an open axis, or None for an open axis without a name"""
Sizes: TypeAlias = Mapping[str, int | Sequence[int]]
"""by the name of an axis, its place (`ids:1`), or a sum or product of names; several for a model tuned for several"""
NAMELESS = frozenset({"", "?", "-1", "None"})
"""Exporters write these for axes without a name; two of them need not be equal"""
BATCH_NAME = re.compile(r".*batch.*|num_beams?|n|b|bs|bsz", re.IGNORECASE)
PAST_NAME = re.compile(r"(.*[._])?past([._].*)?", re.IGNORECASE)
"""how exporters call the batch, and the positions that a cache holds"""
MOST_SIZE = 2**31 - 1
MOST_COMBINATIONS = 1000
_MOST_FORMULA_CHARACTERS = 200
_MOST_FACTORS = 16
"""of all terms of a formula together: each name that gets known has its formulas looked at again"""
_SHOWN = 80
_OTHER_ARITHMETIC = re.compile(r"[()/%^]|\d\.\d")
"""such a text is one name: only sums and products are solved"""
_SUM = re.compile(r"\s*(\+)\s*|\s+(-)\s+")
_PRODUCT = re.compile(r"\s*\*\s*")

Place: TypeAlias = tuple[str, int]
"""the name of an input, and the number of an axis"""


@dataclass(frozen=True)
class Formula:
    """A sum of products of names and numbers."""

    terms: tuple[tuple[int, tuple[str, ...]], ...]
    """a factor and the names that it goes with"""

    @classmethod
    def of(cls, name: str) -> Formula:
        return cls(((1, (name,)),))

    @classmethod
    def number(cls, size: int) -> Formula:
        return cls(((size, ()),))

    @classmethod
    def parse(cls, text: str) -> Formula:
        """`past + 2*s`. A text with other arithmetic, or a long one, is one name."""
        parts = _SUM.split(text) if len(text) <= _MOST_FORMULA_CHARACTERS and not _OTHER_ARITHMETIC.search(text) else []
        signs = [1, *(1 if plus else -1 for plus in parts[1::3])]
        terms = []
        split = [_PRODUCT.split(part.strip()) for part in parts[::3]]
        if sum(map(len, split)) > _MOST_FACTORS:
            return cls.of(text)
        for sign, factors in zip(signs, split, strict=False):
            numbers = [int(each) for each in factors if each.isascii() and each.isdecimal()]
            names = tuple(each for each in factors if not (each.isascii() and each.isdecimal()))
            terms.append((sign * math.prod(numbers), names))
        found = cls(tuple(terms))
        return found if found.names and not NAMELESS & set(found.names) else cls.of(text)

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for _, names in self.terms for name in names))

    @property
    def is_name(self) -> bool:
        return len(self.terms) == 1 and self.terms[0] == (1, self.names)

    def __str__(self) -> str:
        text = ""
        for factor, names in self.terms:
            size = [str(abs(factor))] if abs(factor) != 1 or not names else []
            text += (" - " if factor < 0 else " + " if text else "") + "*".join([*size, *names])
        return text or "0"

    def at(self, sizes: Mapping[str, int]) -> Formula:
        """The formula with known sizes as numbers."""
        sums: Counter[tuple[str, ...]] = Counter()
        for factor, names in self.terms:
            left = tuple(sorted(name for name in names if name not in sizes))
            sums[left] += factor * math.prod(sizes[name] for name in names if name in sizes)
        return Formula(tuple((factor, names) for names, factor in sums.items() if factor))

    def value(self, sizes: Mapping[str, int]) -> int | None:
        """None if a size is not known."""
        found = self.at(sizes)
        return None if found.names else sum(factor for factor, _ in found.terms)


class _Equation(NamedTuple):
    left: Formula
    right: Formula
    where: str
    """what gives it, for an error"""

    @property
    def names(self) -> set[str]:
        return {*self.left.names, *self.right.names}

    def solved(self, known: Mapping[str, int]) -> tuple[str, int] | None:
        """The size of the only unknown name. Raises BadRequest for a contradiction."""
        opposite = tuple((-factor, names) for factor, names in self.right.terms)
        rest = Formula(self.left.terms + opposite).at(known)
        constant = sum(factor for factor, names in rest.terms if not names)
        open_terms = [each for each in rest.terms if each[1]]
        if not open_terms and constant:
            raise BadRequest(f"{self._text(known)}; give sizes that agree")
        if len(open_terms) != 1 or len(open_terms[0][1]) != 1:
            return None
        factor, (name,) = open_terms[0]
        size = -constant // factor
        if constant % factor or not 1 <= size <= MOST_SIZE:
            text = "no whole number" if constant % factor else shortened(str(size), _SHOWN)
            raise BadRequest(f"{self._text(known)}: {_quoted(name)} would be {text}; give sizes that agree")
        return name, size

    def _text(self, known: Mapping[str, int]) -> str:
        sides = []
        for side in (self.left, self.right):
            value = side.value(known)
            sides.append(f"{side}" if value is None or not side.names else f"{side} ({value})")
        names = dict.fromkeys(
            name for side in (self.left, self.right) if not side.is_name for name in side.names if name in known
        )
        given = f", with {some_of(f'{name}={known[name]}' for name in names)}" if names else ""
        return shortened(f"{self.where}: {sides[0]} and {sides[1]} must be equal{given}", 4 * _SHOWN)


class NamedSizes:
    """The open axes of a model's inputs."""

    def __init__(
        self, inputs: Mapping[str, Sequence[Dim] | None], relations: Mapping[str, Formula] = MappingProxyType({})
    ) -> None:
        """`inputs` has the axes of each input as the file has them, None for an unknown number. `relations` has what
        the graph forces: a name, and what it equals.
        """
        self.axes: dict[Place, Formula] = {}
        """the open ones"""
        self._dims = {name: tuple(dims) for name, dims in inputs.items() if dims is not None}
        self.nameless: dict[str, Place] = {}
        """by what they go by"""
        for name, dims in self._dims.items():
            for axis, dim in enumerate(dims):
                if dim is None or dim in NAMELESS:
                    self.axes[name, axis] = Formula.of(f"{name}:{axis}")
                    self.nameless[f"{name}:{axis}"] = name, axis
                elif isinstance(dim, str):
                    self.axes[name, axis] = Formula.parse(dim)
        self.relations = {name: each for name, each in relations.items() if name in self.names}

    @cached_property
    def names(self) -> list[str]:
        return list(dict.fromkeys(name for each in self.axes.values() for name in each.names))

    def named(self, key: str) -> Formula:
        """What a key of `sizes` stands for. Raises BadRequest for a name that the model has not."""
        if key in self.names:
            return Formula.of(key)
        name, _, axis = key.rpartition(":")
        place = (name, int(axis)) if axis.isascii() and axis.isdecimal() and len(axis) < 4 else ("", -1)
        found = self.axes.get(place) or Formula.parse(key)
        if not found.names or any(each not in self.names for each in found.names):
            raise BadRequest(f"no open axis is named {_quoted(key)}; {self.text}")
        return found

    @property
    def text(self) -> str:
        known = some_of(map(_quoted, self.names))
        return f"the model leaves {known} open" if known else "the model leaves no axis open"

    def solved(self, shapes: Mapping[str, Sequence[int]], sizes: Mapping[str, int]) -> dict[str, int]:
        """All sizes by name that follow from shapes of inputs and sizes by name.

        Raises BadRequest for an unknown name, a size below 1 or above 2,147,483,647, and for a contradiction.
        """
        equations = [_Equation(Formula.of(name), each, "sizes") for name, each in self.relations.items()]
        for key, size in sizes.items():
            check_size(key, size)
            equations.append(_Equation(self.named(key), Formula.number(size), "sizes"))
        for name, shape in shapes.items():
            for axis, size in enumerate(shape):
                if (name, axis) in self.axes:
                    where = f"inputs: {_quoted(name)} has {size} at axis {axis}"
                    equations.append(_Equation(self.axes[name, axis], Formula.number(size), where))
        known = _solved(equations)
        return known | self._alike(shapes, sizes, known)

    def _alike(
        self, shapes: Mapping[str, Sequence[int]], sizes: Mapping[str, int], known: Mapping[str, int]
    ) -> dict[str, int]:
        """The sizes of axes without a name that nothing gives: that of the same axis of another input, if it got one by
        its place and has no name either.
        """
        given = {axis: sizes[text] for text, (_, axis) in self.nameless.items() if text in sizes}
        return {
            text: given[axis]
            for text, (name, axis) in self.nameless.items()
            if axis in given and name not in shapes and text not in known
        }

    def shape(self, name: str, sizes: Mapping[str, int]) -> list[int | None]:
        """None for an axis that stays open."""
        return [
            dim if isinstance(dim, int) else self.axes[name, axis].value(sizes)
            for axis, dim in enumerate(self._dims.get(name, ()))
        ]


def _solved(equations: Iterable[_Equation]) -> dict[str, int]:
    """By names, all that follows. Each equation is looked at once, and again for each of its names that gets known."""
    waiting = deque(sorted(equations, key=lambda each: len(each.names)))
    having: dict[str, list[_Equation]] = defaultdict(list)
    for each in waiting:
        for name in each.names:
            having[name].append(each)
    known: dict[str, int] = {}
    while waiting:
        found = waiting.popleft().solved(known)
        if found is not None:
            known[found[0]] = found[1]
            waiting.extend(having[found[0]])
    return known


def each_size(sizes: Sizes, least: int = 1) -> list[dict[str, int]]:
    """All combinations. Raises BadRequest for too many, for a size out of bounds or twice, and for a name without."""
    several = {key: [size] if isinstance(size, int) else list(size) for key, size in sizes.items()}
    for key, each in several.items():
        if not each or len(set(each)) < len(each):
            raise BadRequest(f"size {_quoted(key)} has {each or 'no number'}; give each number once")
        for size in each:
            check_size(key, size, least)
    count = math.prod(map(len, several.values()))
    if count > MOST_COMBINATIONS:
        raise BadRequest(f"sizes: {count:,} combinations, and {MOST_COMBINATIONS:,} is the limit; give fewer")
    return [dict(zip(several, chosen, strict=True)) for chosen in product(*several.values())]


def check_size(key: str, size: int, least: int = 1) -> None:
    """Raises BadRequest for a size out of bounds."""
    if not least <= size <= MOST_SIZE:
        raise BadRequest(f"size {_quoted(key)} is {size}; it must be from {least} to {MOST_SIZE:,}")


def _quoted(name: str) -> str:
    return f"'{shortened(name, _SHOWN)}'"
