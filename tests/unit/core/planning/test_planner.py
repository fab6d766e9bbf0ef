"""From a request to a plan: what cannot be meant, the mode, headroom by simulation, and what a reader is told."""

import itertools
import random
import sys
from dataclasses import replace
from typing import Any

import pytest

from fractune_core.errors import BadRequest, FractuneError, PlanInfeasible
from fractune_core.planning.devices import BY_NAME, DeviceType, Partitioning, cpu_type, device_type, gpu_type
from fractune_core.planning.one_device import plan_one
from fractune_core.planning.planner import make_plan
from fractune_core.planning.plans import ModelDemand, Plan, PlanRequest
from fractune_core.planning.speeds import Basis, Row, limited_rows
from tests.support.mig_layouts import broken_rule, layouts

MIG = gpu_type("A100-80GB", Partitioning.MIG)
ROWS = tuple(
    Row(units, batch, 1, batch / secs, secs, Basis.MEASURED)
    for batch, per in ((1, 0.01), (8, 0.04))
    for units, secs in ((1, per), (2, per * 0.6), (3, per * 0.45), (4, per * 0.38), (7, per * 0.3))
)


def demand(name: str = "a", rate: float | None = 150.0, **more: Any) -> ModelDemand:
    return ModelDemand(name, more.pop("rows", ROWS), rate, more.pop("latency_s", 0.1), **more)


def request(*models: ModelDemand, **more: Any) -> PlanRequest:
    return PlanRequest(more.pop("device", MIG), models or (demand(),), **more)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (PlanRequest(MIG, ()), "the plan has no model"),
        (request(count=0), "count is 0; it must be from 1 to 4096 devices"),
        (request(headroom=-0.1), r"headroom is -0\.1; it must be 0 or more"),
        (request(penalty=float("nan")), "penalty is nan"),
        (request(latency_part=0.0), "latency_part is 0; it must be above 0 and at most 1"),
        (request(demand(rate=0.0)), "model 'a': rate_per_s is 0; it must be above 0"),
        (request(demand(rate=-5.0)), "model 'a': rate_per_s is -5; it must be above 0"),
        (request(demand(latency_s=-1.0)), r"model 'a': the latency target \(s\) is -1"),
        (request(demand(memory_gib=-1.0)), "model 'a': memory_gib is -1"),
        (request(demand(""), demand("b")), "a model has no name"),
        (request(demand(), demand()), "model 'a' appears twice"),
        (request(demand(), demand("b", None)), "model 'b' has no rate_per_s and others have"),
        (request(demand(rate=None), count=3), "3 devices and no rates"),
        (request(demand(rows=())), "model 'a': nothing is known of its speed"),
        (request(demand(rows=(Row(1, 0, 1, 1.0, 1.0),))), "profile: batch is 0"),
        (request(demand(rows=(Row(1, 1, 1, -1.0, 1.0),))), "profile: throughput_per_s is -1"),
        (request(interference={("a", "z"): 1.1}), "interference: no model is called 'z'; there are a"),
        (request(interference={("a", "a"): -1.0}), "interference: i of 'a' beside 'a' is -1; it must be above 0"),
    ],
)
def test_what_cannot_be_meant_is_refused(asked: PlanRequest, says: str) -> None:
    with pytest.raises(BadRequest, match=says):
        make_plan(asked)


def test_rates_make_a_fleet_and_none_one_device() -> None:
    assert make_plan(request()).stp is None
    jobs = make_plan(request(demand("a", None), demand("b", None)))
    assert jobs.stp is not None
    assert len(jobs.devices) == 1
    with pytest.raises(BadRequest, match="a simulation needs rates"):
        make_plan(request(demand(rate=None)), simulated=True)


def test_a_simulation_takes_as_much_headroom_as_p99_needs() -> None:
    """At full use a queue grows without end: a plan without headroom does not hold; the one that is returned does."""
    asked = request(demand(rate=400.0, latency_s=0.09))
    bare = make_plan(asked)
    assert bare.simulated == ()
    assert bare.models[0].utilisation == pytest.approx(1.0)
    plan = make_plan(asked, simulated=True)
    assert plan.headroom > 0
    assert plan.units_used > bare.units_used
    assert all(model.holds for model in plan.simulated)
    assert any(note.startswith("simulated with ") for note in plan.notes)
    assert make_plan(asked, simulated=True).simulated == plan.simulated
    assert make_plan(replace(asked, headroom=0.5), simulated=True).headroom == 0.5


