"""Which models are tuned again, and in which order."""

import json
from dataclasses import replace
from typing import Any

import pytest

from fractune.cli import main
from fractune.features.retune import Known, Retuned, RetuneResult, known_models, spec_of
from fractune.server.job_status import JobStatus
from fractune_core.jobs import JobSpec, JobState
from fractune_core.pb import fractune_pb2 as pb
from tests.support.client_results import tuned_job
from tests.support.client_samples import job_script
from tests.support.processes.scripted_server import ScriptedServer


def job(name: str, model: str, created_at: float, state: JobState = JobState.DONE, **changes: Any) -> JobStatus:
    spec = JobSpec(model, f"{model}.onnx", ("cpu:1",), **changes)
    return JobStatus(f"jobs/{name}", state, spec, created_at=created_at)


def test_models_with_the_most_jobs_come_first_then_the_newest() -> None:
    jobs = [
        job("6", "new", 6.0),
        job("5", "often", 5.0),
        job("4", "open", 4.0, JobState.TUNING),
        job("3", "often", 3.0, inputs={"x": [1, 8]}),
        job("2", "often", 2.0),
        job("1", "old", 1.0),
    ]
    known = known_models(jobs)
    assert [(each.latest.name, each.jobs) for each in known] == [
        ("jobs/5", 2),
        ("jobs/6", 1),
        ("jobs/3", 1),
        ("jobs/1", 1),
    ]
    assert [each.latest.name for each in known_models(jobs, "OLD")] == ["jobs/1"]


def test_a_new_job_has_the_inputs_and_options_of_the_latest_and_the_budget_that_is_given() -> None:
    latest = job("1", "a" * 64, 1.0, inputs={"x": [1, 8]}, only="conv", exact=True, namespace="n", target="llvm")
    spec = spec_of(latest, JobSpec.requested("", "cpu:1,cpu:2", trials=7, priority="low"))
    assert (spec.model, spec.model_name, spec.inputs) == ("a" * 64, latest.model_name, {"x": [1, 8]})
    assert (spec.only, spec.exact, spec.namespace, spec.target) == ("conv", True, "n", "llvm")
    assert (spec.shares, spec.trials, spec.priority) == (("cpu:1", "cpu:2"), 7, -1)


def test_a_model_that_fails_is_a_row_with_the_reason() -> None:
    known = Known(job("1", "m", 1.0, inputs={"x": [1, 8]}), 2)
    table = RetuneResult((Retuned(known, error="the file is gone"),)).table
    assert table.cells[0][:3] == ("m.onnx (x 1x8)", "2", "the file is gone")
    assert table.rows[0] == {
        "model": "models/m",
        "model_name": "m.onnx",
        "inputs": {"x": [1, 8]},
        "jobs_before": 2,
        "job": None,
        "error": "the file is gone",
    }


def test_the_command_lists_the_models_and_asks_for_jobs(
    server: ScriptedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.script = job_script()[-1:]
    given = ["retune", "--shares", "cpu:1,cpu:2", "--server", server.address, "--json"]
    assert main([*given, "--dry-run"]) == 0
    assert server.specs == []
    assert main([*given, "--trials", "3"]) == 0
    (spec,) = server.specs
    assert (list(spec.shares), spec.trials, spec.priority) == (["cpu:1", "cpu:2"], 3, -1)
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each["job"] for each in rows if each["event"] == "retuned"] == [None, "jobs/j1", "jobs/j1"]
    assert main([*given, "--models", "nothing"]) == 2
    assert "knows no model called nothing that was tuned; tune one first" in capsys.readouterr().err
    assert main([*given, "--models", "nothing", "--limit", "1"]) == 2
    assert "that was tuned in its newest 1 jobs; raise --limit, or tune one first" in capsys.readouterr().err


def test_models_of_another_device_or_version_are_tuned_again(
    server: ScriptedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.script = job_script()[-1:]
    server.records = [pb.Record(versions={"tvm": "0.26.1"})]
    given = ["retune", "--shares", "cpu:1", "--dry-run", "--json", "--server", server.address]
    assert main([*given, "--device", "rocketlake", "--tvm", "0.26"]) == 0
    (asked,) = server.filters
    assert (asked.model, asked.device) == ("models/ab", "rocketlake")
    assert [json.loads(line)["model_name"] for line in capsys.readouterr().out.splitlines()] == ["m.onnx"]
    assert main([*given, "--tvm", "0.2"]) == 2
    assert "none of the 1 known models was measured by TVM 0.2; " in capsys.readouterr().err
    server.records = []
    assert main([*given, "--device", "zen5"]) == 2
    assert "none of the 1 known models was measured on zen5; " in capsys.readouterr().err


def test_a_disturbed_time_is_marked() -> None:
    done = tuned_job()
    busy = replace(done, results=(replace(done.results[0], others_cores=0.8), *done.results[1:]))
    table = RetuneResult((Retuned(Known(done, 1), busy),)).table
    assert [row[5][:3] == "<= " for row in table.cells][:2] == [True, False]
    assert [row["disturbed"] for row in table.rows][:2] == [True, False]
    assert any("0.80 cores at cpu:1" in note for note in table.notes)
