"""What is said of a finished job's times."""

from __future__ import annotations

from dataclasses import replace

from fractune.features.tune.table import doubts, latency_table, result_json, timed_before
from fractune.server.job_status import job_status
from fractune_core.codec.messages import to_proto
from fractune_core.files.checked import Checked
from fractune_core.pb import fractune_pb2 as pb
from tests.support.client_results import tuned_job
from tests.support.client_samples import job_script


def test_outputs_that_are_far_from_the_untuned_ones_are_pointed_out() -> None:
    job = job_script()[-1]
    assert doubts(job_status(job)) == []
    job.result.shares[1].max_error["cpu:2"] = 1.4e-2
    (line,) = doubts(job_status(job))
    assert line.startswith("note: at cpu:2 the outputs differ from the untuned model's by 1.4e-02")
    job.notes.append("outputs equal those that a note names")
    assert doubts(job_status(job)) == [line]
    job.checked.reason = "no other runtime is installed"
    assert doubts(job_status(job)) == [line]
    job.checked.CopyFrom(to_proto(Checked("ONNX Runtime", {"random": 1e-2}), pb.Checked))
    assert doubts(job_status(job)) == []


def test_an_untuned_time_that_is_a_sum_is_called_so() -> None:
    job = job_script()[-1]
    assert [each["untuned_summed"] for each in result_json(job_status(job), "b")["shares"]] == [False, False]
    del job.result.shares[1].run_secs["untuned"], job.result.shares[1].max_error["untuned"]
    job.result.shares[1].others_cores = 0.8
    table = latency_table(job_status(job))
    assert [row[2] for row in table.cells] == ["4.00 ms", "3.00 ms"], "the operators were timed before"
    line = table.notes[0]
    assert line.startswith("note: at cpu:2 the untuned time is the sum of its operators' times: ")
    assert [each["untuned_summed"] for each in result_json(job_status(job), "b")["shares"]] == [False, True]


def test_latencies_that_an_earlier_job_measured_are_called_so() -> None:
    job = job_script()[-1]
    assert latency_table(job_status(job)).notes == ()
    for share in job.result.shares:
        share.earlier_job = "jobs/j0"
        share.time.FromSeconds(1_700_000_000)
    (line,) = latency_table(job_status(job)).notes
    assert "at cpu:1, cpu:2 are from jobs/j0, which timed this very bundle on 2023-11-14 22:13 UTC" in line
    assert line.endswith("; 'fractune run BUNDLE --share cpu:1' times it now")
    limited = job_status(job)
    at_limit = replace(limited.results[0], share="cpu:1500m")
    (line,) = timed_before(replace(limited, results=(at_limit,)))
    assert line.endswith("; 'fractune run BUNDLE' in a container with the limit cpu:1500m times it now")
    told = result_json(job_status(job), "b")["shares"]
    assert [(each["timed_by"], each["timed_at"]) for each in told] == [("jobs/j0", 1_700_000_000.0)] * 2


def test_times_of_tiny_models_say_that_a_call_takes_longer() -> None:
    job = job_script()[-1]
    for share in job.result.shares:
        share.tuned_s = 5e-6
    (line,) = latency_table(job_status(job)).notes
    assert "a call from Python adds some microseconds" in line


def test_latencies_at_30_percent_load_are_of_the_best_for_requests() -> None:
    job = tuned_job()
    table = latency_table(job)
    assert [row[5] for row in table.cells] == ["4.69 ms / 5.98 ms"] * 4
    assert table.notes[0] == (
        "note: at cpu:1 'fractune.load' takes 'robust' (made for all shares) with 1 thread: p50 / p99 at 30 % load "
        "4.69 ms / 5.98 ms, with 'cpu:1' with 1 thread 5.30 ms / 6.76 ms"
    )
    told = result_json(job, "b")["shares"][1]
    assert [(each["variant"], each["threads"], len(each["latency_secs"])) for each in told["at_load"]] == [
        ("cpu:2", 2, 110),
        ("robust", 1, 110),
    ]
    assert {goal: best["variant"] for goal, best in told["served"].items()} == {
        "latency": "robust",
        "throughput": "cpu:2",
    }


def test_a_model_without_latencies_at_load_has_a_dash() -> None:
    job = job_status(job_script()[-1])
    assert [row[5] for row in latency_table(job).cells] == ["-", "-"]
    assert result_json(job, "b")["shares"][0]["served"] == {}


def test_times_of_a_busy_machine_choose_nothing() -> None:
    job = tuned_job()
    busy = replace(job, results=(replace(job.results[0], others_cores=0.75),))
    table = latency_table(busy)
    assert table.cells[0][2:6] == ("<= 12.4 ms", "<= 4.31 ms", "2.88x", "<= 5.30 ms / <= 6.76 ms")
    (note,) = table.notes
    assert note == (
        "note: <= marks times that are too long: other programs had 0.75 cores at cpu:1 while the model was timed. "
        "These times choose nothing, and intervals reach down to what the lost cores alone explain; repeat the command "
        "on a quieter machine"
    )
    found = result_json(busy, "b")["shares"][0]
    assert (found["served"], found["others_cores"], found["disturbed"]) == ({}, 0.75, True)


def test_no_table_is_titled_alone_that_was_not() -> None:
    job = tuned_job()
    busy = replace(job, results=(job.results[0], replace(job.results[1], others_cores=0.75)))
    assert latency_table(job).title.endswith(".onnx: latency, measured alone")
    assert latency_table(busy).title.endswith(".onnx: latency")
    assert [row[3].startswith("<= ") for row in latency_table(busy).cells] == [False, True]
