"""Buckets for a sample of lengths as they are served, by times that are measured here in ONNX Runtime."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path

from fractune.local.stack import own_env
from fractune.local.timing_process import timing_process
from fractune.models.source import OpenShape, onnx_inputs
from fractune.text.text import time_text
from fractune_core.analysis.bucket_choice import STEP, BucketChoice, choose_buckets, interpolated
from fractune_core.errors import BadRequest
from fractune_core.model_inputs import SeveralShapes, as_shapes, each_shape
from fractune_core.shares import Share

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


DEFAULT_BUCKETS = 4
_POINTS, _REPEATS = 6, 6
_MOST_LENGTH = 2**20


def read_sample(path: Path) -> list[int]:
    """The lengths in a file, one a line. Raises BadRequest for another file, with the line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise BadRequest(f"--sample {path}: cannot be read ({error}); name a text file with a length a line") from error
    found = []
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text:
            continue
        if not text.isdecimal() or not 1 <= int(text) <= _MOST_LENGTH:
            raise BadRequest(f"--sample {path}, line {number}: '{text[:40]}' is not a length from 1 to {_MOST_LENGTH}")
        found.append(int(text))
    if not found:
        raise BadRequest(f"--sample {path}: it has no length; write one a line")
    return found


def buckets_for(
    model: Path,
    held: Mapping[str, OpenShape],
    inputs: SeveralShapes,
    place: str,
    sample: Sequence[int],
    most: int,
    shares: Sequence[str],
    report_line: Callable[[str], None],
) -> list[int]:
    """At most `most` sizes of the axis at `place`, with the least expected time of the sample at the first CPU share.

    Raises BadRequest, and FractuneError if ONNX Runtime is not installed.
    """
    share = next((each for each in shares if Share.parse(each).kind.measures_kernels and each.startswith("cpu")), None)
    if share is None:
        raise BadRequest(
            f"--lengths {place}=auto times the model on the CPU, and shares are {', '.join(shares)}; name sizes"
        )
    parse_place(place)
    sizes = _sizes_to_time(sample)
    secs = _seconds(model, share, [_shapes_at(held, inputs, place, size) for size in sizes])
    choice = choose_buckets(sample, interpolated(list(zip(sizes, secs, strict=True))), most)
    report_line(_choice_text(place, choice, len(sample)))
    return list(choice.buckets)


def _sizes_to_time(sample: Sequence[int]) -> list[int]:
    """Some sizes from the shortest to the longest length, in equal ratios."""
    low, high = (math.ceil(length / STEP) * STEP for length in (min(sample), max(sample)))
    ratios = [(high / low) ** (number / (_POINTS - 1)) for number in range(_POINTS)]
    return sorted({round(low * ratio / STEP) * STEP for ratio in ratios})


def _shapes_at(held: Mapping[str, OpenShape], inputs: SeveralShapes, place: str, size: int) -> dict[str, list[int]]:
    return as_shapes(each_shape(with_lengths(held, inputs, {place: [size]}))[0])


def _seconds(model: Path, share: str, several: Sequence[Mapping[str, list[int]]]) -> list[float]:
    """Of one inference at each of the shapes."""
    with timing_process(share, own_env()) as call:
        found: list[list[float]] = call("time_peer_at", path=str(model), several=several, repeats=_REPEATS)["run_secs"]
    return [statistics.median(run_secs) for run_secs in found]


def _choice_text(place: str, choice: BucketChoice, lengths: int) -> str:
    more = choice.mean_s / choice.exact_mean_s - 1
    return (
        f"buckets for {place}: {', '.join(map(str, choice.buckets))}; of {lengths} lengths a mean of "
        f"{time_text(choice.mean_s)} in ONNX Runtime, {more * 100:.0f} % above no padding at all"
    )


def shapes_of(
    model: Path,
    inputs: SeveralShapes,
    lengths: Mapping[str, list[int] | None],
    sample: Path | None,
    most: int | None,
    shares: Sequence[str],
    report_line: Callable[[str], None],
) -> SeveralShapes:
    """All shapes of the inputs for sizes of axes by place. None stands for sizes by the lengths in the file `sample`,
    an empty place for the one open axis that is no batch. Raises as `buckets_for`, and BadModel for a file that is not
    ONNX.
    """
    _check_auto(lengths, sample, most)
    if not lengths:
        return inputs
    for place, sizes in lengths.items():
        if sizes is not None and len(sizes) == 1:
            report_line(f"--lengths {place}={sizes[0]}: the bundle runs this size alone; give several for any up to it")
    held = onnx_inputs(model)
    known = {place: sizes for place, sizes in lengths.items() if sizes is not None}
    for place, sizes in lengths.items():
        if sizes is None and sample is not None:
            named = place or only_length(held)
            found = read_sample(sample)
            known[named] = buckets_for(model, held, inputs, named, found, most or DEFAULT_BUCKETS, shares, report_line)
    return with_lengths(held, inputs, known)


def _check_auto(lengths: Mapping[str, list[int] | None], sample: Path | None, most: int | None) -> None:
    is_auto = None in lengths.values()
    if is_auto and sample is None:
        raise BadRequest(
            "--lengths auto chooses sizes for lengths as they are served; add --sample FILE, with one a line"
        )
    given = "--sample" if sample is not None else "--most-buckets" if most is not None else ""
    if given and not is_auto:
        raise BadRequest(
            f"{given} is for --lengths auto, and no axis has 'auto'; write INPUT:AXIS=auto, or leave it out"
        )
