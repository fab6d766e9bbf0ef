"""A padded run beside other runtimes, at sizes between the shapes of a bundle.

A padded run takes as long as its bucket, whatever the size of the request; another runtime takes less for a smaller
one. So it is enough to find the largest size at which a runtime is faster: it is faster at all smaller ones too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fractune.inference.bucketed_model import BucketedModel
from fractune.inference.comparing.beside_runtimes import Contenders, time_beside_runtimes
from fractune.inference.padding.padded_outputs import gaps, inputs_of, known_integers
from fractune_core.files.compared import OURS, Between, Compared, Runtime

_PART = 8
"""Where the predicted size is not it, the largest size is found to this part of those between two buckets"""
_IN_TURN = 4
"""sizes in one contest"""
_SAFE = 0.95
"""of the predicted way from the smallest size"""


def time_between_shapes(
    model: BucketedModel, bucket: int, file: Contenders, exact: Compared
) -> tuple[list[Between], dict[str, Runtime]]:
    """What is compared at sizes that run padded in the bucket, along each open axis, and the runtimes. `exact` was
    compared at the bucket's own shapes.
    """
    found: list[Between] = []
    highs = known_integers(model)
    used: dict[str, Runtime] = {}
    for symbol, low in gaps(model.bucket_sizes, bucket):
        left = [name for name in exact.times if name != OURS]

        def compare(size: int, symbol: str = symbol, low: int = low, left: Sequence[str] = left) -> Compared:
            whole = model.bucket_sizes[bucket]
            several = [{**whole, symbol: each} for each in near(size, low, whole[symbol])]
            requests = [inputs_of(model.inputs, model.axes, sizes, 0, highs) for sizes in several]
            compared, there = time_beside_runtimes(model, requests, file, left)
            used.update(there)
            found.append(Between({**whole, symbol: size}, compared))
            return compared

        smallest = compare(low)
        left[:] = smallest.faster  # one that loses at the smallest size loses at all
        if left:
            high = model.bucket_sizes[bucket][symbol]
            guess = low + int(_SAFE * part_of_gap(smallest, exact) * (high - low))
            find_largest(low, high, guess, lambda size: bool(compare(size).faster))
    return found, used


def near(size: int, low: int, high: int) -> range:
    """The sizes whose requests take turns in the contest at `size`: this one and those below it, from `low` on. At the
    smallest sizes they are larger ones, below `high`.

    A runtime may prepare itself for another size: OpenVINO takes longer for it than for the same one again.
    """
    first = max(low, size - _IN_TURN + 1)
    return range(first, min(first + _IN_TURN, high))


def part_of_gap(smallest: Compared, exact: Compared) -> float:
    """The part of the way from the smallest size to the bucket's own at which a runtime should be as slow as a padded
    run. Its time is taken to grow in proportion; of several runtimes it is the largest part.
    """
    padded_s = smallest.times[OURS].paced_s
    rises = {name: exact.times[name].paced_s - smallest.times[name].paced_s for name in smallest.faster}
    lefts = {name: padded_s - smallest.times[name].paced_s for name in smallest.faster}
    return max(1.0 if rises[name] <= lefts[name] else max(0.0, lefts[name] / rises[name]) for name in rises)


def find_largest(low: int, high: int, guess: int, holds: Callable[[int], bool]) -> None:
    """Call `holds` of sizes between `low`, where it holds, and `high`, where it need not. The first is the `guess`; if
    it does not hold there, smaller ones follow until the largest is known to a part of them.
    """
    step = max(1, (high - low) // _PART)
    if guess <= low or holds(guess):
        return
    high = guess
    while high - low > step:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
