"""The share beyond which a model hardly gains: curves, their errors and their knees."""

import csv
import itertools
import math
import statistics

import pytest
from hypothesis import given, strategies as st

from fractune_core.analysis.knee import CurveKind, find_knee, fit_curve
from fractune_core.errors import BadRequest
from tests.support.paths import REPOSITORY

PUBLISHED = REPOSITORY / "tests" / "assets" / "published"

SECS = st.floats(1e-6, 10.0)
POINTS = st.dictionaries(st.integers(1, 64), SECS, min_size=2, max_size=6)
FALLING = st.tuples(
    st.lists(st.integers(1, 64), min_size=3, max_size=6, unique=True), st.lists(SECS, min_size=6, max_size=6)
).map(lambda drawn: dict(zip(sorted(drawn[0]), sorted(drawn[1], reverse=True), strict=False)))


@given(POINTS, st.integers(1, 80), st.floats(1e-3, 1e3))
def test_times_in_another_unit_give_the_same_curve(points: dict[int, float], units: int, factor: float) -> None:
    scaled = fit_curve({each: secs * factor for each, secs in points.items()})
    # Shapes that fit equally well may be told apart by rounding alone, but then they predict nearly the same.
    assert scaled.secs_at(units) == pytest.approx(fit_curve(points).secs_at(units) * factor, rel=0.02)


@given(POINTS, st.lists(st.floats(0, 1), min_size=2, max_size=2).map(sorted))
def test_less_slack_never_means_a_smaller_share(points: dict[int, float], slacks: list[float]) -> None:
    strict, lenient = (find_knee(fit_curve(points), 64, slack) for slack in slacks)
    assert strict.units is not None
    assert lenient.units is not None
    assert strict.units >= lenient.units


@given(FALLING, st.integers(1, 64))
def test_a_prediction_lies_between_its_measured_neighbours(points: dict[int, float], units: int) -> None:
    secs = fit_curve(points).secs_at(units)
    assert secs <= min((points[each] for each in points if each <= units), default=math.inf)
    assert secs >= max((points[each] for each in points if each >= units), default=0.0)


@given(POINTS)
def test_more_units_are_never_slower(points: dict[int, float]) -> None:
    curve = fit_curve(points)
    secs = [curve.secs_at(units) for units in range(1, 81)]
    assert all(after <= before * (1 + 1e-9) for before, after in itertools.pairwise(secs))


@given(POINTS, st.integers(1, 80))
def test_a_prediction_lies_within_its_bounds(points: dict[int, float], units: int) -> None:
    curve = fit_curve(points)
    low, high = curve.bounds_at(units)
    assert low <= curve.secs_at(units) <= high


@given(POINTS, st.integers(64, 80), st.floats(0, 1))
def test_a_knee_is_the_smallest_share_within_the_slack(points: dict[int, float], total: int, slack: float) -> None:
    curve = fit_curve(points)
    knee = find_knee(curve, total, slack)
    assert None not in (knee.units, knee.fewest, knee.most, knee.secs, knee.secs_whole)
    assert min(points) <= (knee.fewest or 0) <= (knee.units or 0) <= (knee.most or 0) <= total
    assert (knee.secs or 0) <= (knee.secs_whole or 0) * (1 + slack)
    smaller = range(min(points), knee.units or 0)
    if curve.kind is not CurveKind.BOUND:
        assert all(curve.secs_at(units) > (knee.secs_whole or 0) * (1 + slack) for units in smaller)


def test_a_curve_of_the_very_form_is_found_again() -> None:
    points = {units: 0.04 / (units + 0.5) + 0.01 for units in (1, 2, 4, 8, 16)}
    curve = fit_curve(points)
    assert curve.kind is CurveKind.FITTED
    assert curve.fit is not None
    assert (curve.fit.a, curve.fit.c, curve.fit.d) == pytest.approx((0.04, 0.5, 0.01), rel=0.05)
    assert curve.secs_at(6) == pytest.approx(0.04 / 6.5 + 0.01, rel=0.03)
    assert curve.error is not None
    assert curve.error < 0.04


