"""A padded run beside other runtimes, at sizes between the shapes of a bundle.

A padded run takes as long as its bucket, whatever the size of the request; another runtime takes less for a smaller
one. So it is enough to find the largest size at which a runtime is faster: it is faster at all smaller ones too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from fractune.inference.bucketed_model import BucketedModel
from fractune.inference.comparing.beside_runtimes import Contenders, time_beside_runtimes
from fractune.inference.padding.padded_outputs import inputs_of, known_integers
from fractune_core.files.compared import Between, Compared, Runtime

_PART = 16
"""The largest size is found to this part of the sizes between two buckets"""


def time_between_shapes(
    model: BucketedModel, bucket: int, file: Contenders, runtimes: Sequence[str]
) -> tuple[list[Between], dict[str, Runtime]]:
    """What was compared at sizes that run padded in the bucket, along each open axis, and the runtimes."""
    found: list[Between] = []
    highs = known_integers(model)
    used: dict[str, Runtime] = {}
    for symbol, low in gaps(model.bucket_sizes, bucket):
        left = list(runtimes)

        def compare(size: int, symbol: str = symbol, left: Sequence[str] = left) -> Compared:
            sizes = {**model.bucket_sizes[bucket], symbol: size}
            inputs = inputs_of(model.inputs, model.axes, sizes, 0, highs)
            compared, there = time_beside_runtimes(model, inputs, file, left)
            used.update(there)
            found.append(Between(sizes, compared))
            return compared

        faster = compare(low).faster
        left[:] = faster  # one that loses at the smallest size loses at all
        if faster:
            find_largest(low, model.bucket_sizes[bucket][symbol], lambda size: bool(compare(size).faster))
    return found, used


def gaps(buckets: Sequence[Mapping[str, int]], bucket: int) -> Iterator[tuple[str, int]]:
    """Each open axis along which smaller sizes run padded in the bucket, and the smallest of these sizes."""
    sizes = buckets[bucket]
    for symbol, size in sizes.items():
        others = (each for each in buckets if all(each[name] >= sizes[name] for name in sizes if name != symbol))
        low = 1 + max((each[symbol] for each in others if each[symbol] < size), default=0)
        if low < size:
            yield symbol, low


def find_largest(low: int, high: int, holds: Callable[[int], bool]) -> None:
    """Call `holds` of sizes between `low`, where it holds, and `high`, where it need not, until the largest size at
    which it holds is known to a part of them.
    """
    step = max(1, (high - low) // _PART)
    while high - low > step:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
