"""How a running job is shown: four live lines, plain lines and events."""

import io
import json
import sys
from dataclasses import replace

import pytest
from rich.console import Console

from fractune.cli.commands.jobs import _job_cells, job_json
from fractune.cli.printing import JsonView, print_details, progress_json
from fractune.features.goal import Goal, GoalStep, PeerTiming, SideBySide, goal_news
from fractune.features.tune.table import result_json
from fractune.server.job_status import JobProgress, JobStatus, OperatorStatus, job_status
from fractune.server.pace import Pace
from fractune.sessions.progress import LineView, LiveView, live_lines, status_text
from fractune_core.jobs import JobSpec, JobState
from tests.support.client_samples import job_script


def test_four_lines_have_the_best_the_trials_the_time_left_and_what_is_awaited() -> None:
    queued, waiting, tuning, _ = map(job_status, job_script())
    assert live_lines(queued) == [
        "m.onnx: best so far: not every operator has a time yet",
        "0 of 8 new trials (256 requested)",
        "time left: not known yet",
        "queued",
    ]
    pace = Pace(sums=[(1, {"cpu:1": 3e-3 * 3, "cpu:2": 1e-3 * 3})])
    assert live_lines(waiting.followed(pace)) == [
        "m.onnx: best so far: 1.50x at cpu:1, 1.00x at cpu:2 over the first candidates",
        "2 of 8 new trials (256 requested), 2.0 trials/s, failed: run_timeout 1",
        "at least 12 s left",
        "waiting for a worker: role build",
    ]
    best, *_, work = live_lines(tuning, "shape 1 of 2", {"cpu:1": 8e-3, "cpu:2": 2e-3})
    assert best == "m.onnx: best so far: all operators take 0.75 at cpu:1, 1.50 at cpu:2 of ONNX Runtime's time"
    assert work == "shape 1 of 2; tuning"


def test_what_the_log_knows_of_onnx_runtime_is_the_measure() -> None:
    job = replace(job_status(job_script()[1]), pace=Pace(peer_s={"cpu:1": 12e-3, "cpu:2": 12e-3}))
    assert "take 0.50 at cpu:1, 0.25 at cpu:2 of ONNX" in live_lines(job)[0]


SPEC = JobSpec("", "m.onnx", ("cpu:1",))
HOSTILE = "[/b, 64] [batch, 64] \x1b]0;owned\x07"
SHOWN = "[/b, 64] [batch, 64] \\x1b]0;owned\\x07"


def test_what_a_model_or_a_worker_says_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    """No markup, nothing that a terminal acts on."""
    job = job_script()[2]
    job.model_display_name = job.operators[0].display_name = HOSTILE
    job.notes.append(HOSTILE)
    job.progress.failures[HOSTILE] = 1
    console = Console(width=400, record=True, file=sys.stderr, force_terminal=True, color_system=None)
    with LiveView(console) as view:
        view.show(job_status(job))
    assert console.export_text().count(SHOWN) == 4, "twice, because the last one stays until the end"
    LineView().show(job_status(job))
    said = capsys.readouterr()
    assert said.out.count(SHOWN) == 2
    assert "\x1b]0;" not in said.out + said.err


def test_what_other_jobs_asked_for_is_shown_as_shared(capsys: pytest.CaptureFixture[str]) -> None:
    script = job_script()
    for job in script:
        job.progress.candidates_shared = 3
    tuning, done = job_status(script[1]), job_status(script[-1])
    assert status_text(tuning).startswith("tuning, 5 of 8 new trials (256 requested), 3 shared, 2.0 trials/s")
    assert tuning.time_left is not None
    assert tuning.time_left.secs == 1.5 + 2 + 3.25 + 4, "the search, validation, compilation, timing"
    assert job_json(tuning)["candidates_shared"] == progress_json(tuning)["candidates_shared"] == 3
    assert result_json(done, "")["trials_shared"] == 3
    print_details(done)
    assert "shared: 3 more trials, which other jobs requested\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("state", "planned", "line"),
    [
        (JobState.QUEUED, 0, "queued"),
        (JobState.INGESTING, 0, "ingesting: splitting the model into operators"),
        (JobState.TUNING, 0, "tuning, no new trials"),
        (JobState.TUNING, 256, "tuning, 0 of 256 new trials"),
        (JobState.TIMING, 256, "timing the whole model, at least 2 s left"),
        (JobState.DONE, 256, "done, 0 of 256 new trials"),
    ],
)
def test_a_status_names_the_work_and_no_trials_before_they_are_planned(
    state: JobState, planned: int, line: str
) -> None:
    job = JobStatus("jobs/j1", state, SPEC, JobProgress(trials_planned=planned))
    assert status_text(job) == line
    assert ("0/0" in str(_job_cells(job)), "-" in _job_cells(job)) == (False, not planned)


