"""The choice among variants that were timed in a loop and at 30 % load."""

from __future__ import annotations

import random
from typing import Any

import pytest

from fractune_core.analysis.at_load import AtLoad, are_decided, choices
from fractune_core.served import Served

ROUNDS, REQUESTS = 11, 10
AT_LOAD = {"variant": "cpu:1", "threads": 1, "loop_secs": [1.0, 1.0], "latency_secs": [1.0] * 4}


def timed(variant: str, loop_s: float, latency_s: float, threads: int = 2, noise: float = 0.0) -> AtLoad:
    draws = random.Random(f"{variant}{threads}")

    def noisy(secs: float) -> float:
        return secs * (1 + noise * draws.random())

    loop = tuple(noisy(loop_s) for _ in range(ROUNDS))
    return AtLoad(variant, threads, loop, tuple(noisy(latency_s) for _ in range(ROUNDS * REQUESTS)))


def test_each_goal_has_its_best() -> None:
    own, other = timed("cpu:2", 2e-3, 5e-3), timed("cpu:1", 3e-3, 4e-3, threads=1)
    assert choices([own, other], 0.0) == {"throughput": own, "latency": other}
    assert choices([], 0.0) == {}
    assert choices([own, other], 0.21) == {}, "other programs ran"


def test_a_tie_stays_with_the_variant_of_the_share_and_with_the_choice_for_a_loop() -> None:
    own, other = timed("cpu:2", 2e-3, 5e-3, noise=0.1), timed("robust", 2e-3, 5e-3, noise=0.1)
    assert set(choices([own, other], 0.0).values()) == {own}
    faster = timed("robust", 1e-3, 5e-3, noise=0.1)
    assert set(choices([own, faster], 0.0).values()) == {faster}


def test_one_slow_request_decides_nothing() -> None:
    own, other = timed("cpu:2", 2e-3, 5e-3, noise=0.1), timed("robust", 2e-3, 5e-3, noise=0.1)
    hit = AtLoad(own.variant, own.threads, own.loop_secs, (1.0, *own.latency_secs[1:]))
    assert choices([hit, other], 0.0)["latency"] == hit


def test_too_few_rounds_decide_nothing() -> None:
    own, other = (AtLoad(name, 1, (secs,) * 4, (secs,) * 4) for name, secs in (("cpu:1", 2.0), ("robust", 1.0)))
    assert choices([own, other], 0.0)["latency"] == own


def test_percentiles_are_of_all_requests_and_a_p99_needs_a_hundred() -> None:
    found = AtLoad("cpu:1", 1, (1.0,) * 10, tuple(float(each) for each in range(1, 101)))
    assert (found.p50_s, found.p99_s) == (50.5, 99.0)
    assert found.round_means_s == pytest.approx([5.5 + 10 * number for number in range(10)])
    few = AtLoad("cpu:1", 1, (1.0,) * 9, found.latency_secs[:90])
    assert few.served == Served("cpu:1", 1, 1.0, few.p50_s, None)
    assert AtLoad.from_json(few.to_json()) == few


@pytest.mark.parametrize(
    "wrong",
    [
        AT_LOAD | {"threads": 0},
        AT_LOAD | {"loop_secs": []},
        AT_LOAD | {"latency_secs": []},
        AT_LOAD | {"latency_secs": [1.0] * 5},
        AT_LOAD | {"loop_secs": [1.0, 0.0]},
        AT_LOAD | {"loop_secs": [1.0, float("inf")]},
    ],
)
def test_what_no_measurement_gives_is_refused(wrong: dict[str, Any]) -> None:
    assert AtLoad.from_json(AT_LOAD).threads == 1
    with pytest.raises(ValueError, match="at load"):
        AtLoad.from_json(wrong)


@pytest.mark.parametrize(
    ("loops", "latencies", "decided"),
    [
        ([0.9, 1.1] * 3, [0.9, 1.1] * 3, True),
        ([0.9] * 6, [1.1] * 6, True),
        ([0.9, 1.1] * 3, [0.9] * 5 + [1.1], False),
        ([0.9] * 5 + [1.1], [0.9, 1.1] * 3, False),
    ],
)
def test_choices_are_decided_once_no_round_can_change_one(
    loops: list[float], latencies: list[float], *, decided: bool
) -> None:
    own = AtLoad("cpu:1", 1, (1.0,) * 6, (1.0,) * 6)
    other = AtLoad("cpu:2", 1, tuple(loops), tuple(latencies))
    assert are_decided([own, other], ROUNDS) == decided
    assert are_decided([own], ROUNDS)
