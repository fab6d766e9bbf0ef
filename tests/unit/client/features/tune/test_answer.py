"""The answer of a tuning: its first line, its table, and how long the end of `tune` is."""

from dataclasses import replace
from pathlib import Path

import pytest

from fractune.cli.commands.models.tune import _print
from fractune.features.compete.results import CompeteResult, Contest
from fractune.features.tune import tune
from fractune.features.tune.answer import Answer, Row, answer_json, answer_of, search_text
from fractune.features.tune.bundle import BundleFile
from fractune.features.tune.result import TuneResult
from fractune.server.job_status import JobProgress, JobStatus, OperatorStatus, ShareResult
from fractune.server.pace import Pace
from fractune_core.analysis.model_times import RuntimeTime
from fractune_core.analysis.roofline import Arithmetic, Roof
from fractune_core.analysis.slowdown_ci import Estimate
from fractune_core.errors import BadRequest
from fractune_core.files.compared import Compared, Timed
from fractune_core.jobs import JobSpec, JobState
from tests.support.client_results import goal, tuned_job
from tests.support.client_samples import bundle_bytes, granted
from tests.support.processes.cli_process import write_model


def result(share: str, units: int, tuned_s: float, others_cores: float = 0.0) -> ShareResult:
    return ShareResult(share, granted(share, units), untuned_s=0.1, tuned_s=tuned_s, others_cores=others_cores)


def job(*results: ShareResult, progress: JobProgress | None = None, sums: Pace | None = None) -> JobStatus:
    spec = JobSpec("ab" * 32, "m.onnx", tuple(each.share for each in results))
    progress = progress or JobProgress(trials_planned=256, candidates_done=256)
    return JobStatus("jobs/j", JobState.DONE, spec, progress, results=results, wall_s=80.0, pace=sums or Pace())


def time(share: str, ratio: float, runtime: str = "onnxruntime", paced: float | None = None) -> RuntimeTime:
    """A runtime that takes 10 ms; the bundle takes `ratio` of it, and 3 % more or less."""

    def around(middle: float) -> Estimate:
        return Estimate(middle, middle - 0.03, middle + 0.03)

    paced = ratio if paced is None else paced
    secs = (10e-3, 10e-3, ratio * 10e-3, paced * 10e-3)
    return RuntimeTime("0" * 8, "ab" * 32, {}, share, runtime, "1.31", *secs, around(ratio), around(paced), "here", 1.0)


def test_the_first_line_has_the_ratio_the_share_to_use_and_whether_to_search_on() -> None:
    pace = Pace(sums=[(10, {"cpu:1": 8e-3, "cpu:2": 8e-3}), (240, {"cpu:1": 7.976e-3, "cpu:2": 8e-3})])
    both = job(result("cpu:1", 1, 8e-3), result("cpu:2", 2, 7e-3), sums=pace)
    assert answer_of(both, [time("cpu:1", 0.79), time("cpu:2", 0.72)]).line == (
        "0.79 (0.76 .. 0.82) of ONNX Runtime's time at cpu:1, 0.72 (0.69 .. 0.75) at cpu:2; "
        "use cpu:1: cpu:2 is only 1.1x as fast; more trials are not worth it: the last 64 gained 0.3 %"
    )


def test_a_share_where_onnx_runtime_serves_counts_with_its_time() -> None:
    both = job(result("cpu:1", 1, 18e-3), result("cpu:2", 2, 7e-3))
    answer = answer_of(both, [time("cpu:1", 1.8), time("cpu:2", 0.5)])
    assert answer.line.startswith(
        "1.80 (1.77 .. 1.83) of ONNX Runtime's time at cpu:1 (ONNX Runtime is faster there), 0.50 (0.47 .. 0.53) at "
        "cpu:2; use cpu:2: it is 2.0x as fast as cpu:1"
    )
    assert [cells[-1] for cells in answer.table.cells] == ["onnxruntime", "fractune"]


@pytest.mark.parametrize(
    ("secs", "says"),
    [
        ((8e-3, 4e-3, 3.9e-3), "use cpu:2: cpu:4 is only 1.0x as fast"),
        ((8e-3, 4e-3, 2.2e-3), "use cpu:4: it is 3.6x as fast as cpu:1"),
        ((8e-3, 9e-3, 9e-3), "use cpu:1: cpu:2 is 0.9x as fast"),
    ],
)
def test_the_share_to_use_is_the_largest_whose_cores_all_pay(secs: tuple[float, ...], says: str) -> None:
    found = job(*(result(f"cpu:{units}", units, each) for units, each in zip((1, 2, 4), secs, strict=True)))
    assert answer_of(found).line.endswith(f"; {says}")


def test_disturbed_times_and_a_single_share_choose_none() -> None:
    disturbed = job(result("cpu:1", 1, 8e-3), result("cpu:2", 2, 4e-3, others_cores=0.5))
    for each in (disturbed, job(result("cpu:1", 1, 8e-3))):
        assert "use cpu" not in answer_of(each).line
    assert "<= 4.00 ms" in str(answer_of(disturbed).table)
    assert answer_of(disturbed).line.startswith("8.00 ms at cpu:1, <= 4.00 ms at cpu:2")


