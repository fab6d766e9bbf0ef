"""What sharing costs two models and what follows: figures worked out by hand, a simulation, and coverage."""

import json
import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given, strategies as st

from fractune_core.analysis.co_location import (
    CoLocationFigures,
    RoundTimes,
    Verdict,
    co_location_figures,
    ends_apart_s,
    ends_together_s,
    makespan_s,
    mean_inside_s,
    percentile,
    stp,
    verdict,
)
from fractune_core.analysis.model_times import MeasuredPair, PairedModel
from fractune_core.analysis.slowdown_ci import Estimate, estimate
from fractune_core.codec.messages import from_proto, to_proto
from fractune_core.errors import BadRequest
from fractune_core.pb import fractune_pb2 as pb
from fractune_core.records import joint_time_s
from tests.support.measured_pairs import measured_pair

Noise = Callable[[random.Random], float]
SECS = st.floats(0.01, 100)
FACTOR = st.floats(1.0, 5.0)


def simulated_ends(t_a: float, t_b: float, r_ab: float, r_ba: float, step_s: float) -> tuple[float, float]:
    """When A and B end that begin at once: their work is done bit by bit, slower while the other is there."""
    left_a, left_b, now, end_a, end_b = t_a, t_b, 0.0, 0.0, 0.0
    while left_a > 0 or left_b > 0:
        both = left_a > 0 and left_b > 0
        now += step_s
        if left_a > 0:
            left_a -= step_s / (r_ab if both else 1.0)
            end_a = now
        if left_b > 0:
            left_b -= step_s / (r_ba if both else 1.0)
            end_b = now
    return end_a, end_b


def rounds_of(
    *, whole: tuple[float, float], s: tuple[float, float], i: tuple[float, float], count: int = 9
) -> list[tuple[RoundTimes, ...]]:
    """Rounds without noise."""
    times = tuple(
        RoundTimes(t, t * by_share, t * by_share, t * by_share * by)
        for t, by_share, by in zip(whole, s, i, strict=True)
    )
    return [times] * count


def median(found: Estimate | None) -> float:
    return math.nan if found is None else found.median


def test_figures_worked_out_by_hand() -> None:
    found = co_location_figures(rounds_of(whole=(2.0, 10.0), s=(1.25, 1.5), i=(1.2, 1.0)))
    a, b = found.sides
    assert (a.whole_s, a.share_s.median, a.together_s.median) == (Estimate(2.0, 2.0, 2.0), 2.5, 3.0)
    assert (median(a.s), a.i.median, median(a.r)) == pytest.approx((1.25, 1.2, 1.5))
    assert (median(b.r), b.per_s.median, b.control.median) == pytest.approx((1.5, 1 / 15, 1.0))
    assert (median(found.stp), median(found.antt)) == pytest.approx((4 / 3, 1.5))
    # A ends at 3 s, when B has done 2 of its 10: B ends at 3 + 8 = 11 s, in place of 12.
    assert median(found.makespan) == pytest.approx(11 / 12)
    # They end at 3 and 11 s together, at 2 and 12 s one after the other.
    assert median(found.mean_completion) == pytest.approx(14 / 14)
    assert found.makespan_verdict is Verdict.TOGETHER


def test_the_verdicts_may_disagree() -> None:
    found = co_location_figures(rounds_of(whole=(2.0, 10.0), s=(1.8, 1.8), i=(1.0, 1.0)))
    assert found.makespan_verdict is Verdict.TOGETHER  # 1.8 * 1.8 < 1.8 + 1.8
    assert found.mean_completion_verdict is Verdict.APART  # 1.8 * (2 - 1 / 1.8) = 2.6
    worse = co_location_figures(rounds_of(whole=(2.0, 10.0), s=(2.0, 2.0), i=(1.1, 1.1)))
    assert (worse.makespan_verdict, worse.mean_completion_verdict) == (Verdict.APART, Verdict.APART)
    better = co_location_figures(rounds_of(whole=(2.0, 10.0), s=(1.1, 1.1), i=(1.0, 1.0)))
    assert (better.makespan_verdict, better.mean_completion_verdict) == (Verdict.TOGETHER, Verdict.TOGETHER)


