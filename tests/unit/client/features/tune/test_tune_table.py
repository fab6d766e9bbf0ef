"""What is said of a finished job's times."""

from __future__ import annotations

from fractune.features.tune.table import doubts, latency_table, result_json
from fractune.server.job_status import job_status
from tests.support.client_samples import job_script


def test_outputs_that_are_far_from_the_untuned_ones_are_pointed_out() -> None:
    job = job_script()[-1]
    assert doubts(job_status(job)) == []
    job.result.shares[1].max_error["cpu:2"] = 1.4e-2
    (line,) = doubts(job_status(job))
    assert line.startswith("note: at cpu:2 the outputs differ from the untuned model's by 1.4e-02")


def test_latencies_that_an_earlier_job_measured_are_called_so() -> None:
    job = job_script()[-1]
    assert latency_table(job_status(job)).notes == ()
    for share in job.result.shares:
        share.earlier_job = "jobs/j0"
        share.time.FromSeconds(1_700_000_000)
    (line,) = latency_table(job_status(job)).notes
    assert "at cpu:1, cpu:2 are from jobs/j0, which timed this very bundle on 2023-11-14 22:13 UTC" in line
    told = result_json(job_status(job), "b")["shares"]
    assert [(each["timed_by"], each["timed_at"]) for each in told] == [("jobs/j0", 1_700_000_000.0)] * 2


def test_times_of_tiny_models_say_that_a_call_takes_longer() -> None:
    job = job_script()[-1]
    for share in job.result.shares:
        share.tuned_s = 5e-6
    (line,) = latency_table(job_status(job)).notes
    assert "a call from Python adds some microseconds" in line
