"""A stored job as callers see it."""

from __future__ import annotations

import time

from fractune.server.job_status import job_status
from fractune_core.analysis.validated import ValidatedRecords
from fractune_core.jobs import JobSpec, JobState
from fractune_server.services.jobs import job_to_proto
from fractune_server.store.stored_job import Progress, StoredJob, StoredOperator
from tests.support.samples import DEVICE, TARGET_KEY, granted, validation


def test_an_operator_names_the_implementation_of_its_best_time_at_each_share() -> None:
    shares = {f"cpu:{units}": granted(units) for units in (1, 2, 4)}
    spec = JobSpec(model="0" * 64, model_name="m.onnx", shares=tuple(shares))
    now = time.time()
    job = StoredJob("j1", spec, now, DEVICE, shares, "", JobState.DONE, ended_at=now, target_key=TARGET_KEY)
    best_s = {"cpu:1": 1.0, "cpu:2": 2.0, "cpu:4": 3.0}
    operators = [StoredOperator(name, name, 1, selected=True, best_s=best_s) for name in ("conv", "unknown")]
    records = (
        validation("winograd4:[]", 1, 1.0),
        validation("[]", 1, 2.0),
        validation("[]", 2, 2.0),
        validation("winograd4:[]", 4, 1.0),
    )
    shown = job_to_proto(job, operators, validated={"conv": ValidatedRecords(records)})
    found = [dict(operator.implementations) for operator in shown.operators]
    assert found == [{"cpu:1": "winograd4", "cpu:2": ""}, {}]


def test_without_a_run_the_untuned_time_is_that_of_its_operators() -> None:
    spec = JobSpec(model="0" * 64, model_name="m.onnx", shares=("cpu:1",))
    job = StoredJob("j1", spec, 1.0, DEVICE, {"cpu:1": granted(1)}, "", JobState.DONE, ended_at=9.0)
    timing = {"granted": granted(1).to_json(), "run_secs": {"cpu:1": [0.1, 0.3, 0.2]}, "max_error": {}, "at_load": []}
    facts = {"untuned_sum_s": 18.0, "job": "j1", "timed_at": 9.0, "others_cores": 0.0, "inside": None}
    job.timings = {"cpu:1": timing | facts}
    (shown,) = job_status(job_to_proto(job, [])).results
    assert (shown.untuned_s, shown.tuned_s, shown.is_untuned_summed) == (18.0, 0.2, True)


def test_a_job_without_a_search_has_no_rate() -> None:
    """Trials of another job were shared with it while it validated."""
    spec = JobSpec(model="0" * 64, model_name="m.onnx", shares=("cpu:1",))
    job = StoredJob("j1", spec, 1.0, DEVICE, {"cpu:1": granted(1)}, "", JobState.DONE, ended_at=9.0)
    job.tuning_began, job.tuning_ended, job.progress = 2.0, 2.0001, Progress(shared=39)
    assert job_to_proto(job, []).progress.trials_per_s == 0.0
    job.tuning_ended = 5.0
    assert job_to_proto(job, []).progress.trials_per_s == 13.0
