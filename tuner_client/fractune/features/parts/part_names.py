"""The names of a model's parts, by which a list of jobs shows the model that they are of."""

from __future__ import annotations

from pathlib import PurePath


def part_name(model_name: str, number: int) -> str:
    """`encoder.part2.onnx`"""
    name = PurePath(model_name)
    return f"{name.stem}.part{number}{name.suffix}"


def is_part_of(name: str, model_name: str) -> bool:
    """Whether `part_name` makes `name` of `model_name`."""
    whole = PurePath(model_name)
    number = name.removeprefix(f"{whole.stem}.part").removesuffix(whole.suffix)
    return number.isdecimal() and name == part_name(model_name, int(number))
