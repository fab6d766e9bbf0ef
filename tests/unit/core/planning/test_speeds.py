"""How fast a model is on a part that nobody measured: as the knee's curve says, the slower for its error."""

import random
import statistics
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from fractune_core.analysis.knee import fit_curve
from fractune_core.planning.plans import Plan, PlannedModel, PlannedPart, serve, simulate
from fractune_core.planning.speeds import CALL_OVERHEAD_S, Basis, ModelSpeeds, Row, measured_rows

SECS = st.floats(1e-4, 1.0)
SERIES = st.dictionaries(st.integers(1, 7), SECS, min_size=1, max_size=5)


def rows(secs: dict[int, float], batch: int = 1, processes: int = 1) -> tuple[Row, ...]:
    return tuple(Row(units, batch, processes, batch * processes / each, each) for units, each in secs.items())


@given(SERIES, st.integers(1, 9))
def test_a_prediction_is_no_faster_than_the_curve_and_no_slower_than_what_was_measured_below(
    secs: dict[int, float], units: int
) -> None:
    found = ModelSpeeds(rows(secs)).at(units)
    if units < min(secs):
        assert found == []
        return
    (row,) = found
    assert row.secs == pytest.approx(row.latency_s)
    if units in secs:
        assert row.basis is Basis.STATED
        assert row.secs == pytest.approx(secs[units])
        return
    assert row.basis is Basis.PREDICTED
    assert row.secs <= min(each for of, each in secs.items() if of <= units) * (1 + 1e-9)
    if len(secs) > 1:
        assert row.secs >= fit_curve(secs).secs_at(units) * (1 - 1e-9)
        assert row.error >= 0


def test_the_error_of_the_curve_is_carried() -> None:
    secs = {1: 0.70, 3: 0.30, 7: 0.20}
    curve = fit_curve(secs)
    (row,) = ModelSpeeds(rows(secs, batch=8)).at(2)
    assert curve.error is not None
    assert row.secs == pytest.approx(curve.secs_at(2) * (1 + curve.error))
    assert row.error == pytest.approx(curve.error)
    assert row.throughput_per_s == pytest.approx(8 / row.secs)


def test_beyond_the_largest_part_no_gain_is_assumed() -> None:
    (row,) = ModelSpeeds(rows({1: 0.8, 2: 0.4, 3: 0.3})).at(7)
    assert row.secs == pytest.approx(0.3)
    (lone,) = ModelSpeeds(rows({2: 0.4})).at(7)
    assert lone.secs == pytest.approx(0.4)
    assert lone.basis is Basis.PREDICTED


def test_every_batch_and_number_of_processes_is_a_series_of_its_own() -> None:
    speeds = ModelSpeeds([*rows({1: 0.1, 2: 0.06}), *rows({2: 0.3}, batch=8, processes=2)])
    assert len(speeds.at(1)) == 1
    assert {(row.batch, row.processes) for row in speeds.at(2)} == {(1, 1), (8, 2)}


def test_a_latency_that_is_longer_than_the_time_between_batches_stays_so() -> None:
    (row,) = ModelSpeeds([Row(1, 1, 1, 10.0, 0.2), Row(3, 1, 1, 20.0, 0.1), Row(7, 1, 1, 30.0, 0.05)]).at(2)
    assert row.latency_s == pytest.approx(2 * row.secs)


def test_the_time_of_the_whole_model_goes_before_the_sum_of_its_operators() -> None:
    """What the sum of operators lacks at one share is added to it at another."""
    rows = measured_rows({1: 7.18e-3, 2: 4.0e-3}, {1: 8.70e-3}, {}, batch=4)
    assert [(row.units, row.basis, row.batch) for row in rows] == [(1, Basis.MEASURED, 4), (2, Basis.OPERATORS, 4)]
    assert [row.latency_s for row in rows] == pytest.approx([8.70e-3, 5.52e-3])
    assert rows[0].throughput_per_s == pytest.approx(4 / 8.70e-3)


