"""Fleets: the fewest devices, then the fewest units, as trying everything finds; and why a request cannot be met."""

import itertools
import math
import random
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from fractune_core.errors import PlanInfeasible
from fractune_core.planning.devices import BY_NAME, DeviceType, Partitioning, cpu_type, gpu_type
from fractune_core.planning.planner import plan_fleet
from fractune_core.planning.plans import ModelDemand, Plan, PlanRequest
from fractune_core.planning.speeds import Basis, Row
from tests.support.mig_layouts import broken_rule, layouts

MIG = gpu_type("A100-80GB", Partitioning.MIG)
SIZES = tuple(part.units for part in MIG.parts)
Counts = tuple[int, ...]
Drawn = tuple[dict[int, float], float]
"""throughput at units, and a rate"""


def demand(name: str, throughput: dict[int, float], rate: float, **more: Any) -> ModelDemand:
    """A model with a request a batch, by throughput at units."""
    rows = tuple(Row(units, 1, 1, each, 1 / each, Basis.MEASURED) for units, each in throughput.items())
    return ModelDemand(name, rows, rate, **more)


def check(plan: Plan, request: PlanRequest) -> None:
    """The plan keeps to the device and serves the rates, counted from its parts alone."""
    served: dict[str, float] = {}
    for parts in plan.devices:
        assert parts
        taken = [place for part in parts for place in range(part.place, part.place + part.length)]
        assert len(set(taken)) == len(taken) <= plan.axis
        if request.device.partitioning is Partitioning.MIG:
            assert not broken_rule([(BY_NAME[f"{part.units}g"], part.place) for part in parts])
        for part in parts:
            served[part.model] = served.get(part.model, 0.0) + part.throughput_per_s
    for model in request.models:
        assert served[model.name] >= (model.rate_per_s or 0) * (1 + request.headroom) * (1 - 1e-5)


# ---- against trying everything ---------------------------------------------------------------------------


