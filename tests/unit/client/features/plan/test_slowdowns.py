"""Which slow-downs a plan takes from measured pairs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fractune.features.pair.result import pairs_table
from fractune.features.plan.slowdowns import slowdowns_table, with_slowdowns
from fractune_core.analysis.pairs import INTERLEAVED, SAME_UNITS, MeasuredPair
from fractune_core.analysis.slowdown_ci import Estimate
from fractune_core.planning.devices import cpu_type, limit_type
from fractune_core.planning.requests import ModelDemand, PlanRequest
from fractune_core.planning.speeds import Row
from tests.support.measured_pairs import measured_pair

ROWS = (Row(1, 1, 1, 100.0, 0.01),)
NAMES = {"a": "a", "b": "b"}


def request(rate: float | None = 5.0, **changes: object) -> PlanRequest:
    models = tuple(ModelDemand(name, ROWS, rate_per_s=rate) for name in NAMES)
    return replace(PlanRequest(cpu_type(2), models), **changes)  # type: ignore[arg-type]


def taken(*pairs: MeasuredPair, asked: PlanRequest | None = None) -> dict[tuple[str, str], float]:
    asked = asked or request()
    return {(each.model, each.beside): each.factor for each in with_slowdowns(asked, NAMES, pairs)[1]}


def at_shares(pair: MeasuredPair, *shares: str) -> MeasuredPair:
    return replace(
        pair, models=tuple(replace(each, share=share) for each, share in zip(pair.models, shares, strict=True))
    )


def test_both_models_of_a_pair_slow_each_other_down() -> None:
    asked, measured = with_slowdowns(request(), NAMES, [measured_pair()])
    assert asked.interference == {("a", "b"): 1.4, ("b", "a"): 1.02}
    assert asked.slowdown("a", ["b"]) == 1.4
    assert asked.slowdown("a", ["a"]) == 1.13, "its own pair was not measured"
    table = slowdowns_table(measured)
    assert table.cells[0] == ("a", "b", "1.40 (1.35 .. 1.50)", "cpu:1", "cpu:1", "here", "2023-11-14 22:13 UTC")
    assert table.rows[0]["i"] == {"median": 1.4, "low": 1.35, "high": 1.5}


def test_the_newest_pair_counts() -> None:
    older = measured_pair(
        models=tuple(replace(each, interference=Estimate(3, 2, 4)) for each in measured_pair().models)
    )
    assert taken(measured_pair(), older) == {("a", "b"): 1.4, ("b", "a"): 1.02}


def test_the_plan_file_goes_before_a_pair() -> None:
    asked, measured = with_slowdowns(request(interference={("a", "b"): 1.08}), NAMES, [measured_pair()])
    assert asked.interference == {("a", "b"): 1.08, ("b", "a"): 1.02}
    assert [(each.model, each.beside) for each in measured] == [("b", "a")]


def test_a_co_runner_makes_nothing_faster_and_a_gain_is_shown_as_one() -> None:
    faster = Estimate(0.8, 0.5, 0.95)
    pair = measured_pair(models=tuple(replace(each, interference=faster) for each in measured_pair().models))
    assert set(taken(pair).values()) == {1.0}
    table = slowdowns_table(with_slowdowns(request(), NAMES, [pair])[1])
    assert table.cells[0][2] == "speed-up 1.25x (1.05 .. 2.00)"
    assert pairs_table([pair]).cells[0][5] == "speed-up 1.25x (1.05 .. 2.00)"


@pytest.mark.parametrize("how", [SAME_UNITS, INTERLEAVED])
def test_models_on_the_same_units_say_nothing_of_parts_that_never_overlap(how: str) -> None:
    assert taken(measured_pair(how=how)) == {}


@pytest.mark.parametrize(
    "shares", [("mps:50", "mps:50"), ("full", "full"), ("no share", "cpu:1"), ("cpu-x:1", "cpu:1")]
)
def test_only_shares_of_the_plans_kind_count(shares: tuple[str, str]) -> None:
    assert taken(at_shares(measured_pair(), *shares)) == {}


def test_pairs_on_cores_count_for_cpu_limits() -> None:
    assert taken(measured_pair(), asked=request(device=limit_type(2))) == {("a", "b"): 1.4, ("b", "a"): 1.02}


def test_a_bubble_and_models_of_other_names_are_no_co_runners() -> None:
    model, other = measured_pair().models
    bubble = measured_pair(models=(model, replace(other, model_name="bubble:32MiB", interference=None)))
    assert taken(bubble, measured_pair(first="a", second="c")) == {}


def test_a_fleet_may_run_a_model_twice_on_a_device_and_one_device_may_not() -> None:
    itself = measured_pair(first="a", second="a")
    assert taken(itself) == {("a", "a"): 1.4}
    assert taken(itself, asked=request(rate=None)) == {}
    swapped = replace(itself, models=itself.models[::-1])
    assert taken(swapped) == {("a", "a"): 1.4}, "the slower of both"


def test_two_shapes_of_a_model_have_its_pair() -> None:
    names = {"a": "m", "b": "m"}
    measured = with_slowdowns(request(rate=None), names, [measured_pair(first="m", second="m")])[1]
    assert {(each.model, each.beside) for each in measured} == {("a", "b"), ("b", "a")}
