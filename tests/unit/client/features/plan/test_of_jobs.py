"""Plans of jobs, and what is reported of plans."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fractune
from fractune.features.pair.result import pairs_table
from fractune.features.plan.plan import JobDemand, PlannedDevice, PlanResult, plan_of_jobs
from fractune.features.plan.slowdowns import slowdowns_table, with_slowdowns
from fractune.server.job_status import JobStatus, job_status
from fractune_core.analysis.model_times import INTERLEAVED, SAME_UNITS, MeasuredPair
from fractune_core.analysis.slowdown_ci import Estimate
from fractune_core.errors import BadRequest, PlanInfeasible
from fractune_core.planning.devices import cpu_type, limit_type
from fractune_core.planning.plans import ModelDemand, PlanRequest
from fractune_core.planning.speeds import Basis, Row
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


def test_jobs_without_rates_limits_and_simulations_are_planned() -> None:
    made = plan(JobDemand(job("a.onnx")), JobDemand(job("b.onnx")))
    assert made.plan.stp == pytest.approx(2 * 0.5 / 1.13)
    made = plan(JobDemand(job("a.onnx"), "20/s", "500ms"), device=PlannedDevice(partitioning="limit"))
    assert made.plan.devices[0][0].share.endswith("m")
    made = plan(JobDemand(job("a.onnx"), "300/s", "20ms"), simulate=True)
    assert made.plan.simulated[0].p99_s <= 0.02


def test_two_jobs_of_one_file_are_told_apart_and_share_a_pair() -> None:
    first, second = job(), replace(job(), name="jobs/j2")
    made = plan(JobDemand(first, "1/s"), JobDemand(second, "1/s"), pairs=[measured_pair(first="m", second="m")])
    assert [model.name for model in made.plan.models] == ["m of m.onnx", "m of j2"]
    assert len(made.measured) == 4


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


ROWS = [{"share": "1g", "batch": 8, "throughput_per_s": 400}, {"share": "3g", "batch": 8, "throughput_per_s": 950}]


def model(name: str, rate: float | None, **more: Any) -> dict[str, Any]:
    asked = {} if rate is None else {"rate_per_s": rate, "latency_ms": 200}
    return {"name": name, **asked, "profile": ROWS, **more}


def planned(*models: dict[str, Any], device: Mapping[str, Any] | None = None, **more: Any) -> fractune.PlanResult:
    return fractune.plan({"device": device or {"gpu": "A100-80GB"}, "models": list(models)}, **more)


@pytest.fixture(scope="module")
def fleet() -> fractune.PlanResult:
    return planned(model("resnet50", 3500), model("bert", 900))


def cpu() -> fractune.PlanResult:
    rows = [{"share": "cpu:2", "throughput_per_s": 10}]
    return planned(
        model("a", 8, profile=rows, latency_ms=900), model("b", 8, profile=rows, latency_ms=900), device={"cores": 4}
    )


def test_the_tables_show_every_part_and_every_model(fleet: fractune.PlanResult) -> None:
    parts = sum(map(len, fleet.plan.devices))
    assert len(fleet.table.cells) == len(fleet.table.rows) == parts
    assert "to be confirmed by a person" in str(fleet.table)
    assert "not verified on a GPU" in str(fleet.table)
    assert [row[0] for row in fleet.models.cells] == ["resnet50", "bert"]
    assert fleet.models.cells[0][1] == "3500/s"


def test_predictions_and_neighbours_are_shown() -> None:
    predicted = planned(model("a", 500, memory_gib=15, profile=[*ROWS, {"share": "7g", "batch": 8, "latency_ms": 4}]))
    assert {part.share for part in predicted.plan.devices[0]} == {"mig:2g.20gb"}
    assert "predicted (+" in str(predicted.table)
    assert "times of 1 of 1 parts are predicted" in str(predicted.table)
    assert "x1.13 by co-runners" in str(cpu().table)


def test_a_simulated_plan_says_so() -> None:
    simulated = planned(model("a", 700), simulate=True)
    assert "simulated" in str(simulated.models)
    assert "simulated with Poisson arrivals" in str(simulated.table)
    found = simulated.to_json()["models"][0]["simulated"]
    assert found["holds"]
    assert found["requests"] == 18_000
    assert planned(model("a", 700)).to_json()["models"][0]["simulated"] is None


def test_one_device_shows_speeds_and_stp() -> None:
    jobs = planned(model("a", None), model("b", None))
    assert "of whole-device speed" in str(jobs.models)
    assert str(jobs.table).count("STP ") == 1


def test_json_is_plain(fleet: fractune.PlanResult) -> None:
    data = json.loads(json.dumps(fleet.to_json()))
    assert data["units_used"] == fleet.plan.units_used
    assert len(data["devices"]) == len(fleet.plan.devices)
    assert data["models"][1]["utilisation"] <= 1.00001
    assert data["stp"] is None


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_the_picture_shows_devices_and_models(fleet: fractune.PlanResult, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"plan.{suffix}"
    fleet.draw(path)
    if suffix == "svg":
        text = path.read_text()
        assert "device 0" in text
        assert "resnet50" in text
        assert "<!-- memory slices; the title counts compute slices, 7 a device -->" in text
        assert "<!-- not used -->" in text, "what the hatch means"
    assert path.stat().st_size > 1000
    with pytest.raises(BadRequest, match=r"ends in \.svg or \.png"):
        fleet.draw(tmp_path / "plan.jpg")


def test_a_plan_that_uses_everything_explains_no_hatch(tmp_path: Path) -> None:
    cpu().draw(tmp_path / "plan.svg")
    text = (tmp_path / "plan.svg").read_text()
    assert "<!-- cores, from first to last -->" in text
    assert "not used" not in text


SLOWED = (Row(1, 1, 1, 100.0, 0.01),)
NAMES = {"a": "a", "b": "b"}


def request(rate: float | None = 5.0, **changes: object) -> PlanRequest:
    models = tuple(ModelDemand(name, SLOWED, rate_per_s=rate) for name in NAMES)
    return replace(PlanRequest(cpu_type(2), models), **changes)  # type: ignore[arg-type]


def taken(*pairs: MeasuredPair, asked: PlanRequest | None = None) -> dict[tuple[str, str], float]:
    asked = asked or request()
    return {(each.model, each.beside): each.factor for each in with_slowdowns(asked, NAMES, pairs)[1]}


def at_shares(pair: MeasuredPair, *shares: str) -> MeasuredPair:
    return replace(
        pair, models=tuple(replace(each, share=share) for each, share in zip(pair.models, shares, strict=True))
    )


def test_both_models_of_a_pair_slow_each_other_down() -> None:
    asked, measured = with_slowdowns(request(), NAMES, [measured_pair()])
    assert asked.interference == {("a", "b"): 1.4, ("b", "a"): 1.02}
    assert asked.slowdown("a", ["b"]) == 1.4
    assert asked.slowdown("a", ["a"]) == 1.13, "its own pair was not measured"
    table = slowdowns_table(measured)
    assert table.cells[0] == ("a", "b", "1.40 (1.35 .. 1.50)", "cpu:1", "cpu:1", "here", "2023-11-14 22:13 UTC")
    assert table.rows[0]["i"] == {"median": 1.4, "low": 1.35, "high": 1.5}


def test_the_newest_pair_counts() -> None:
    older = measured_pair(
        models=tuple(replace(each, interference=Estimate(3, 2, 4)) for each in measured_pair().models)
    )
    assert taken(measured_pair(), older) == {("a", "b"): 1.4, ("b", "a"): 1.02}


def test_the_plan_file_goes_before_a_pair() -> None:
    asked, measured = with_slowdowns(request(interference={("a", "b"): 1.08}), NAMES, [measured_pair()])
    assert asked.interference == {("a", "b"): 1.08, ("b", "a"): 1.02}
    assert [(each.model, each.beside) for each in measured] == [("b", "a")]


def test_a_co_runner_makes_nothing_faster_and_a_gain_is_shown_as_one() -> None:
    faster = Estimate(0.8, 0.5, 0.95)
    pair = measured_pair(models=tuple(replace(each, interference=faster) for each in measured_pair().models))
    assert set(taken(pair).values()) == {1.0}
    table = slowdowns_table(with_slowdowns(request(), NAMES, [pair])[1])
    assert table.cells[0][2] == "speed-up 1.25x (1.05 .. 2.00)"
    assert pairs_table([pair]).cells[0][5] == "speed-up 1.25x (1.05 .. 2.00)"


@pytest.mark.parametrize("how", [SAME_UNITS, INTERLEAVED])
def test_models_on_the_same_units_say_nothing_of_parts_that_never_overlap(how: str) -> None:
    assert taken(measured_pair(how=how)) == {}


@pytest.mark.parametrize(
    "shares", [("mps:50", "mps:50"), ("full", "full"), ("no share", "cpu:1"), ("cpu-x:1", "cpu:1")]
)
def test_only_shares_of_the_plans_kind_count(shares: tuple[str, str]) -> None:
    assert taken(at_shares(measured_pair(), *shares)) == {}


def test_which_pairs_count() -> None:
    assert taken(measured_pair(), asked=request(device=limit_type(2))) == {("a", "b"): 1.4, ("b", "a"): 1.02}
    model, other = measured_pair().models
    bubble = measured_pair(models=(model, replace(other, model_name="bubble:32MiB", interference=None)))
    assert taken(bubble, measured_pair(first="a", second="c")) == {}
    itself = measured_pair(first="a", second="a")
    assert taken(itself) == {("a", "a"): 1.4}
    assert taken(itself, asked=request(rate=None)) == {}
    swapped = replace(itself, models=itself.models[::-1])
    assert taken(swapped) == {("a", "a"): 1.4}, "the slower of both"
    names = {"a": "m", "b": "m"}
    measured = with_slowdowns(request(rate=None), names, [measured_pair(first="m", second="m")])[1]
    assert {(each.model, each.beside) for each in measured} == {("a", "b"), ("b", "a")}