def one_device(device: DeviceType) -> set[Counts]:
    """How many parts of each size one device can hold, every way."""
    if device.partitioning is Partitioning.MIG:
        kinds = (Counter(profile.compute for profile, _ in layout) for layout in layouts())
        return {tuple(kind[units] for units in SIZES) for kind in kinds} | {(0,) * len(SIZES)}
    sizes = [part.units for part in device.parts]
    every = itertools.product(*(range(device.units // units + 1) for units in sizes))
    return {each for each in every if sum(n * units for n, units in zip(each, sizes, strict=True)) <= device.units}


def fleets(device: DeviceType, most: int) -> list[set[Counts]]:
    """The same for 1 to `most` devices."""
    one = one_device(device)
    found = [one]
    while len(found) < most:
        found.append({tuple(map(sum, zip(a, b, strict=True))) for a in found[-1] for b in one})
    return found


def choices(throughput: dict[int, float], rate: float, sizes: tuple[int, ...]) -> list[Counts]:
    """The parts that serve the rate, of which none can be left out."""
    per = [throughput.get(units, 0.0) for units in sizes]
    ranges = [range(math.ceil(rate / each - 1e-9) + 1) if each else range(1) for each in per]
    enough = [
        counts
        for counts in itertools.product(*ranges)
        if sum(n * each for n, each in zip(counts, per, strict=True)) >= rate
    ]
    total = {counts: sum(n * each for n, each in zip(counts, per, strict=True)) for counts in enough}
    return [
        counts
        for counts in enough
        if all(not n or total[counts] - each < rate for n, each in zip(counts, per, strict=True))
    ]


def best(models: list[Drawn], every: list[set[Counts]], sizes: Counts) -> tuple[int, int] | None:
    """Fewest devices and, with them, fewest units."""
    totals = {
        tuple(map(sum, zip(*combination, strict=True)))
        for combination in itertools.product(*(choices(*each, sizes) for each in models))
    }
    for count, feasible in enumerate(every, 1):
        units = [sum(n * size for n, size in zip(total, sizes, strict=True)) for total in totals & feasible]
        if units:
            return count, min(units)
    return None


def drawn(draw: random.Random, sizes: Counts, most_parts: float) -> Drawn:
    """Throughput that falls short of proportional by a random power, at most sizes; a rate of some parts."""
    bend, unit = draw.uniform(0.2, 1.1), draw.uniform(20, 200)
    throughput = {units: unit * units**bend * draw.uniform(0.9, 1.1) for units in sizes if draw.random() < 0.85}
    throughput = throughput or {sizes[-1]: unit}
    return throughput, draw.uniform(0.2, most_parts) * unit * draw.uniform(1, 2)


def instances(count: int, device: DeviceType, most_parts: float) -> Iterator[list[Drawn]]:
    draw = random.Random(20221113)
    sizes = tuple(part.units for part in device.parts)
    for _ in range(count):
        yield [drawn(draw, sizes, most_parts) for _ in range(draw.randint(1, 2))]


@pytest.mark.parametrize(
    ("device", "count", "most_parts"), [(MIG, 60, 1.5), (cpu_type(4), 20, 1.5)], ids=["mig", "cpu"]
)
def test_plans_are_as_good_as_trying_everything(device: DeviceType, count: int, most_parts: float) -> None:
    sizes = tuple(part.units for part in device.parts)
    every = fleets(device, 3)
    solved = 0
    for models in instances(count, device, most_parts):
        # Parts are taken as they were measured: what neighbours cost is another test's.
        request = PlanRequest(device, tuple(demand(f"m{n}", *each) for n, each in enumerate(models)), penalty=0.0)
        request = replace(request, models=tuple(only_measured(model, sizes) for model in request.models))
        wanted = best(models, every, sizes)
        if wanted is not None:
            plan = plan_fleet(request)
            check(plan, request)
            assert (len(plan.devices), plan.units_used) == wanted, models
            assert plan.is_proved
            solved += 1
    assert solved >= 0.9 * count


def only_measured(model: ModelDemand, sizes: Counts) -> ModelDemand:
    """Sizes without a row are too slow for the target, so that none is predicted."""
    rows = {row.units: row for row in model.rows}
    target = 2.5 * max(row.latency_s for row in model.rows)
    slow = (Row(units, 1, 1, 1e-3, 1e3) for units in sizes if units not in rows)
    return replace(model, rows=(*model.rows, *slow), latency_s=target)


# ---- what a request can ask for --------------------------------------------------------------------------

SCALES: dict[int, float] = {1: 100.0, 2: 190.0, 3: 270.0, 4: 340.0, 7: 500.0}


def request(*models: ModelDemand, **more: Any) -> PlanRequest:
    return PlanRequest(MIG, models, **more)


def test_a_rate_is_served_by_the_fewest_units_with_its_headroom_target_and_memory() -> None:
    plan = plan_fleet(request(demand("a", SCALES, 700)))
    assert len(plan.devices) == 1
    assert [part.share for part in plan.devices[0]] == ["mig:1g.10gb"] * 7
    assert plan.models[0].utilisation == pytest.approx(1.0)
    plan = plan_fleet(request(demand("a", SCALES, 700), headroom=0.05))
    assert len(plan.devices) == 2
    assert plan.models[0].utilisation == pytest.approx(700 / 800)
    slow = demand("a", SCALES, 100, latency_s=0.0083)
    assert [part.units for part in plan_fleet(request(slow)).devices[0]] == [3]
    large = demand("a", SCALES, 100, memory_gib=30)
    assert [part.units for part in plan_fleet(request(large)).devices[0]] == [3]


def test_processes_need_memory_each() -> None:
    rows = (Row(1, 1, 1, 60.0, 0.016), Row(1, 1, 3, 200.0, 0.015))
    model = ModelDemand("a", rows, 150, memory_gib=4)
    plan = plan_fleet(request(model))
    # Three processes have no room on a slice; on two slices they have, and are taken as no faster than on one.
    assert [(part.processes, part.units) for part in plan.devices[0]] == [(3, 2)]
    roomy = plan_fleet(request(replace(model, memory_gib=3)))
    assert [(part.processes, part.units) for part in roomy.devices[0]] == [(3, 1)]


def test_neighbours_cost_what_was_measured_else_the_penalty() -> None:
    device = cpu_type(2)
    model = demand("a", {1: 100.0, 2: 150.0}, 180)
    assumed = plan_fleet(PlanRequest(device, (model,), penalty=0.13))
    # Two cores beside each other: 2 x 100 / 1.13 = 177 are too few, a whole device each is needed.
    assert len(assumed.devices) == 2
    measured = plan_fleet(PlanRequest(device, (model,), interference={("a", "a"): 1.05}))
    assert [part.slowdown for part in measured.devices[0]] == [1.05, 1.05]
    assert measured.models[0].capacity_per_s == pytest.approx(200 / 1.05)


def test_the_worst_neighbour_counts_and_a_whole_device_has_none() -> None:
    models = (demand("a", {1: 100.0, 2: 150.0}, 80), demand("b", {1: 100.0}, 80))
    known = {("a", "a"): 1.0, ("a", "b"): 1.2, ("b", "a"): 1.0, ("b", "b"): 1.0}
    plan = plan_fleet(PlanRequest(cpu_type(2), models, interference=known))
    assert {part.model: part.slowdown for part in plan.devices[0]} == {"a": 1.2, "b": 1.0}
    alone = plan_fleet(PlanRequest(cpu_type(2), (demand("a", {2: 150.0}, 80),)))
    assert [part.slowdown for part in alone.devices[0]] == [1.0]


def test_mig_instances_feel_no_neighbour_unless_one_was_measured() -> None:
    models = (demand("a", SCALES, 90), demand("b", SCALES, 90))
    assert {part.slowdown for part in plan_fleet(request(*models)).devices[0]} == {1.0}
    felt = plan_fleet(request(*models, interference={("a", "b"): 1.04}))
    assert {part.model: part.slowdown for part in felt.devices[0]} == {"a": 1.04, "b": 1.0}


def test_green_contexts_and_percentages_add_up_to_the_device_at_most() -> None:
    for partitioning in (Partitioning.MPS, Partitioning.GREEN):
        device = gpu_type("H100-80GB", partitioning)
        scale = {16: 100.0, 33: 190.0, 66: 300.0, 132: 400.0}
        asked = PlanRequest(device, tuple(demand(name, scale, 150) for name in "abcd"))
        plan = plan_fleet(asked)
        check(plan, asked)
        assert all(sum(part.units for part in parts) <= 132 for parts in plan.devices)
        assert {part.basis for parts in plan.devices for part in parts} <= {Basis.PREDICTED, Basis.MEASURED}


# ---- what cannot be met ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("models", "says"),
    [
        (
            [demand("a", SCALES, 10), demand("slow", SCALES, 10, latency_s=0.003)],
            (
                "model 'slow' is too slow for its target on any part of A100-80GB: a batch of 1 takes 2 ms at "
                "mig:7g.80gb, and may take 1.5 of the 3 ms; a target of 4 ms would suffice"
            ),
        ),
        (
            [demand("big", SCALES, 10, memory_gib=90)],
            (
                "model 'big' cannot run on any part of A100-80GB: it needs 90 GiB, and mig:7g.80gb has 79; use a "
                "device with more memory"
            ),
        ),
        (
            [demand("a", SCALES, 100), demand("b", SCALES, 2000)],
            (
                "2 x A100-80GB cannot serve these rates: the limiting model is 'b'. Beside the others "
                "they serve 1300 of its 2000 requests/s; 3 devices or this rate would suffice"
            ),
        ),
        (
            [demand("a", SCALES, 3000), demand("b", SCALES, 2000)],
            (
                "2 x A100-80GB cannot serve these rates, whichever one model is left out; 'a' needs the most; 8 "
                "devices would suffice"
            ),
        ),
    ],
)
def test_a_request_that_cannot_be_met_names_the_model_that_binds(models: list[ModelDemand], says: str) -> None:
    with pytest.raises(PlanInfeasible) as refused:
        plan_fleet(request(*models, count=2))
    assert str(refused.value) == says


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (
            request(demand("a", SCALES, 1e9)),
            "4096 x A100-80GB cannot serve .* the limiting model is 'a'.* would suffice",
        ),
        *(
            (request(demand("a", {7: 10.0}, rate), headroom=0.1), "4096 x .* cannot serve .* 'a' needs .* at most 10")
            for rate in (1e12, 1e300, 1.7e308)
        ),
        (
            request(demand("a", SCALES, 700), count=1, headroom=0.05),
            "1 x A100-80GB cannot serve .* with 5 % headroom: the limiting model is 'a'",
        ),
    ],
)
def test_a_plan_has_an_end(asked: PlanRequest, says: str) -> None:
    with pytest.raises(PlanInfeasible, match=says):
        plan_fleet(asked)
    assert len(plan_fleet(request(demand("a", SCALES, 1e-300))).devices) == 1


@pytest.mark.parametrize("secs", [0.02788e-3, 2.1e-3, 0.7])
def test_the_target_that_a_refusal_names_will_do(secs: float) -> None:
    """Neighbours count in it, and rounding does not make it too short."""

    def asked(latency_s: float) -> PlanRequest:
        return PlanRequest(cpu_type(2), (demand("a", {1: 1 / secs, 2: 0.5 / secs}, 0.1, latency_s=latency_s),))

    with pytest.raises(PlanInfeasible, match=r"with co-runners \(they cost 13 %\)") as refused:
        plan_fleet(asked(secs))
    named = re.search(r"a target of (\S+) ms would suffice", str(refused.value))
    assert named is not None
    plan_fleet(asked(float(named[1]) / 1e3))
