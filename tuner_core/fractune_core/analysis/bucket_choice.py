"""The buckets for lengths as they are served: those with the least expected time, by an exact dynamic program."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

STEP = 8
"""buckets are multiples of it, as vectors are"""


@dataclass(frozen=True)
class BucketChoice:
    buckets: tuple[int, ...]
    """lengths, the shortest first; the last one holds every length of the sample"""
    mean_s: float
    """expected seconds of an inference, each length padded to its bucket"""
    exact_mean_s: float
    """the same with a bucket for each length"""


def choose_buckets(lengths: Iterable[int], secs_of: Callable[[int], float], most: int) -> BucketChoice:
    """At most `most` buckets for a sample of lengths, at least one of them. `secs_of` has the seconds of an inference
    by its length; they should not fall with the length. Takes time with the square of the number of candidates, which
    are the lengths rounded up to `STEP`.
    """
    counts = Counter(lengths)
    rounded: Counter[int] = Counter()
    for length, count in counts.items():
        rounded[math.ceil(length / STEP) * STEP] += count
    candidates = sorted(rounded)
    served = [0, *accumulate(rounded[each] for each in candidates)]
    secs = [secs_of(each) for each in candidates]
    total, chosen = _least(candidates, served, secs, most)
    exact_s = sum(count * secs_of(length) for length, count in counts.items())
    return BucketChoice(chosen, total / served[-1], exact_s / served[-1])


def _least(
    candidates: Sequence[int], served: Sequence[int], secs: Sequence[float], most: int
) -> tuple[float, tuple[int, ...]]:
    """The least sum of seconds of all that is served, and its buckets."""
    ends = range(len(candidates))
    best: list[tuple[float, tuple[int, ...]]] = [(served[end + 1] * secs[end], (candidates[end],)) for end in ends]
    found = best[-1]
    for _ in range(most - 1):
        best = [
            min(
                (
                    best[before][0] + (served[end + 1] - served[before + 1]) * secs[end],
                    (*best[before][1], candidates[end]),
                )
                for before in range(end)
            )
            if end
            else best[0]
            for end in ends
        ]
        found = min(found, best[-1], key=lambda each: each[0])
    return found


def interpolated(points: Sequence[tuple[int, float]]) -> Callable[[int], float]:
    """Seconds by length, straight between measured points, and in proportion to the last one beyond it. They do not
    fall: noise does not make a longer inference the faster one.
    """
    ordered = sorted(points)
    lengths = [length for length, _ in ordered]
    secs = list(accumulate((each for _, each in ordered), max))

    def secs_of(length: int) -> float:
        if length <= lengths[0]:
            return secs[0]
        for (low, high), (short_s, long_s) in zip(pairwise(lengths), pairwise(secs), strict=True):
            if length <= high:
                return short_s + (long_s - short_s) * (length - low) / (high - low)
        return secs[-1] * length / lengths[-1]

    return secs_of


def most_padding(sizes: Sequence[Mapping[str, int]], secs: Sequence[float | None]) -> list[float | None]:
    """For each bucket, by its sizes and its seconds: how many times as long as in the largest smaller bucket an
    inference takes there. This is the most that padding costs, for inputs just above the smaller one. None where no
    bucket is smaller in all axes, or a time is missing.
    """
    found: list[float | None] = []
    for at, (own, own_s) in enumerate(zip(sizes, secs, strict=True)):
        smaller = [other for other in range(len(sizes)) if other != at and _holds(own, sizes[other])]
        known = [each_s for each_s in (secs[other] for other in smaller) if each_s]
        found.append(own_s / max(known) if own_s and known else None)
    return found


def _holds(large: Mapping[str, int], small: Mapping[str, int]) -> bool:
    return all(large[symbol] >= small[symbol] for symbol in small)
