"""A plan by the times of jobs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fractune.features.plan.of_jobs import JobDemand, PlannedDevice, plan_of_jobs
from fractune.features.plan.plan import PlanResult
from fractune.server.job_status import JobStatus, job_status
from fractune_core.errors import BadRequest, PlanInfeasible
from fractune_core.planning.speeds import Basis
from fractune_core.shares import GrantedShare
from tests.support.client_samples import job_script
from tests.support.measured_pairs import measured_pair

HERE = PlannedDevice()


def job(name: str = "m.onnx", **changes: Any) -> JobStatus:
    """It takes 2 ms on one core of two, and 1 ms on both."""
    done = job_status(job_script()[-1])
    return replace(done, spec=replace(done.spec, model_name=name), name=f"jobs/{name}", **changes)


def plan(*demands: JobDemand, device: PlannedDevice = HERE, **more: Any) -> PlanResult:
    return plan_of_jobs(demands, more.pop("pairs", []), device, **more)


def test_rates_get_the_fewest_devices_by_the_jobs_times() -> None:
    made = plan(JobDemand(job("a.onnx"), "300/s", "20ms"), JobDemand(job("b.onnx"), "100/s", "20ms"))
    (parts,) = made.plan.devices
    assert sorted((part.model, part.share, part.basis) for part in parts) == [
        ("a", "cpu:1", Basis.MEASURED),
        ("b", "cpu:1", Basis.MEASURED),
    ]
    assert [part.latency_s for part in parts] == [pytest.approx(2e-3 * 1.13)] * 2, (
        "by the assumed loss beside a co-runner"
    )


def test_a_disturbed_time_is_the_most_that_a_model_takes_and_the_plan_says_so() -> None:
    first, second = job().results
    busy = job("a.onnx", results=(replace(first, others_cores=0.8), second))
    made = plan(JobDemand(busy, "300/s", "20ms"))
    assert made.plan.devices[0][0].basis is Basis.DISTURBED
    (note,) = (note for note in made.plan.notes if "other programs" in note)
    assert note.startswith(
        "other programs disturbed times of a: models take at most as long, so the plan may take more"
    )
    limited = plan(JobDemand(busy, "20/s", "500ms"), device=PlannedDevice(partitioning="limit"))
    assert limited.plan.devices[0][0].basis is Basis.DISTURBED
    assert "at most, disturbed" in str(limited.table)


def test_a_disturbed_pair_is_not_counted_on() -> None:
    demands = (JobDemand(job("a.onnx"), "100/s"), JobDemand(job("b.onnx"), "100/s"))
    made = plan(*demands, pairs=[replace(measured_pair(), others_cores=0.8)])
    assert ({part.slowdown for part in made.plan.devices[0]}, made.measured) == ({1.13}, ())


def test_a_pair_of_these_models_replaces_the_assumed_loss() -> None:
    demands = (JobDemand(job("a.onnx"), "100/s"), JobDemand(job("b.onnx"), "100/s"))
    assumed = plan(*demands)
    made = plan(*demands, pairs=[measured_pair()])
    assert {part.slowdown for part in assumed.plan.devices[0]} == {1.13}
    assert {part.model: part.slowdown for part in made.plan.devices[0]}["a"] == 1.4
    assert any("2 slow-downs by co-runners from measured pairs" in note for note in made.plan.notes)
    assert [each["beside"] for each in made.to_json()["slowdowns"]] == ["b", "a"]
    assert assumed.to_json()["slowdowns"] == []


def test_a_pair_that_the_plan_does_not_count_on_is_not_listed() -> None:
    apart = [JobDemand(job(name), rate) for name, rate in (("a.onnx", "900/s"), ("b.onnx", "900/s"))]
    made = plan(*apart, pairs=[measured_pair()])
    assert [{part.model for part in parts} for parts in made.plan.devices] == [{"a"}, {"b"}]
    assert made.measured == ()
    assert not any("measured pairs" in note for note in made.plan.notes)


def test_jobs_without_rates_divide_one_device() -> None:
    made = plan(JobDemand(job("a.onnx")), JobDemand(job("b.onnx")))
    assert made.plan.stp == pytest.approx(2 * 0.5 / 1.13)


def test_two_jobs_of_one_file_are_told_apart_and_share_a_pair() -> None:
    first, second = job(), replace(job(), name="jobs/j2")
    made = plan(JobDemand(first, "1/s"), JobDemand(second, "1/s"), pairs=[measured_pair(first="m", second="m")])
    assert [model.name for model in made.plan.models] == ["m of m.onnx", "m of j2"]
    assert len(made.measured) == 4


def test_limits_are_predicted_from_whole_cores() -> None:
    made = plan(JobDemand(job("a.onnx"), "20/s", "500ms"), device=PlannedDevice(partitioning="limit"))
    assert made.plan.devices[0][0].share.endswith("m")


def test_a_simulation_adds_what_p99_needs() -> None:
    made = plan(JobDemand(job("a.onnx"), "300/s", "20ms"), simulate=True)
    assert made.plan.simulated[0].p99_s <= 0.02


def gpu_results(found: JobStatus) -> JobStatus:
    held = GrantedShare("mps:50", 54, 108, "sm", 1 << 35, reserved=False)
    return replace(found, results=tuple(replace(each, granted=held) for each in found.results))


def test_jobs_of_a_gpu_are_planned_where_it_is_named() -> None:
    demand = JobDemand(gpu_results(job()), "100/s")
    with pytest.raises(BadRequest, match="choose the GPU that they measured on"):
        plan(demand)
    assert plan(demand, device=PlannedDevice("A100-40GB", "mps")).plan.device == "A100-40GB"
    with pytest.raises(BadRequest, match="no time at a share of A100-40GB by green"):
        plan(demand, device=PlannedDevice("A100-40GB", "green"))


def test_hosts_of_different_sizes_are_not_mixed() -> None:
    larger = replace(
        job("b.onnx"),
        results=tuple(replace(each, granted=replace(each.granted, units_total=8)) for each in job().results),
    )
    with pytest.raises(BadRequest, match=r"numbers of cores: 2 \(jobs/a.onnx\), 8 \(jobs/b.onnx\)"):
        plan(JobDemand(job("a.onnx")), JobDemand(larger))


def test_what_cannot_be_served_names_the_model() -> None:
    with pytest.raises(PlanInfeasible, match="'m'"):
        plan(JobDemand(job(), "9000/s"), device=PlannedDevice(most=1))
    with pytest.raises(BadRequest, match="rate '5'"):
        plan(JobDemand(job(), "5"))
    with pytest.raises(BadRequest, match="appears twice"):
        plan(JobDemand(job()), JobDemand(job()))