def test_a_simulation_that_cannot_hold_says_which_model() -> None:
    with pytest.raises(PlanInfeasible, match=r"simulated: .*p99 of 'a' is .* ms, over its target, and more headroom"):
        make_plan(request(demand(rate=1399.0, latency_s=0.09), count=1), simulated=True)


def test_readers_are_told_what_the_plan_stands_on() -> None:
    assert "not verified on a GPU" in make_plan(request()).notes
    three = tuple(row for row in ROWS if row.units in {1, 3, 7} and row.batch == 1)
    predicted = make_plan(request(demand(rows=three, rate=100.0, latency_s=0.016)))
    assert {part.basis for part in predicted.devices[0]} == {Basis.PREDICTED}
    assert any("times of 1 of 1 parts are predicted" in note for note in predicted.notes)
    host = make_plan(request(demand(rate=80.0, rows=(Row(1, 1, 1, 100.0, 0.01),)), device=cpu_type(2)))
    assert host.notes == ("1 of 1 parts are assumed to lose 13 % by their co-runners; the loss was not measured",)


def test_without_the_solver_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "highspy", None)
    with pytest.raises(FractuneError, match=r"install 'fractune\[plan\]'"):
        make_plan(request())
    assert make_plan(request(demand(rate=None))).stp == pytest.approx(1.0)  # needs none


HOST = device_type("", 2, "limit", 0.0)
MINILM = (Row(1, 1, 1, 1 / 0.0184, 0.0184), Row(2, 1, 1, 1 / 0.0096, 0.0096))


def plan_of(rate_per_s: float | None, partitioning: str = "limit", latency_s: float | None = 0.2) -> Plan:
    device = device_type("", 2, partitioning, 0.0)
    rows = limited_rows(MINILM, device) if device.partitioning is Partitioning.LIMIT else MINILM
    return make_plan(PlanRequest(device, (ModelDemand("minilm", rows, rate_per_s, latency_s),)))


def test_a_host_is_divided_in_steps_of_a_quarter_of_a_core() -> None:
    assert [part.share for part in HOST.parts] == [f"cpu:{limit_m}m" for limit_m in range(250, 2001, 250)]
    assert (HOST.units, HOST.unit, HOST.kind, HOST.length) == (2000, "millicore", "cpu", 8)
    assert (HOST.timed_by.units, HOST.timed_by.partitioning) == (2, Partitioning.CPU)
    large = device_type("", 256, "limit", 0.0)
    assert large.whole.share == "cpu:256000m"
    assert len(large.parts) < 100


def test_throughput_under_a_limit_is_the_measured_one() -> None:
    """MiniLM-L3 in a loop (docs/cpu-limits.md): 26.9/s at 500m, 75.9/s at 1500m; two replicas of one thread 81.6/s. The
    padding is 8 %.
    """
    rows = {(row.units, row.processes): row for row in limited_rows(MINILM, HOST)}
    assert rows[1500, 1].expected_per_s == pytest.approx(75.9, rel=0.05)
    assert rows[1500, 2].expected_per_s == pytest.approx(81.6, rel=0.05)
    assert rows[250, 1].expected_per_s == pytest.approx(13.3, rel=0.05)
    assert {row.basis for row in rows.values()} == {Basis.PREDICTED}
    assert rows[250, 1].latency_s == pytest.approx(0.097, rel=0.1)
    assert rows[2000, 1].latency_s < rows[500, 1].latency_s
    assert {row.units for row in rows.values()} == {part.units for part in HOST.parts}


def test_a_model_gets_a_limit_between_whole_cores() -> None:
    pytest.importorskip("highspy")
    ((part,),) = plan_of(27.0).devices
    assert part.share == "cpu:750m"
    assert part.throughput_per_s >= 27
    assert plan_of(27.0, "cpu").units_used == 1


