import random
from itertools import combinations

import pytest

from fractune_core.analysis.bucket_choice import STEP, choose_buckets, interpolated


def brute_force(lengths: list[int], most: int) -> float:
    """The least mean over all sets of buckets; a length costs its bucket's square."""
    candidates = sorted({-(-length // STEP) * STEP for length in lengths})
    sets = (
        each for count in range(1, most + 1) for each in combinations(candidates, count) if each[-1] == candidates[-1]
    )
    return min(sum(min(size for size in each if size >= length) ** 2 for length in lengths) for each in sets) / len(
        lengths
    )


@pytest.mark.parametrize("seed", range(12))
def test_no_other_buckets_have_less_expected_time(seed: int) -> None:
    rng = random.Random(seed)
    lengths = [min(96, 1 + int(rng.expovariate(1 / 20))) for _ in range(60)]
    most = 1 + seed % 4
    found = choose_buckets(lengths, lambda length: float(length**2), most)
    assert found.mean_s == pytest.approx(brute_force(lengths, most))
    assert 1 <= len(found.buckets) <= most
    assert list(found.buckets) == sorted(set(found.buckets))
    assert found.buckets[-1] >= max(lengths)
    assert found.exact_mean_s == pytest.approx(sum(length**2 for length in lengths) / len(lengths))


def test_times_are_straight_between_the_measured_ones_and_do_not_fall() -> None:
    secs_of = interpolated([(64, 4.0), (16, 1.0), (32, 0.5)])
    assert [secs_of(length) for length in (1, 16, 24, 32, 48, 64, 128)] == [1, 1, 1, 1, 2.5, 4, 8]
