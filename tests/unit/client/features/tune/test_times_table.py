"""Where a model's time goes, and what the log's tables say of speed."""

from dataclasses import replace

import pytest

from fractune.features.log.table import match_table, records_table
from fractune.features.tune.table import doubts, latency_table, result_json, timed_before
from fractune.features.tune.times_table import time_table
from fractune.server.job_status import JobStatus, OperatorMatch, OperatorStatus, ShareResult, job_status
from fractune.text.rendering import Table
from fractune_core.analysis.inside import CallTime, Inside
from fractune_core.analysis.roofline import Arithmetic, Roof
from fractune_core.codec.messages import to_proto
from fractune_core.files.compared import Checked
from fractune_core.jobs import JobSpec, JobState
from fractune_core.pb import fractune_pb2 as pb
from fractune_core.records import UNTUNED, Disturbance, Status
from tests.support.client_results import tuned_job
from tests.support.client_samples import granted, job_script, record

ROOF = Roof(gflops=100.0, gb_per_s=10.0, cache_bytes=1 << 20)
WORK = Arithmetic(flops=1e8, io_bytes=1 << 20)
"""1 ms at the peak"""


def operator(name: str, weight: int, secs: float, work: Arithmetic | None = WORK) -> OperatorStatus:
    return OperatorStatus(name, f"hash of {name}", weight, trials=8, best_s={"cpu:1": secs}, arithmetic=work)


def job(*operators: OperatorStatus, tuned_s: float = 10e-3) -> JobStatus:
    result = ShareResult("cpu:1", granted(), untuned_s=20e-3, tuned_s=tuned_s)
    roofs = {"cpu:1": ROOF}
    spec = JobSpec("", "m.onnx", ("cpu:1",))
    return JobStatus("jobs/j", JobState.DONE, spec, operators=operators, results=(result,), roofs=roofs)


def test_the_heaviest_operators_come_first_then_the_others_and_what_is_left_over() -> None:
    light = [operator(f"light{number}", 1, 0.1e-3) for number in range(5)]
    table = time_table(job(*light, operator("conv", 2, 2e-3), operator("dense", 1, 1.25e-3)), most=2)
    assert table.cells == (
        ("conv", "2", "8", "4.00 ms", "40 %", "50.0", "50 %"),
        ("dense", "1", "8", "1.25 ms", "12 %", "80.0", "80 %"),
        ("5 others", "", "", "500 us", "5 %", "", ""),
        ("rest of the model", "", "", "4.25 ms", "42 %", "", ""),
    )
    assert len(table.rows) == 7
    assert table.rows[0]["secs"] == pytest.approx(4e-3)
    assert table.rows[0]["model_part"] == pytest.approx(0.4)
    assert table.rows[0]["roof_part"] == pytest.approx(0.5)


def test_the_rest_of_a_disturbed_model_is_the_most_that_is_left_over() -> None:
    quiet = job(operator("conv", 2, 2e-3))
    busy = replace(quiet, results=(replace(quiet.results[0], others_cores=0.5),))
    assert time_table(busy).cells[-1][3] == "<= 6.00 ms"
    assert any("0.50 cores at cpu:1" in note for note in time_table(busy).notes)
    assert not any("other programs" in note for note in time_table(quiet).notes)


def test_all_operators_are_shown_unless_few_are_asked_for_and_the_parts_add_up() -> None:
    table = time_table(job(*(operator(f"op{number}", 1, 1e-3) for number in range(9)), tuned_s=12e-3))
    assert len(table.cells) == 10
    assert sum(row["model_part"] for row in table.rows) == pytest.approx(0.75)
    assert table.cells[-1] == ("rest of the model", "", "", "3.00 ms", "25 %", "", "")


def test_what_is_not_known_or_in_doubt_is_not_said() -> None:
    unknown, doubtful = operator("take", 1, 3e-3, work=None), operator("odd", 1, 0.5e-3)
    left_out = replace(operator("left out", 1, 1e-3), selected=False)
    table = time_table(job(unknown, doubtful, left_out))
    assert table.cells[0] == ("take", "1", "8", "3.00 ms", "30 %", "", "")
    assert table.cells[1] == ("odd", "1", "8", "500 us", "5 %", "200", "")
    assert [row["operator"] for row in table.rows] == ["take", "odd"]
    assert table.rows[1]["roof_part"] is None


