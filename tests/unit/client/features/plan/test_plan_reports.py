"""Plans as people see them: tables, JSON, and a picture."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import fractune
from fractune.errors import BadRequest

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
