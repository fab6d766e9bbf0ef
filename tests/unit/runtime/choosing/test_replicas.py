"""The division of a share among replicas, by what the bundle's times predict."""

from __future__ import annotations

from typing import Any

import pytest

from fractune_core.analysis.match import DEFAULT_POLICY
from fractune_core.errors import ShareUnavailable
from fractune_runtime.cpu import ShareHere
from fractune_runtime.replica_pool import choose_replicas
from tests.unit.runtime.choosing.test_under_limit import MINILM, a_bundle, here


def whole(cores: int) -> ShareHere:
    return ShareHere(cores, tuple(range(cores)), "made up")


def division(at: ShareHere, times: dict[str, float] = MINILM, replicas: int | None = None, **changes: Any) -> Any:
    count, choice = choose_replicas(a_bundle(times, **changes), at, DEFAULT_POLICY, replicas)
    return count, choice.threads, choice.variant


def reason(at: ShareHere, replicas: int | None = None, **changes: Any) -> str:
    return choose_replicas(a_bundle(MINILM, **changes), at, DEFAULT_POLICY, replicas)[1].reason


def test_two_replicas_of_one_thread_at_one_and_a_half_cores() -> None:
    """Measured of MiniLM: 81.6 requests/s, and 75.9 with one replica of two threads (docs/cpu-limits.md)."""
    assert division(here(1500)) == (2, 1, "cpu:1")
    assert reason(here(1500)) == (
        "under a limit of 1500m, predicted best with 2 replicas of 1 thread: 81.5 requests/s in a loop; "
        "next best with 1 replica of 2 threads: 75.8"
    )


def test_of_equally_fast_divisions_the_fewest_threads() -> None:
    assert division(here(1000)) == (1, 1, "cpu:1")
    assert division(here(500)) == (1, 1, "cpu:1")


def test_whole_cores() -> None:
    assert division(whole(2)) == (2, 1, "cpu:1")
    assert division(whole(5)) == (5, 1, "cpu:1")
    assert reason(whole(2)).startswith("on 2 cores, predicted best with 2 replicas of 1 thread: 108 requests/s in")


def test_threads_that_gain_more_than_replicas() -> None:
    times = {"cpu:1": 0.020, "cpu:2": 0.009}
    assert division(whole(4), times) == (2, 2, "cpu:2")
    assert division(here(3500, cpus=4), times) == (2, 2, "cpu:2")


def test_a_given_number_of_threads() -> None:
    count, found = choose_replicas(a_bundle(MINILM), whole(4), DEFAULT_POLICY, None, 2)
    assert (count, found.threads, found.variant) == (2, 2, "cpu:2")
    count, found = choose_replicas(a_bundle(MINILM), here(500), DEFAULT_POLICY, 1, 2)
    assert (count, found.threads, found.variant) == (1, 2, "cpu:2")
    count, untimed = choose_replicas(a_bundle(MINILM), whole(4), DEFAULT_POLICY, None, 3)
    assert (count, untimed.threads) == (1, 3)
    with pytest.raises(ShareUnavailable, match="threads is 3, and there are 2 CPUs; ask for 2 at most"):
        choose_replicas(a_bundle(MINILM), whole(2), DEFAULT_POLICY, None, 3)


def test_a_given_number_of_replicas() -> None:
    assert division(whole(4), replicas=2) == (2, 2, "cpu:2")
    assert division(whole(4), replicas=3) == (3, 1, "cpu:1")
    assert division(whole(2), replicas=5) == (5, 1, "cpu:1"), "more than CPUs: they share them"
    assert division(here(1500), replicas=1) == (1, 2, "cpu:2")


def test_replicas_need_slices_of_the_period() -> None:
    assert division(here(2500, cpus=3, period_us=10_000)) == (1, 1, "cpu:1")


@pytest.mark.parametrize(("replicas", "found"), [(None, (2, 1, "cpu:1")), (1, (1, 2, "cpu:2"))])
def test_without_times_each_whole_core_gets_a_thread(replicas: int | None, found: Any) -> None:
    assert division(whole(2), replicas=replicas, measured={}) == found
    assert "on 2 cores, because the bundle has no times there" in reason(whole(2), replicas, measured={})