def test_each_table_gives_the_cause_of_its_empty_column_of_roofs() -> None:
    on_gpu = replace(granted("mps:25", 33), unit="sm")
    near = OperatorMatch(operator("conv", 1, 1e-3), "near", 0.1, "", record())
    exact = replace(near, how="exact")
    gpu, no_roof, doubtful = "of a GPU is not measured", "the log has no roof of these shares", "may stay in the cache"
    small = operator("take", 1, 3e-3, work=None)
    for table, says in (
        (records_table([record(granted=on_gpu)], {}, {}), gpu),
        (records_table([record()], {}, {}), no_roof),
        (records_table([record()], {}, {"aa": ROOF}), doubtful),
        (match_table([replace(exact, record=record(granted=on_gpu))]), gpu),
        (match_table([exact]), no_roof),
        (time_table(job(small)), doubtful),
        (time_table(replace(job(small), roofs={})), no_roof),
    ):
        assert [says in note for note in table.notes] == [True]
    failed = record(status=Status.RUN_TIMEOUT, run_secs=())
    assert match_table([near], ROOF).notes == records_table([failed], {}, {}).notes == ()


def test_operators_that_take_longer_alone_than_the_model_leave_no_rest() -> None:
    table = time_table(job(operator("conv", 1, 12e-3)))
    assert table.cells[-1] == ("rest of the model", "", "", "none", "", "", "")
    assert any(note.startswith("No rest is left where operators take longer alone") for note in table.notes)


def test_a_match_and_a_record_say_how_fast_they_are() -> None:
    measured = record(run_secs=(2e-3,) * 3)
    exact = OperatorMatch(operator("conv", 1, 2e-3), "exact", 0.0, "measured here", measured)
    near = OperatorMatch(operator("conv", 1, 2e-3), "near", 0.1, "measured elsewhere", measured)
    found = match_table([exact, near], ROOF)
    assert [(row["gflops"], row["roof_part"]) for row in found.rows] == [
        (pytest.approx(50.0), pytest.approx(0.5)),
        (None, None),
    ]
    assert "50 %" in found.cells[0]
    failed = record("bb", status=Status.RUN_FAILED, run_secs=())
    told = records_table([measured, failed], {"0123": WORK}, {"aa": ROOF, "bb": ROOF})
    assert [row["roof_part"] for row in told.rows] == [pytest.approx(0.5), None]
    assert told.rows[0]["gflops"] == pytest.approx(50.0)
    assert {**measured.to_json(), **told.rows[0]} == told.rows[0]


def test_each_table_names_the_memory_where_that_is_the_roof() -> None:
    """It is read at 20 GB/s, and the operator reads at half of that."""
    work = Arithmetic(flops=1e6, io_bytes=20_000_000)
    weights = operator("conv", 1, 2e-3, work)
    roof, measured = replace(ROOF, read_gb_per_s=20.0), record(run_secs=(2e-3,) * 3)
    exact = OperatorMatch(weights, "exact", 0.0, "measured here", measured)
    tables = (
        time_table(replace(job(weights), roofs={"cpu:1": roof})),
        match_table([exact], roof),
        records_table([measured], {"0123": work}, {"aa": roof}),
    )
    assert "memory: at cpu:1 it gives reads alone 20.0 GB/s" in tables[0].notes
    assert all("memory 50 %" in each.cells[0] and each.rows[0]["memory_bound"] is True for each in tables)


def test_more_than_the_roof_comes_with_the_reason() -> None:
    fast, slow = record(run_secs=(0.8e-3,) * 3), record("bb", run_secs=(1e-3,) * 3)
    match = OperatorMatch(operator("conv", 1, 0.8e-3), "exact", 0.0, "measured here", fast)
    at_most = OperatorMatch(operator("conv", 1, 1e-3), "exact", 0.0, "measured here", slow)
    above = (
        records_table([fast], {"0123": WORK}, {"aa": ROOF}),
        match_table([match], ROOF),
        time_table(job(operator("conv", 1, 0.8e-3))),
    )
    below = (
        records_table([slow], {"0123": WORK}, {"bb": ROOF}),
        match_table([at_most], ROOF),
        time_table(job(operator("conv", 1, 1e-3))),
    )
    for table in above:
        (note,) = table.notes
        assert note.startswith("More than 100 % of a roof: ")
    assert [table.notes for table in below] == [(), (), ()]