@pytest.mark.parametrize(
    ("low", "high", "says"),
    [(0.8, 0.99, "together"), (1.01, 1.2, "apart"), (0.9, 1.1, "tie"), (math.nan, math.nan, "tie")],
)
def test_an_interval_that_decides_nothing_is_a_tie(low: float, high: float, says: str) -> None:
    assert verdict(Estimate(1.0, low, high)) == says


def test_of_one_model_beside_something_else_only_its_own_figures_are_known() -> None:
    found = co_location_figures([each[:1] for each in rounds_of(whole=(2.0, 1.0), s=(1.25, 1.0), i=(1.2, 1.0))])
    assert [side.i.median for side in found.sides] == [pytest.approx(1.2)]
    assert found == CoLocationFigures(found.sides, None, None, None, None)
    assert (found.makespan_verdict, found.mean_completion_verdict) == (None, None)


def test_without_the_whole_only_interference_is_known() -> None:
    found = co_location_figures([(RoundTimes(None, 2.0, 2.0, 3.0), RoundTimes(None, 1.0, 1.0, 1.1))] * 7)
    assert [side.i.median for side in found.sides] == pytest.approx([1.5, 1.1])
    assert [(side.s, side.r, side.whole_s) for side in found.sides] == [(None, None, None)] * 2
    assert (found.stp, found.makespan_verdict) == (None, None)


@given(SECS, SECS, FACTOR, FACTOR)
def test_makespan_and_completion_are_what_a_simulation_comes_to(
    t_a: float, t_b: float, r_ab: float, r_ba: float
) -> None:
    step_s = (t_a + t_b) / 4000
    simulated = simulated_ends(t_a, t_b, r_ab, r_ba, step_s)
    assert ends_together_s(t_a, t_b, r_ab, r_ba) == pytest.approx(simulated, abs=6 * step_s)
    assert makespan_s(t_a, t_b, r_ab, r_ba) == pytest.approx(max(simulated), abs=6 * step_s)


@given(SECS, SECS, FACTOR, FACTOR)
def test_the_mean_is_sooner_just_where_the_rule_says(t_a: float, t_b: float, r_ab: float, r_ba: float) -> None:
    assume(t_a <= t_b and r_ab * t_a <= r_ba * t_b)
    rule = r_ab * (2.0 - 1.0 / r_ba)
    assume(abs(rule - 2.0) > 1e-6)
    assert (sum(ends_together_s(t_a, t_b, r_ab, r_ba)) < sum(ends_apart_s(t_a, t_b))) == (rule < 2.0)


def heavy_tailed(rng: random.Random) -> float:
    return 1.0 + 0.02 * rng.paretovariate(1.5)


def normal(rng: random.Random) -> float:
    return math.exp(rng.gauss(0.0, 0.05))


@pytest.mark.parametrize("noise", [normal, heavy_tailed])
@pytest.mark.parametrize("count", [7, 11])
def test_intervals_of_interference_and_stp_cover(count: int, noise: Noise) -> None:
    """The true i is 1.2; the true STP is the median over very many rounds."""
    rng = random.Random(0)

    def drawn() -> tuple[RoundTimes, RoundTimes]:
        a, b = (RoundTimes(noise(rng), 1.5 * noise(rng), 1.5, 1.8 * noise(rng)) for _ in range(2))
        return a, b

    true_stp = statistics.median(stp(a.r or 0.0, b.r or 0.0) for a, b in (drawn() for _ in range(20_000)))
    held_i = held_stp = 0
    for _ in range(600):
        found = co_location_figures([drawn() for _ in range(count)])
        assert found.stp is not None
        held_i += found.sides[0].i.low <= 1.2 <= found.sides[0].i.high
        held_stp += found.stp.low <= true_stp <= found.stp.high
    assert 0.93 <= held_i / 600 <= 0.998
    assert 0.93 <= held_stp / 600 <= 0.998