def test_notes_and_refusals_point_to_fit() -> None:
    plan = plan_of(None, latency_s=None)
    assert any(note.endswith("fractune fit --verify tries a limit") for note in plan.notes)
    demand = ModelDemand("minilm", limited_rows(MINILM, HOST), 10.0, 0.2)
    with pytest.raises(BadRequest, match=r"CPU limits cannot be simulated; .*fractune fit --verify"):
        make_plan(PlanRequest(HOST, (demand,)), simulated=True)


def test_the_number_of_processes_is_the_plans() -> None:
    with pytest.raises(BadRequest, match="has 2 processes on cpu:1: under CPU limits the plan finds their number"):
        limited_rows([Row(1, 1, 2, 100.0, 0.02)], HOST)


IN_MIG = gpu_type("A100-40GB", Partitioning.MIG)
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


@pytest.mark.parametrize("device", [IN_MIG, cpu_type(6)], ids=["mig", "cpu"])
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
        if device is IN_MIG:
            assert not broken_rule([(BY_NAME[f"{part.units}g"], part.place) for part in parts])


FLAT, STEEP = {1: 1.05, 2: 1.02, 3: 1.0, 4: 1.0, 7: 1.0}, {1: 7.0, 2: 3.5, 3: 2.4, 4: 1.75, 7: 1.0}


def test_the_job_that_gains_gets_the_larger_part() -> None:
    plan = plan_one(PlanRequest(IN_MIG, (job("flat", FLAT), job("steep", STEEP))))
    assert {part.model: part.share for part in plan.devices[0]} == {"flat": "mig:3g.20gb", "steep": "mig:4g.20gb"}
    assert [part.place for part in plan.devices[0]] == [0, 4]


def test_memory_takes_parts_away() -> None:
    with pytest.raises(
        PlanInfeasible, match=r"2 jobs do not fit .* by mig: the limiting job is 'flat', and the others"
    ):
        plan_one(PlanRequest(IN_MIG, (job("flat", FLAT, 20), job("steep", STEEP))))
    small = plan_one(PlanRequest(IN_MIG, (job("flat", FLAT, 12), job("steep", STEEP, 12))))
    assert sorted(part.units for part in small.devices[0]) == [3, 4]


def test_neighbours_slow_every_job_but_a_lone_one() -> None:
    secs = {1: 2.0, 2: 1.0}
    request = PlanRequest(cpu_type(2), (job("a", secs), job("b", secs)), interference={("a", "b"): 1.1}, penalty=0.25)
    assert [model.speed for model in plan_one(request).models] == pytest.approx([0.5 / 1.1, 0.5 / 1.25])
    assert plan_one(PlanRequest(cpu_type(2), (job("a", secs),))).stp == pytest.approx(1.0)


def test_jobs_are_placed_by_the_expected_times_and_their_error_is_said() -> None:
    plan = plan_one(PlanRequest(IN_MIG, (job("a", {1: 7.0, 3: 2.4, 7: 1.0}), job("b", FLAT))))
    bases = {part.model: part.basis for part in plan.devices[0]}
    assert bases["a"] is Basis.PREDICTED
    errors = {model.name: model.speed_error for model in plan.models}
    assert errors["a"] > 0
    assert errors["b"] == 0
    a = next(part for part in plan.devices[0] if part.model == "a")
    assert plan.models[0].speed == pytest.approx(a.throughput_per_s * (1 + a.error))


def test_more_jobs_than_parts_are_refused() -> None:
    with pytest.raises(PlanInfeasible, match="8 jobs for one A100-40GB by mig, which has at most 7 parts"):
        plan_one(PlanRequest(IN_MIG, tuple(job(f"j{n}", FLAT) for n in range(8))))
    with pytest.raises(PlanInfeasible, match="3 jobs for one 2 cores by cpu, which has at most 2 parts"):
        plan_one(PlanRequest(cpu_type(2), tuple(job(f"j{n}", {1: 1.0}) for n in range(3))))
    with pytest.raises(PlanInfeasible, match="model 'slow' is too slow"):
        plan_one(PlanRequest(IN_MIG, (job("slow", STEEP, latency_s=1.0),)))