def test_the_knee_of_a_falling_curve() -> None:
    knee = find_knee(fit_curve({1: 8.0, 2: 4.0, 4: 2.1, 8: 2.0}), 8, 0.1)
    assert (knee.units, knee.secs, knee.secs_whole) == (4, 2.1, 2.0)
    assert knee.is_measured
    assert knee.is_whole_measured
    assert knee.reason == "4 of 8 units: the fewest within 10.0 % of the whole (measured: 5.0 % slower)"


def test_a_knee_between_the_measured_shares_is_predicted() -> None:
    knee = find_knee(fit_curve({1: 16.0, 4: 4.0, 16: 3.0}), 16, 0.1)
    assert knee.units is not None
    assert 4 < knee.units < 16
    assert not knee.is_measured
    assert "predicted" in knee.reason


def test_a_model_that_scales_perfectly_needs_the_whole() -> None:
    knee = find_knee(fit_curve({1: 8.0, 2: 4.0, 4: 2.0, 8: 1.0}), 8, 0.1)
    assert knee.units == 8
    assert knee.reason.startswith("gains up to the whole")


def test_a_flat_curve_needs_no_more_than_the_smallest_share() -> None:
    curve = fit_curve({1: 1.01, 3: 1.0, 7: 1.02})
    assert curve.kind is CurveKind.FLAT
    knee = find_knee(curve, 7, 0.1)
    assert knee.units == 1
    assert "smallest share measured" in knee.reason
    assert "flat" in knee.reason


def test_a_share_that_is_slower_than_a_smaller_one_counts_as_no_gain() -> None:
    curve = fit_curve({1: 16.0, 2: 8.0, 4: 12.0})
    assert curve.kind is CurveKind.UNEVEN
    assert (curve.secs_at(3), curve.secs_at(4), curve.measured[4]) == (8.0, 8.0, 12.0)
    knee = find_knee(curve, 4, 0.1)
    assert (knee.units, knee.secs, knee.secs_whole) == (2, 8.0, 8.0)
    assert "slower at 4 units than at fewer" in knee.reason


def test_more_than_proportional_speed_up_keeps_the_curve_falling() -> None:
    low, high = fit_curve({1: 30.0, 4: 3.0, 8: 1.5}).bounds_at(2)
    assert (low, high) == (6.0, 15.0)


def test_two_shares_give_a_bound() -> None:
    curve = fit_curve({1: 16.0, 16: 2.0})
    assert (curve.kind, curve.fit) == (CurveKind.BOUND, None)
    assert curve.bounds_at(4) == (4.0, 8.0)
    assert curve.bounds_at(32) == (1.0, 2.0)
    knee = find_knee(curve, 16, 0.1)
    # At best 16 / units secs until 2 s are reached, at worst 2 * 16 / units: 2.2 s at 8 or at 15 units.
    assert (knee.fewest, knee.units, knee.most) == (8, 15, 15)
    assert "two shares measured" in knee.reason


def test_two_shares_that_are_all_there_is_leave_nothing_open() -> None:
    curve = fit_curve({1: 2.0, 2: 1.0})
    knee = find_knee(curve, 2, 0.1)
    assert (knee.fewest, knee.units, knee.most) == (2, 2, 2)
    assert curve.error is None
    assert knee.reason.startswith("gains up to the whole")


def test_one_share_gives_nothing_and_says_so() -> None:
    curve = fit_curve({4: 1.0})
    assert curve.kind is CurveKind.ONE_POINT
    assert curve.secs_at(4) == 1.0
    with pytest.raises(BadRequest, match="another share"):
        curve.secs_at(5)
    knee = find_knee(curve, 8, 0.1)
    assert (knee.units, knee.secs, knee.fewest) == (None, None, None)
    assert "one share measured, 4 of 8 units" in knee.reason


def test_a_whole_that_was_not_measured_is_said() -> None:
    knee = find_knee(fit_curve({1: 8.0, 2: 4.1, 4: 2.2}), 8, 0.1)
    assert not knee.is_whole_measured
    assert "the whole was not measured, at most 4 units" in knee.reason