def test_a_record_tells_what_was_lost_and_names_the_untuned_default() -> None:
    disturbance = Disturbance(0.5, 0.1, 0.05, 0.0, 0.02, preemptions=3, throttles=0, throttled_s=0.0)
    told = records_table([record("aa", disturbance=disturbance), record("bb")], {}, {})
    assert [row["lost"] for row in told.rows] == [pytest.approx(0.2), None]
    assert "20.0 %" in told.cells[0]
    assert len(told.columns) == len(told.cells[0])
    told = records_table([record(trace=UNTUNED), record("bb")], {}, {})
    assert [row[2] for row in told.cells] == ["fused_conv2d (untuned)", "fused_conv2d"]


def test_a_match_without_a_record_shows_the_time_of_the_untuned_default_where_it_was_measured() -> None:
    measured, elsewhere = replace(operator("conv", 1, 1.0), untuned_s={"cpu:1": 2e-3}), operator("conv", 1, 1.0)
    found = match_table([OperatorMatch(each, "none", 0.0, "", None) for each in (measured, elsewhere)])
    assert ["2.00 ms" in row for row in found.cells] == [True, False]
    assert [row["untuned_s"] for row in found.rows] == [2e-3, None]


@pytest.mark.parametrize(
    ("implementations", "shown"),
    [
        ({}, "conv"),
        ({"cpu:1": "", "cpu:2": ""}, "conv"),
        ({"cpu:1": "winograd4", "cpu:2": "winograd4"}, "conv (winograd4)"),
        ({"cpu:1": "winograd4", "cpu:2": ""}, "conv (winograd4 at cpu:1)"),
        ({"cpu:1": "winograd4", "cpu:2": "winograd2"}, "conv (winograd2 at cpu:2; winograd4 at cpu:1)"),
    ],
)
def test_an_implementation_stands_behind_the_operator(implementations: dict[str, str], shown: str) -> None:
    best_s = {"cpu:1": 1e-3, "cpu:2": 1e-3}
    conv = replace(operator("conv", 1, 1e-3), best_s=best_s, implementations=implementations)
    table = time_table(job(conv))
    assert table.cells[0][0] == shown
    assert table.rows[0]["implementation"] == implementations.get("cpu:1")


def test_an_alternative_takes_no_time_of_the_model_beside_what_it_replaces() -> None:
    table = time_table(job(operator("conv", 2, 2e-3), operator("attention", 0, 1e-3)))
    assert [cells[0] for cells in table.cells] == ["conv", "rest of the model"]


def inside(conv_s: float, whole_s: float = 10e-3) -> Inside:
    calls = (
        CallTime("conv2d", 2, conv_s, "hash of conv"),
        CallTime("resize", 1, 1e-3),
        CallTime("vm.builtin.alloc_tensor", 30, 0.3e-3),
        CallTime("vm.builtin.reshape", 3, 1e-5),
    )
    return Inside(calls, whole_s, whole_s)


def timed_inside(found: JobStatus, conv_s: float) -> JobStatus:
    return replace(found, results=(replace(found.results[0], inside=inside(conv_s)),))


def test_inside_the_model_every_call_has_a_name_and_nothing_is_left_over() -> None:
    table = time_table(timed_inside(job(operator("conv", 2, 4e-3)), 8.2e-3))
    assert [column.heading for column in table.columns[3:6]] == ["cpu:1 alone", "inside", "part"]
    assert table.cells == (
        ("conv", "2", "8", "8.00 ms", "8.20 ms", "82 %", "25.0", "25 %"),
        ("resize", "", "", "", "1.00 ms", "10 %", "", ""),
        ("between calls", "", "", "", "490 us", "5 %", "", ""),
        ("alloc_tensor", "", "", "", "300 us", "3 %", "", ""),
        ("1 other call", "", "", "", "10.0 us", "0 %", "", ""),
    )
    assert table.rows[0]["inside_s"] == pytest.approx(8.2e-3)


