"""The shapes of a model's inputs from the sizes of one axis: `input_ids:1` of 16, 64 and 128 tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

from fractune.models.open_inputs import OpenShape
from fractune_core.errors import BadRequest
from fractune_core.model_inputs import SeveralShapes

Place = tuple[str, int]
"""an axis: the input's name and the axis's number"""


def with_lengths(
    held: Mapping[str, OpenShape], inputs: SeveralShapes, lengths: Mapping[str, Sequence[int]]
) -> SeveralShapes:
    """All shapes of the inputs that `held` leaves open, for sizes of axes by place (`NAME:AXIS`).

    The sizes are those of all axes with the same name in the file. Open axes that nothing names have the size 1.
    Several places give all combinations. Inputs in `inputs` stay. Raises BadRequest for a place that is not open.
    """
    places = {parse_place(text): tuple(sizes) for text, sizes in lengths.items()}
    followers = {place: alike(held, place) for place in places}
    _check_apart(followers)
    sized = {name: shape for name, shape in held.items() if name not in inputs and not all(map(_is_size, shape))}
    combinations = list(product(*places.values()))
    made: dict[str, list[list[int]]] = {name: [] for name in sized}
    for sizes in combinations:
        chosen = {each: size for place, size in zip(places, sizes, strict=True) for each in followers[place]}
        for name, shape in sized.items():
            made[name].append(
                [chosen.get((name, axis), dim if isinstance(dim, int) else 1) for axis, dim in enumerate(shape)]
            )
    return {**inputs, **{name: _one_or_several(shapes) for name, shapes in made.items()}}


def parse_place(text: str) -> Place:
    """`input_ids:1`. Raises BadRequest."""
    name, _, axis = text.rpartition(":")
    if not name or not axis.isdecimal():
        raise BadRequest(f"--lengths '{text}': write INPUT:AXIS=SIZES, such as input_ids:1=16,64,128")
    return name, int(axis)


def alike(held: Mapping[str, OpenShape], place: Place) -> list[Place]:
    """The axes that have the size of that one: those of its name in the file. If it has no name, they are the same axis
    of all inputs that leave it open without a name. Raises BadRequest for an axis that is not open.
    """
    name, axis = place
    shape = held.get(name)
    if shape is None or axis >= len(shape) or _is_size(shape[axis]):
        raise BadRequest(f"--lengths {name}:{axis}: this is no open axis; the model has {_open_text(held)}")
    symbol = shape[axis]
    return [
        (other, at)
        for other, dims in held.items()
        for at, dim in enumerate(dims)
        if dim == symbol and (symbol is not None or at == axis)
    ]


def only_length(held: Mapping[str, OpenShape]) -> str:
    """The place of the one open axis that is no batch. Raises BadRequest if there is another number of them."""
    found: dict[object, str] = {}
    for name, shape in held.items():
        for axis, dim in enumerate(shape):
            if not _is_size(dim) and (axis > 0 or len(shape) == 1):
                found.setdefault(dim or axis, f"{name}:{axis}")
    if len(found) != 1:
        raise BadRequest(f"--lengths auto: name the axis, as INPUT:AXIS=auto; the model has {_open_text(held)}")
    return next(iter(found.values()))


def _check_apart(followers: Mapping[Place, Sequence[Place]]) -> None:
    seen: dict[Place, Place] = {}
    for place, axes in followers.items():
        for each in axes:
            if each in seen:
                name, axis = place
                other, at = seen[each]
                raise BadRequest(f"--lengths {name}:{axis}: it has the sizes of {other}:{at}; give one of them")
            seen[each] = place


def _open_text(held: Mapping[str, OpenShape]) -> str:
    texts = [f"{name}:{axis}" for name, shape in held.items() for axis, dim in enumerate(shape) if not _is_size(dim)]
    return f"the open axes {', '.join(texts)}" if texts else "no open axis"


def _is_size(dim: int | str | None) -> bool:
    return isinstance(dim, int)


def _one_or_several(shapes: list[list[int]]) -> list[int] | list[list[int]]:
    return shapes[0] if all(shape == shapes[0] for shape in shapes) else shapes