def test_a_goal_is_shown_as_lines_and_as_events(capsys: pytest.CaptureFixture[str]) -> None:
    paced = SideBySide((3e-3,) * 6, (1e-3,) * 6)
    timing = PeerTiming((2e-3,) * 6, (1e-3,) * 6, paced, "cpu:1", "cpu:1", None, 1e-6, outputs_agree=True)
    known = Goal("onnxruntime", "1.31", 0.0, {"cpu:1": 1e-3, "cpu:2": 1e-3})
    timed = replace(known, steps=(GoalStep(40.0, 7, (timing,)),))
    console = Console(width=140, record=True, file=sys.stderr, force_terminal=True)
    for view in (LiveView(console), LineView(), JsonView()):
        with view:
            view.show_goal(goal_news(known))
            view.show(job_status(job_script()[2]))
            view.show_goal(goal_news(timed))
    lines = (
        "goal  onnxruntime 1.31: cpu:1 1.00 ms, cpu:2 1.00 ms",
        "7 trials, 40 s, ours / theirs: cpu:1 2.00 (2.00 .. 2.00)",
    )
    said, shown = capsys.readouterr().out, console.export_text()
    for line in lines:
        assert line in said
        assert line in shown
    assert "all operators take 6.00 at cpu:1" in shown
    goals = [json.loads(line) for line in said.splitlines() if line.startswith('{"event": "goal"')]
    assert [len(goal["steps"]) for goal in goals] == [0, 1]


def test_equal_lines_come_once_a_minute(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    view, validating = LineView(), JobStatus("jobs/j1", JobState.VALIDATING, SPEC)
    for now in range(1000, 1130, 5):
        monkeypatch.setattr("time.monotonic", lambda now=now: float(now))
        view.show(validating)
    assert len(capsys.readouterr().out.splitlines()) == 3
    view.show(replace(validating, progress=JobProgress(failures={"wrong_output": 1})))
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_a_job_without_a_search_has_no_rate(capsys: pytest.CaptureFixture[str]) -> None:
    done = job_status(job_script()[-1])
    print_details(replace(done, progress=replace(done.progress, trials_per_s=0.0)))
    assert "trials/s" not in capsys.readouterr().out
    print_details(replace(done, progress=replace(done.progress, trials_per_s=2.0)))
    assert ", 2.0 trials/s while searching" in capsys.readouterr().out


OPERATORS = 60


def long_job(number: int) -> JobStatus:
    """A job of many operators, one trial further with each number."""
    best_s = {"cpu:1": 2e-3 / (1 + number / 100), "cpu:2": 1e-3 / (1 + number / 100)}
    operators = tuple(
        OperatorStatus(f"fused_conv2d_add_relu_{at}", f"{at}", 1, best_s=best_s) for at in range(OPERATORS)
    )
    progress = JobProgress(trials_planned=1200, candidates_done=number, trials_per_s=2.0, elapsed_s=number / 2)
    spec = JobSpec("", "m.onnx", ("cpu:1", "cpu:2"), trials=1200)
    return JobStatus("jobs/j1", JobState.TUNING, spec, progress, operators=operators)


def test_the_typescript_of_a_long_job_stays_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five minutes of 60 operators on a terminal of 80 columns; the job changes twice a second."""
    written, pace = io.StringIO(), Pace()
    with LiveView(Console(file=written, force_terminal=True, width=80)) as view:
        for number in range(600):
            monkeypatch.setattr("time.monotonic", lambda number=number: 1000.0 + number / 2)
            job = long_job(number // 2).followed(pace)
            pace = job.pace
            view.show(job)
    assert 2_000 < len(written.getvalue().encode()) < 25_000
