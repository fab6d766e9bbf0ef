"""Inputs of a model as a job fixes them: shapes for open dimensions, and inputs that become constants.

In a job, shapes are by name. A constant has no place of its own there: it is a name with its numbers, such as
`sr=const:16000`, with an empty shape. So it goes wherever shapes go, and an older reader names it as an unknown input.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from fractune_core.errors import BadRequest

CONSTANT = "const:"
_JOINED = f"={CONSTANT}"
_LARGEST_SIZE = 2**63 - 1
"""ONNX's and the messages' numbers have 64 bits."""
_WORDS = {"true": True, "false": False, "1": True, "0": False}

Inputs = Mapping[str, Sequence[int] | str]
"""by name: a shape, or `const:` and numbers with commas between them"""


def as_shapes(inputs: Inputs) -> dict[str, list[int]]:
    """The inputs as a job has them. Raises BadRequest for a size below 1, and for text without `const:` or numbers."""
    made: dict[str, list[int]] = {}
    for name, given in inputs.items():
        if isinstance(given, str):
            numbers = given.removeprefix(CONSTANT)
            if numbers == given or not numbers.strip():
                raise BadRequest(f"inputs: '{name}' is '{given}'; write a list of sizes, or {CONSTANT}16000")
            made[f"{name}{_JOINED}{numbers.strip()}"] = []
        elif any(size < 1 for size in given):
            raise BadRequest(f"inputs: '{name}' has the shape {list(given)}; every size must be at least 1")
        elif any(size > _LARGEST_SIZE for size in given):
            raise BadRequest(f"inputs: '{name}' has a size above {_LARGEST_SIZE:,}, which no memory holds; correct it")
        else:
            made[name] = [int(size) for size in given]
    names = [name.partition(_JOINED)[0] for name in made]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise BadRequest(f"inputs: '{twice}' is given twice")
    return made


def shapes_in(inputs: Mapping[str, Sequence[int]]) -> dict[str, Sequence[int]]:
    """The shapes among the inputs of a job."""
    return {name: shape for name, shape in inputs.items() if _JOINED not in name}


def constants_in(inputs: Mapping[str, Sequence[int]]) -> dict[str, str]:
    """The numbers of each constant among the inputs of a job, as text."""
    parts = (name.partition(_JOINED) for name in inputs if _JOINED in name)
    return {name: numbers for name, _, numbers in parts}


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
    fills a fixed shape. Raises BadRequest where the numbers do not fit.
    """
    if len(dims) == 1 and dims[0] is None:
        return [count]
    shape = [1 if size is None else size for size in dims]
    size = math.prod(shape)
    if count not in (1, size):
        raise BadRequest(f"input '{name}' has the shape {shape}, and {count} numbers are given; give 1 or {size}")
    return shape