@pytest.mark.parametrize(
    ("points", "says"),
    [
        ({}, "no share was measured"),
        ({0: 1.0}, "0 units"),
        ({1: 0.0}, "0.0 s"),
        ({1: -1.0}, "-1.0 s"),
        ({1: math.nan, 2: 1.0}, "nan s"),
        ({1: 1.0, 2: math.inf}, "inf s"),
    ],
)
def test_bad_points_are_refused(points: dict[int, float], says: str) -> None:
    with pytest.raises(BadRequest, match=says):
        fit_curve(points)


def test_a_bad_slack_or_device_is_refused() -> None:
    curve = fit_curve({1: 2.0, 4: 1.0})
    with pytest.raises(BadRequest, match=r"slack -0\.1"):
        find_knee(curve, 4, -0.1)
    with pytest.raises(BadRequest, match="slack nan"):
        find_knee(curve, 4, math.nan)
    with pytest.raises(BadRequest, match="a device that has 2"):
        find_knee(curve, 2, 0.1)
    with pytest.raises(BadRequest, match="0 units"):
        curve.bounds_at(0)


def published_rows(name: str) -> list[dict[str, str]]:
    with (PUBLISHED / name).open(encoding="utf-8", newline="") as rows:
        return list(csv.DictReader(rows))


def parvagpu_curves() -> list[dict[int, float]]:
    """Seconds a batch by slices, one process, where it ran at all five shares."""
    curves: dict[tuple[str, int], dict[int, float]] = {}
    for row in published_rows("parvagpu_a100_profiles.csv"):
        # A throughput of 0: out of memory.
        if row["processes"] == "1" and float(row["throughput_per_s"]) > 0:
            batch = int(row["batch"])
            secs = batch / float(row["throughput_per_s"])
            curves.setdefault((row["model"], batch), {})[int(row["mig_slices"])] = secs
    return [curve for curve in curves.values() if curve.keys() == {1, 2, 3, 4, 7}]


def miso_curves() -> list[dict[int, float]]:
    """Seconds an iteration (median) by slices, where it ran at all five shares."""
    curves: dict[str, dict[int, float]] = {}
    for row in published_rows("miso_mig_iterations.csv"):
        curves.setdefault(row["workload"], {})[int(row["mig_slices"])] = float(row["median_s"])
    return [curve for curve in curves.values() if curve.keys() == {1, 2, 3, 4, 7}]


def unseen_error(curves: list[dict[int, float]], seen: tuple[int, ...], unseen: int) -> float:
    """Mean relative error at a share that the fit has not seen."""
    fits = [(fit_curve({units: curve[units] for units in seen}), curve[unseen]) for curve in curves]
    return statistics.fmean(abs(fit.secs_at(unseen) / secs - 1) for fit, secs in fits)


def test_published_curves_are_predicted_better_than_by_the_plain_form() -> None:
    curves = parvagpu_curves()
    assert len(curves) == 67
    assert unseen_error(curves, (1, 3, 7), 2) < 0.040  # 7.2 % by the plain form
    assert unseen_error(curves, (1, 3, 7), 4) < 0.032  # 3.3 %
    training = miso_curves()
    assert len(training) == 21
    assert unseen_error(training, (1, 3, 7), 2) < 0.098  # 9.8 %
    assert unseen_error(training, (1, 3, 7), 4) < 0.037  # 3.7 %


def test_the_error_that_a_curve_expects_is_about_the_real_one() -> None:
    curves = parvagpu_curves()
    for seen, unseen in (((1, 2, 4, 7), 3), ((1, 3, 4, 7), 2), ((1, 3, 7), 4)):
        errors = [fit_curve({units: curve[units] for units in seen}).error for curve in curves]
        expected = statistics.fmean(error for error in errors if error is not None)
        assert 1 / 2 < expected / unseen_error(curves, seen, unseen) < 2.2


def test_published_knees_are_found_from_three_shares() -> None:
    """Rounded up to a slice count that exists, against the knee of all five shares as measured."""
    curves = parvagpu_curves()
    off = []
    for curve in curves:
        knee = find_knee(fit_curve({units: curve[units] for units in (1, 3, 7)}), 7, 0.1)
        truth = next(units for units in sorted(curve) if curve[units] <= min(curve.values()) * 1.1)
        off.append(min(units for units in curve if units >= (knee.units or 0)) - truth)
    assert off.count(0) >= 57
    assert sum(each < 0 for each in off) <= 2