@pytest.mark.parametrize(
    ("inside_s", "roof", "why"),
    [
        (5e-3, ROOF, ""),
        (5.3e-3, Roof(gflops=100.0, gb_per_s=1.0, cache_bytes=1 << 20), "its data comes from memory there"),
        (5.3e-3, ROOF, "the cause is not known"),
    ],
)
def test_an_operator_that_takes_longer_inside_has_a_mark_and_a_cause(inside_s: float, roof: Roof, why: str) -> None:
    """Its data is 1 MiB in each of two runs."""
    known = timed_inside(job(operator("conv", 2, 2e-3)), inside_s)
    table = time_table(replace(known, roofs={"cpu:1": roof}))
    assert table.cells[0][4].endswith("+") == bool(why)
    assert [f"conv at cpu:1 ({why})" in note for note in table.notes if note.startswith("+")] == [True] * bool(why)
    assert table.rows[0]["why_slower"] == why


def test_times_inside_a_disturbed_model_are_too_long_and_that_is_the_cause() -> None:
    quiet = timed_inside(job(operator("conv", 2, 2e-3)), 5.3e-3)
    table = time_table(replace(quiet, results=(replace(quiet.results[0], others_cores=0.5),)))
    assert table.rows[0]["why_slower"] == "other programs had cores meanwhile"
    assert any("inside the model and between its calls may be too long too at cpu:1" in note for note in table.notes)
    assert not any("too long" in note for note in time_table(quiet).notes)


def test_a_tiny_operator_has_no_mark() -> None:
    for inside_s in (0.09e-3, 0.0):
        table = time_table(timed_inside(job(operator("conv", 1, 1e-6)), inside_s))
        assert not table.cells[0][4].endswith("+")
    assert not [note for note in table.notes if note.startswith("+")]


def test_a_share_without_times_inside_keeps_its_rest() -> None:
    known = timed_inside(job(operator("conv", 2, 4e-3)), 8.2e-3)
    unknown = replace(known.results[0], share="cpu:2", inside=None)
    table = time_table(replace(known, results=(known.results[0], unknown)))
    assert [column.heading for column in table.columns].count("inside") == 1
    assert table.cells[-1][:8] == ("rest of the model", "", "", "", "", "", "", "")
    assert table.cells[-1][8] == "10.0 ms"


def test_a_match_shows_the_time_inside_of_the_very_schedule_beside_its_time_alone() -> None:
    conv = operator("conv", 2, 2e-3, Arithmetic(1e8, 20 << 20))
    match = OperatorMatch(conv, "exact", 0.0, "measured here", record(candidate_id="c1", run_secs=(2e-3,) * 3))
    default = OperatorMatch(replace(operator("pool", 1, 1.0), untuned_s={"cpu:1": 1e-3}), "none", 0.0, "", None)

    def shown(conv_s: float, candidate: str = "c1") -> Table:
        calls = (
            CallTime("conv2d", 2, conv_s, conv.workload_hash, candidate),
            CallTime("pool", 1, 1.1e-3, default.operator.workload_hash),
        )
        return match_table([match, default], ROOF, Inside(calls, 10e-3, 10e-3))

    table = shown(5.4e-3)
    assert [column.heading for column in table.columns[3:5]] == ["alone", "inside"]
    assert [cells[3:5] for cells in table.cells] == [("2.00 ms", "2.70 ms+"), ("1.00 ms", "1.10 ms")]
    assert [row["inside_s"] for row in table.rows] == pytest.approx([5.4e-3, 1.1e-3]), "of all runs"
    assert [row["why_slower"] for row in table.rows] == ["its data comes from memory there", ""]
    assert table.notes[-1].endswith("conv (its data comes from memory there)")
    assert shown(9e-3).rows[0]["why_slower"] == "the cause is not known"
    assert "inside" in [column.heading for column in shown(5e-3).columns]
    older = shown(9e-3, candidate="c0")
    assert [row["inside_s"] for row in older.rows] == [None, pytest.approx(1.1e-3)]
    assert (older.cells[0][4], older.rows[0]["why_slower"]) == ("-", "")
    assert "inside" not in [column.heading for column in match_table([match, default], ROOF).columns]


def test_a_schedule_of_another_share_has_no_time_alone_to_be_slower_than() -> None:
    conv = operator("conv", 1, 2e-3)
    near = OperatorMatch(conv, "near", 0.1, "", record(candidate_id="c1", run_secs=(2e-3,) * 3))
    table = match_table([near], ROOF, Inside((CallTime("conv2d", 1, 9e-3, conv.workload_hash, "c1"),), 10e-3, 10e-3))
    assert table.cells[0][4] == "9.00 ms"
    assert table.notes == ()


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