def test_too_few_rounds_have_no_interval() -> None:
    assert math.isnan(estimate([1.0, 2.0, 3.0]).low)
    assert estimate([1.0, 2.0, 3.0]).median == 2.0
    assert estimate([3.0, 1.0, 2.0, 5.0, 4.0, 6.0, 7.0, 9.0, 8.0]) == Estimate(5.0, 2.0, 8.0)


@pytest.mark.parametrize(
    ("co_runner", "mean_s"),
    [
        ((0.0, 10.0), 2.5),  # all four
        ((0.5, 10.0), 3.0),  # the first began before the co-runner
        ((0.0, 9.9), 2.0),  # the last ended after it
        ((1.0, 6.0), 2.5),  # its edges belong to it
        ((1.1, 3.9), math.nan),  # none is wholly inside
        ((11.0, 12.0), math.nan),
    ],
)
def test_only_what_lies_wholly_inside_the_co_runners_loop_counts(co_runner: tuple[float, float], mean_s: float) -> None:
    marks = [0.0, 1.0, 4.0, 6.0, 10.0]
    assert mean_inside_s(marks, co_runner) == pytest.approx(mean_s, nan_ok=True)


@pytest.mark.parametrize(
    ("values", "percent", "wanted"),
    [
        (range(1, 101), 50, 50),
        (range(1, 101), 99, 99),
        (range(1, 100), 99, None),  # the tail would hold less than one
        (range(1, 301), 99, 297),
        ([7.0], 50, None),
        ([7.0, 9.0], 50, 7.0),
        ([], 50, None),
    ],
)
def test_percentiles_are_requests_that_came(values: Sequence[float], percent: int, wanted: float | None) -> None:
    assert percentile(list(values), percent) == wanted


def test_it_is_the_same_after_a_message_and_after_json() -> None:
    bubble = PairedModel("bubble:32MiB", "cpu:1")
    for pair in (measured_pair(), measured_pair(models=(measured_pair().models[0], bubble), stp=None, verdict="")):
        pair.check()
        assert from_proto(MeasuredPair, to_proto(pair, pb.MeasuredPair)) == pair
        assert MeasuredPair.from_json(json.loads(json.dumps(pair.to_json()))) == pair


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"pair_id": "short"}, "pair_id must have 8 to 64 letters and digits"),
        ({"pair_id": "with spaces in it"}, "pair_id must have 8 to 64 letters and digits"),
        ({"host": "h" * 201}, "longer than 200 characters"),
        ({"models": measured_pair().models[:1]}, "two models, each with a name and a share"),
        ({"models": (PairedModel("", "cpu:1"), PairedModel("b", "cpu:1"))}, "two models, each with a name and a share"),
        ({"stp": Estimate(1.0, 1.1, 1.2)}, "ratios must be above 0 and finite"),
        ({"stp": Estimate(math.nan, math.nan, math.nan)}, "ratios must be above 0 and finite"),
        ({"stp": Estimate(1.0, 0.9, math.inf)}, "ratios must be above 0 and finite"),
        (
            {"models": tuple(replace(each, slowdown=Estimate(0.0, 0.0, 0.0)) for each in measured_pair().models)},
            "ratios",
        ),
        ({"rounds": 0}, "rounds is 0"),
        ({"measured_at": 0.0}, "measure_time is missing"),
        ({"others_cores": float("inf")}, "others_cores must be 0 or more"),
    ],
)
def test_what_no_measurement_gives_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(BadRequest, match=says):
        measured_pair(**changes).check()


TIMES = st.lists(st.floats(1e-7, 10.0), min_size=1, max_size=6)


@given(TIMES, st.sampled_from([0.0, math.inf]))
def test_a_failure_at_any_share_is_one_of_the_whole(times: list[float], failure: float) -> None:
    assert joint_time_s([*times, failure]) == 0.0


def test_no_time_is_an_error() -> None:
    assert joint_time_s([1.0, 4.0]) == pytest.approx(2.0)
    with pytest.raises(statistics.StatisticsError):
        joint_time_s([])
