"""Plans whose parts are CPU limits: speeds are simulated from those at whole cores."""

from __future__ import annotations

import pytest

from fractune_core.errors import BadRequest
from fractune_core.planning.devices import Partitioning, device_type
from fractune_core.planning.limits import limited_rows
from fractune_core.planning.planner import make_plan
from fractune_core.planning.plans import Plan
from fractune_core.planning.requests import ModelDemand, PlanRequest
from fractune_core.planning.speeds import Basis, Row

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
