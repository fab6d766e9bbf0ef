"""A plan simulated: waiting as queueing theory has it, batches, and what comes late."""

from __future__ import annotations

import random
import statistics
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fractune_core.planning.plans import Plan, PlannedModel, PlannedPart, serve, simulate
from fractune_core.planning.speeds import Basis

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


def test_a_batch_takes_what_waits_and_no_more() -> None:
    # The first is served alone; while it is, three arrive; two of them fit into the next batch.
    assert serve([0.0, 0.1, 0.2, 0.3], [part(1.0, batch=2)]) == pytest.approx([1.0, 1.9, 1.8, 2.7])


def test_the_fastest_free_part_is_taken() -> None:
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


def test_the_same_seed_gives_the_same_and_another_another() -> None:
    plan = a_plan(30, 0.25, part(0.1, batch=4))
    assert simulate(plan, seed=1, requests=2000) == simulate(plan, seed=1, requests=2000)
    assert simulate(plan, seed=1, requests=2000) != simulate(plan, seed=2, requests=2000)


def test_models_do_not_touch_each_other() -> None:
    plan = a_plan(30, 0.25, part(0.1, batch=4))
    both = replace(
        plan,
        devices=(*plan.devices, (part(9.9, model="other"),)),
        models=(*plan.models, PlannedModel("other", 0.05, 0.1, None)),
    )
    assert simulate(both, requests=2000)[0] == simulate(plan, requests=2000)[0]