def test_a_disturbed_time_counts_where_there_is_no_other() -> None:
    rows = measured_rows({1: 7e-3, 2: 4e-3}, {1: 8e-3}, {1: 1.0, 2: 1.0, 4: 3e-3}, batch=1)
    assert [(row.units, row.basis) for row in rows] == [
        (1, Basis.MEASURED),
        (2, Basis.OPERATORS),
        (4, Basis.DISTURBED),
    ]
    assert rows[2].latency_s == 3e-3


@pytest.mark.parametrize("whole_s", [{}, {2: 1e-7}])
def test_a_model_of_few_operations_takes_the_time_of_a_call(whole_s: dict[int, float]) -> None:
    row = measured_rows({1: 2.6e-7, 2: 2e-7}, whole_s, {}, batch=1)[0]
    assert row.latency_s == pytest.approx(2.6e-7 + CALL_OVERHEAD_S)


TIMES = st.lists(st.floats(0, 10), min_size=1, max_size=40).map(sorted)


def part(latency_s: float, batch: int = 1, processes: int = 1, model: str = "m") -> PlannedPart:
    throughput = batch * processes / latency_s
    return PlannedPart("mig:1g.10gb", 1, 0, 1, model, batch, processes, throughput, latency_s, Basis.MEASURED, 0.0, 1.0)


def a_plan(rate_per_s: float, target_s: float | None, *parts: PlannedPart) -> Plan:
    model = PlannedModel("m", rate_per_s, sum(each.throughput_per_s for each in parts), target_s)
    return Plan("A100-80GB", "mig", "slice", 7, 8, (parts,), (model,), 0.0, None, is_proved=True, solve_s=0.0)


@given(TIMES, st.floats(0.01, 3), st.integers(1, 4), st.integers(1, 3))
def test_every_request_is_served_once_and_not_before_its_time(
    arrivals: list[float], latency_s: float, batch: int, processes: int
) -> None:
    taken = serve(arrivals, [part(latency_s, batch, processes)])
    assert len(taken) == len(arrivals)
    assert min(taken) >= latency_s * (1 - 1e-9)
    ends = [arrival + each for arrival, each in zip(arrivals, taken, strict=True)]
    assert ends == pytest.approx(sorted(ends))  # first come, first served, where all parts are alike


def test_waiting_is_what_queueing_theory_says() -> None:
    """One process, a request a batch, always as long: a mean wait of s * rho / (2 (1 - rho)) (Pollaczek, Khinchine)."""
    draws = random.Random(3)
    at, arrivals = 0.0, []
    for _ in range(60_000):
        at += draws.expovariate(7.0)
        arrivals.append(at)
    waited = statistics.fmean(each - 0.1 for each in serve(arrivals, [part(0.1)]))
    assert waited == pytest.approx(0.1 * 0.7 / (2 * 0.3), rel=0.08)


def test_a_batch_takes_what_waits_and_the_fastest_free_part_is_taken() -> None:
    # The first is served alone; while it is, three arrive; two of them fit into the next batch.
    assert serve([0.0, 0.1, 0.2, 0.3], [part(1.0, batch=2)]) == pytest.approx([1.0, 1.9, 1.8, 2.7])
    assert serve([0.0, 0.1], [part(1.0), part(0.5)]) == pytest.approx([0.5, 1.0])


def test_light_load_is_in_time_and_heavy_load_late() -> None:
    (light,) = simulate(a_plan(10, 0.25, part(0.1, batch=4)), requests=4000)
    assert light.holds
    assert light.p50_s >= 0.1
    assert light.late < 0.01
    (heavy,) = simulate(a_plan(39.9, 0.25, part(0.1, batch=4)), requests=4000)
    assert not heavy.holds
    assert heavy.late > 0.2
    (free,) = simulate(a_plan(39.9, None, part(0.1, batch=4)), requests=4000)
    assert (free.holds, free.late) == (True, 0.0)


def test_models_do_not_touch_each_other() -> None:
    plan = a_plan(30, 0.25, part(0.1, batch=4))
    both = replace(
        plan,
        devices=(*plan.devices, (part(9.9, model="other"),)),
        models=(*plan.models, PlannedModel("other", 0.05, 0.1, None)),
    )
    assert simulate(both, requests=2000)[0] == simulate(plan, requests=2000)[0]
