"""Buckets for a sample of lengths as they are served, by times that are measured here in ONNX Runtime."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from fractune.local.stack import own_env
from fractune.local.timing_process import timing_process
from fractune.models.open_sizes import settled
from fractune.text.output_files import read_small
from fractune.text.text import time_text
from fractune_core.analysis.bucket_choice import STEP, BucketChoice, choose_buckets, interpolated
from fractune_core.errors import BadModel, BadRequest
from fractune_core.files.onnx_file import Interface, read_interface
from fractune_core.model_inputs import SeveralShapes, as_shapes, each_shape
from fractune_core.named_sizes import Sizes
from fractune_core.shares import Share


def only_length(held: Interface) -> str:
    """The only open axis beside the batch, as a key of `sizes`. Raises BadRequest without one, or with several."""
    names = held.sizes_with()
    ranks = {each.name: len(each.shape or ()) for each in held.inputs}
    found: dict[object, str] = {}
    for (name, axis), formula in names.axes.items():
        if axis > 0 or ranks[name] == 1:
            found.setdefault(axis if str(formula) in names.nameless else formula, f"{name}:{axis}")
    if len(found) != 1:
        raise BadRequest(f"--lengths auto: name the axis, as INPUT:AXIS=auto; {names.text}")
    return next(iter(found.values()))


DEFAULT_BUCKETS = 4
_POINTS, _REPEATS = 6, 6
_MOST_LENGTH = 2**20


def read_sample(path: Path) -> list[int]:
    """The lengths in a file, one a line. Raises BadRequest for another file, with the line."""
    try:
        lines = read_small(path).decode().splitlines()
    except (OSError, ValueError) as error:
        raise BadRequest(f"--sample {path}: cannot be read ({error}); name a text file with a length a line") from error
    found = []
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text:
            continue
        if not text.isdecimal() or len(text) > 9 or not 1 <= int(text) <= _MOST_LENGTH:
            raise BadRequest(f"--sample {path}, line {number}: '{text[:40]}' is not a length from 1 to {_MOST_LENGTH}")
        found.append(int(text))
    if not found:
        raise BadRequest(f"--sample {path}: it has no length; write one a line")
    return found


def buckets_for(
    model: Path,
    inputs: SeveralShapes,
    sizes: Sizes,
    key: str,
    sample: Sequence[int],
    most: int,
    shares: Sequence[str],
    report_line: Callable[[str], None],
) -> list[int]:
    """At most `most` sizes of `key`, with the least expected time of the sample at the first CPU share; `sizes` has
    those of others.

    Raises BadRequest, and FractuneError if ONNX Runtime is not installed.
    """
    share = next((each for each in shares if Share.parse(each).kind.measures_kernels and each.startswith("cpu")), None)
    if share is None:
        raise BadRequest(
            f"--lengths {key}=auto times the model on the CPU, and shares are {', '.join(shares)}; name sizes"
        )
    timed = _sizes_to_time(sample)
    several = [settled(model, inputs, {**sizes, key: size}) or {} for size in timed]
    secs = _seconds(model, share, [as_shapes(each_shape(each)[0]) for each in several])
    choice = choose_buckets(sample, interpolated(list(zip(timed, secs, strict=True))), most)
    report_line(_choice_text(key, choice, len(sample)))
    return list(choice.buckets)


def _sizes_to_time(sample: Sequence[int]) -> list[int]:
    """Some sizes from the shortest to the longest length, in equal ratios."""
    low, high = (math.ceil(length / STEP) * STEP for length in (min(sample), max(sample)))
    ratios = [(high / low) ** (number / (_POINTS - 1)) for number in range(_POINTS)]
    return sorted({round(low * ratio / STEP) * STEP for ratio in ratios})


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


def chosen_sizes(
    model: Path,
    inputs: SeveralShapes,
    sizes: Mapping[str, list[int] | None],
    sample: Path | None,
    most: int | None,
    shares: Sequence[str],
    report_line: Callable[[str], None],
) -> dict[str, list[int]]:
    """The sizes of axes by name or place. None stands for sizes by the lengths in the file `sample`, an empty name for
    the only open axis beside the batch. Raises as `buckets_for`, and BadModel for a file that is not ONNX.
    """
    _check_auto(sizes, sample, most)
    known = {key: found for key, found in sizes.items() if found is not None}
    if sample is None:
        return known
    held, lengths = read_interface(model), read_sample(sample)
    if held is None:
        raise BadModel(f"{model.name}: --lengths auto needs an ONNX file, and this is none; give each shape")
    for key in sizes.keys() - known.keys():
        named = key or only_length(held)
        known[named] = buckets_for(model, inputs, known, named, lengths, most or DEFAULT_BUCKETS, shares, report_line)
    return known


def _check_auto(sizes: Mapping[str, list[int] | None], sample: Path | None, most: int | None) -> None:
    is_auto = None in sizes.values()
    if is_auto and sample is None:
        raise BadRequest(
            "--lengths auto chooses sizes for lengths as they are served; add --sample FILE, with one a line"
        )
    given = "--sample" if sample is not None else "--most-buckets" if most is not None else ""
    if given and not is_auto:
        raise BadRequest(
            f"{given} is for --lengths auto, and no axis has 'auto'; write INPUT:AXIS=auto, or leave it out"
        )