def with_operators(job: JobStatus, part_of_roof: float) -> JobStatus:
    """Two operators that reach this part of the roof of cpu:1."""
    work = Arithmetic(2e7, 1 << 20)
    found = tuple(
        OperatorStatus(name, name, 1, best_s={"cpu:1": 1e-3 / part_of_roof}, arithmetic=work) for name in ("a", "b")
    )
    return replace(job, operators=found, roofs={"cpu:1": Roof(20.0, 10.0, 1 << 25)})


@pytest.mark.parametrize(
    ("done", "gain", "part_of_roof", "says"),
    [
        (256, 0.2, 0.95, "more trials are not worth it: the operators are within 5 % of what the processor allows"),
        (256, 0.2, 0.5, "more trials may pay: the last 64 gained 20.0 %"),
        (256, 0.002, 0.5, "more trials are not worth it: the last 64 gained 0.2 %"),
        (40, 0.2, 0.5, "more trials may pay: the last 10 gained 20.0 %"),
        (20, 0.2, 0.5, "whether more trials would pay is not known: too few were new"),
        (0, 0.2, 0.5, "whether more trials would pay is not known: none was new"),
    ],
)
def test_more_trials_pay_if_the_last_ones_did_and_the_processor_allows_more(
    done: int, gain: float, part_of_roof: float, says: str
) -> None:
    pace = Pace(sums=[(1, {"cpu:1": 1.0}), (max(done - 1, 1), {"cpu:1": 1.0 - gain})])
    progress = JobProgress(trials_planned=done, candidates_done=done)
    found = job(result("cpu:1", 1, 5e-3), progress=progress, sums=pace)
    assert search_text(with_operators(found, part_of_roof)) == says
    not_followed = search_text(replace(found, pace=Pace()))
    assert not_followed == ("" if done else says)


def test_what_was_not_compared_has_its_reason_on_a_line() -> None:
    answer = answer_of(job(result("cpu:1", 1, 8e-3)), not_compared="the model is not an ONNX file")
    assert answer.lines[1:] == ["not compared with ONNX Runtime: the model is not an ONNX file"]
    assert answer.line == "8.00 ms at cpu:1"
    assert [column.heading for column in answer.table.columns] == [
        *("share", "this bundle", "p50 / p99 at 30 % load", "fastest"),
    ]
    assert answer_json(answer) == {
        "answer": answer.line,
        "not_compared": "the model is not an ONNX file",
        "gained": None,
    }


def test_what_one_variant_loses_within_a_range_has_a_line() -> None:
    secs = {
        "cpu:1": {"cpu:1": (1e-3,) * 9, "cpu:2": (2e-3,) * 9},
        "cpu:2": {"cpu:1": (1.1e-3,) * 9, "cpu:2": (1e-3,) * 9},
    }
    results = [replace(result(share, int(share[-1]), 1e-3), run_secs=secs[share]) for share in secs]
    both = job(*results)
    ranged = replace(both, spec=replace(both.spec, shares=("cpu:1..2",)))
    assert (
        answer_of(ranged)
        .lines[1]
        .startswith("one variant for all of cpu:1..2: the schedules tuned on 1 core lose at most 10 % ± ")
    )
    assert len(answer_of(both).lines) == 1


def test_each_runtime_has_its_columns_and_goals_may_have_their_own_server() -> None:
    times = (time("cpu:1", 0.9, paced=1.2), time("cpu:1", 0.8, "openvino"))
    row = Row("cpu:1", "", job(result("cpu:1", 1, 8e-3)), times)
    (cells,) = answer_of(row.job or job(), times).table.cells
    assert cells == (
        *("cpu:1", "9.00 ms", "10.0 ms", "0.90 (0.87 .. 0.93)", "1.20 (1.17 .. 1.23)"),
        *("10.0 ms", "0.80 (0.77 .. 0.83)", "0.80 (0.77 .. 0.83)", "-", "fractune in a loop, onnxruntime paced"),
    )


@pytest.fixture
def bundle(tmp_path: Path) -> BundleFile:
    path = tmp_path / "m.fractune"
    path.write_bytes(bundle_bytes())
    return BundleFile(path, "jobs/j")


