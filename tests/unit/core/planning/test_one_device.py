"""One device divided among jobs: as good as trying every layout and every order, and never more than there is."""

from __future__ import annotations

import itertools
import random

import pytest

from fractune_core.errors import PlanInfeasible
from fractune_core.planning.devices import BY_NAME, DeviceType, Partitioning, cpu_type, gpu_type
from fractune_core.planning.one_device import plan_one
from fractune_core.planning.requests import ModelDemand, PlanRequest
from fractune_core.planning.speeds import Basis, Row
from tests.support.mig_layouts import broken_rule, layouts

MIG = gpu_type("A100-40GB", Partitioning.MIG)
Secs = dict[int, float]
ALL = layouts()


def job(name: str, secs: Secs, memory_gib: float = 0.0, latency_s: float | None = None) -> ModelDemand:
    rows = tuple(Row(units, 1, 1, 1 / each, each, Basis.MEASURED) for units, each in secs.items())
    return ModelDemand(name, rows, None, latency_s, memory_gib)


def drawn(draw: random.Random, device: DeviceType) -> Secs:
    bend, noise = draw.uniform(0.0, 1.2), draw.uniform(0, 0.2)
    return {part.units: part.units**-bend * (1 + draw.uniform(0, noise)) for part in device.parts}


def best_stp(jobs: list[Secs], device: DeviceType) -> float:
    """By every layout with as many parts as jobs, in every order."""
    whole = device.units
    if device.partitioning is Partitioning.MIG:
        multisets = {tuple(sorted(profile.compute for profile, _ in each)) for each in ALL if len(each) == len(jobs)}
    else:
        sizes = [part.units for part in device.parts]
        every = itertools.combinations_with_replacement(sizes, len(jobs))
        multisets = {each for each in every if sum(each) <= whole}
    orders = itertools.chain(*(itertools.permutations(each) for each in multisets))
    return max(sum(secs[whole] / secs[units] for secs, units in zip(jobs, order, strict=True)) for order in orders)


@pytest.mark.parametrize("device", [MIG, cpu_type(6)], ids=["mig", "cpu"])
def test_a_layout_is_as_good_as_trying_everything(device: DeviceType) -> None:
    draw = random.Random(7)
    for _ in range(40):
        jobs = [drawn(draw, device) for _ in range(draw.randint(1, 4))]
        request = PlanRequest(device, tuple(job(f"j{n}", secs) for n, secs in enumerate(jobs)), penalty=0.0)
        plan = plan_one(request)
        assert plan.stp == pytest.approx(best_stp(jobs, device))
        assert plan.stp == pytest.approx(sum(model.speed or 0 for model in plan.models))
        (parts,) = plan.devices
        assert sorted(part.model for part in parts) == [f"j{n}" for n in range(len(jobs))]
        taken = [place for part in parts for place in range(part.place, part.place + part.length)]
        assert len(set(taken)) == len(taken) <= plan.axis
        if device is MIG:
            assert not broken_rule([(BY_NAME[f"{part.units}g"], part.place) for part in parts])


FLAT, STEEP = {1: 1.05, 2: 1.02, 3: 1.0, 4: 1.0, 7: 1.0}, {1: 7.0, 2: 3.5, 3: 2.4, 4: 1.75, 7: 1.0}


def test_the_job_that_gains_gets_the_larger_part() -> None:
    plan = plan_one(PlanRequest(MIG, (job("flat", FLAT), job("steep", STEEP))))
    assert {part.model: part.share for part in plan.devices[0]} == {"flat": "mig:3g.20gb", "steep": "mig:4g.20gb"}
    assert [part.place for part in plan.devices[0]] == [0, 4]


def test_memory_takes_parts_away() -> None:
    with pytest.raises(
        PlanInfeasible, match=r"2 jobs do not fit .* by mig: the limiting job is 'flat', and the others"
    ):
        plan_one(PlanRequest(MIG, (job("flat", FLAT, 20), job("steep", STEEP))))
    small = plan_one(PlanRequest(MIG, (job("flat", FLAT, 12), job("steep", STEEP, 12))))
    assert sorted(part.units for part in small.devices[0]) == [3, 4]


def test_neighbours_slow_every_job_but_a_lone_one() -> None:
    secs = {1: 2.0, 2: 1.0}
    request = PlanRequest(cpu_type(2), (job("a", secs), job("b", secs)), interference={("a", "b"): 1.1}, penalty=0.25)
    assert [model.speed for model in plan_one(request).models] == pytest.approx([0.5 / 1.1, 0.5 / 1.25])
    assert plan_one(PlanRequest(cpu_type(2), (job("a", secs),))).stp == pytest.approx(1.0)


def test_jobs_are_placed_by_the_expected_times_and_their_error_is_said() -> None:
    plan = plan_one(PlanRequest(MIG, (job("a", {1: 7.0, 3: 2.4, 7: 1.0}), job("b", FLAT))))
    bases = {part.model: part.basis for part in plan.devices[0]}
    assert bases["a"] is Basis.PREDICTED
    errors = {model.name: model.speed_error for model in plan.models}
    assert errors["a"] > 0
    assert errors["b"] == 0
    a = next(part for part in plan.devices[0] if part.model == "a")
    assert plan.models[0].speed == pytest.approx(a.throughput_per_s * (1 + a.error))


def test_more_jobs_than_parts_are_refused() -> None:
    with pytest.raises(PlanInfeasible, match="8 jobs for one A100-40GB by mig, which has at most 7 parts"):
        plan_one(PlanRequest(MIG, tuple(job(f"j{n}", FLAT) for n in range(8))))
    with pytest.raises(PlanInfeasible, match="3 jobs for one 2 cores by cpu, which has at most 2 parts"):
        plan_one(PlanRequest(cpu_type(2), tuple(job(f"j{n}", {1: 1.0}) for n in range(3))))
    with pytest.raises(PlanInfeasible, match="model 'slow' is too slow"):
        plan_one(PlanRequest(MIG, (job("slow", STEEP, latency_s=1.0),)))
