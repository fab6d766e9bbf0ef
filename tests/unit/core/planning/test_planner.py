"""From a request to a plan: what cannot be meant, the mode, headroom by simulation, and what a reader is told."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import pytest

from fractune_core.errors import BadRequest, FractuneError, PlanInfeasible
from fractune_core.planning.devices import Partitioning, cpu_type, gpu_type
from fractune_core.planning.planner import make_plan
from fractune_core.planning.requests import ModelDemand, PlanRequest
from fractune_core.planning.speeds import Basis, Row

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
