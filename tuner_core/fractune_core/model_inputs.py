"""Inputs of a model as a job fixes them: shapes for open dimensions, and inputs that become constants.

In a job, shapes are by name. A constant has no place of its own there: it is a name with its numbers, such as
`sr=const:16000`, with an empty shape. So it goes wherever shapes go, and an older reader names it as an unknown input.
If the model leaves dimensions of a constant open, its shape stands beside it, by the name of the input.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import cast

from fractune_core.errors import BadRequest

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