def test_the_end_of_a_tuning_has_at_most_25_lines(
    bundle: BundleFile, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """60 operators at 24 shares, every note that there is, and a goal that was not reached."""
    one = tuned_job()
    many = tuple(
        replace(each, share=f"cpu:{number + 1}", granted=granted(f"cpu:{number + 1}", number + 1), tuned_s=5e-6)
        for number, each in enumerate(one.results * 6)
    )
    noisy = tuple(
        replace(each, others_cores=0.5 * (number % 2), earlier_job="jobs/before", max_error={each.share: 0.1})
        for number, each in enumerate(many)
    )
    found = replace(one, results=noisy, operators=one.operators * 5, notes=tuple(f"note {at}" for at in range(9)))
    monkeypatch.setattr(CompeteResult, "measured", lambda _: [time(each.share, 0.8) for each in noisy])
    _print(TuneResult(found, bundle, goal=goal(), competed=CompeteResult(bundle.path, ())))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 25
    assert lines[0].startswith("0.80 (0.77 .. 0.83) of ONNX Runtime's time at cpu:1, 0.80 ")
    assert "14 more rows: --verbose or --json has all" in lines
    assert lines[-1] == f"bundle: {bundle.path}"


def test_a_goal_that_was_reached_has_the_times_of_its_last_step(bundle: BundleFile) -> None:
    reached = TuneResult(tuned_job(), bundle, goal=goal())
    line = reached.answer.line
    assert line.startswith("2.04 (1.70 .. 2.40) of ONNX Runtime's time at cpu:1 (ONNX Runtime is faster there), 2.04 ")
    assert ", 1 more in the table; use cpu:1: cpu:2 is only 1.0x as fast" in line
    assert len(reached.answer.rows) == 4
    assert all(row.times for row in reached.answer.rows)


@pytest.mark.parametrize(
    ("file", "shares", "server", "installed", "why_not"),
    [
        ("m.onnx", "cpu:1,cpu:1500m", None, True, ""),
        ("m.onnx", "cpu:1", None, False, "it is not installed here; install it by 'pip install onnxruntime'"),
        ("m.json", "cpu:1", None, True, "the model is not an ONNX file"),
        ("m.onnx", "mps:25", None, True, "it is timed at shares of whole CPU cores, such as cpu:1"),
        ("m.onnx", "cpu:1500m", None, True, "it is timed at shares of whole CPU cores, such as cpu:1"),
        (
            "m.onnx",
            "cpu:1",
            "tuner:50051",
            True,
            "the job runs on tuner:50051; 'fractune compete BUNDLE",
        ),
    ],
)
def test_onnx_runtime_is_timed_where_it_can_be_else_the_reason_is_known(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    file: str,
    shares: str,
    server: str | None,
    *,
    installed: bool,
    why_not: str,
) -> None:
    model = tmp_path / file
    model.write_bytes(write_model(tmp_path / "w.onnx").read_bytes() if file.endswith("onnx") else b"{}")
    monkeypatch.setattr(tune, "installed_runtimes", lambda: ["onnxruntime"] * installed)
    contenders, found = tune._contenders(None, model, shares, server)
    assert contenders == ([] if why_not else ["onnxruntime"])
    assert found.startswith(why_not)
    assert bool(found) is bool(why_not)
    assert tune._contenders("none", model, shares, server) == ([], "")


def test_a_runtime_that_is_named_must_be_one_that_can_be_timed(tmp_path: Path) -> None:
    for shares, server, says in (
        ("cpu:1", "tuner:1", "and the job runs"),
        ("mps:25", None, "whole CPU"),
    ):
        with pytest.raises(BadRequest, match=says):
            tune._contenders("onnxruntime", tmp_path, shares, server)


def test_the_bundle_names_the_runtimes_by_which_it_runs_the_model(bundle: BundleFile) -> None:
    def contest(share: str, ratio: float, shape: str = "") -> Contest:
        around = (ratio, ratio - 0.1, ratio + 0.1)
        times = {"fractune": Timed(ratio, ratio), "onnxruntime": Timed(1.0, 1.0, around, around, 0.0)}
        return Contest(shape, share, Compared(times))

    found = CompeteResult(bundle.path, (contest("cpu:1", 0.8), contest("cpu:2", 1.5), contest("cpu:4", 1.2)))
    assert found.served == "onnxruntime at cpu:2, cpu:4"
    assert CompeteResult(bundle.path, (contest("cpu:1", 0.8),)).served == ""
    shaped = (contest("cpu:1", 1.5, "up to length 17"), contest("cpu:2", 1.2, "length 64"))
    served = "onnxruntime for up to length 17 at cpu:1, for length 64 at cpu:2"
    assert CompeteResult(bundle.path, shaped).served == served


def test_several_jobs_are_counted_together() -> None:
    phases_s = {"queued": 0.01, "tuning": 20.5, "compiling": 59.5}
    progress = JobProgress(candidates_done=5, failures={"run_timeout": 1}, phases_s=phases_s)
    one = job(result("cpu:1", 1, 8e-3), progress=progress)
    assert (
        Answer(one, ()).spent == "5 of 0 new trials (256 requested), failed: run_timeout 1; "
        "took 1 min 20 s: tuning 20.5 s, compiling 59.5 s"
    )
    assert (
        Answer(one, (), (one, one)).spent == "10 new trials in 2 jobs, failed: run_timeout 2; "
        "took 2 min 40 s: tuning 41.0 s, compiling 119.0 s"
    )
