"""How a running job is shown: the live table, lines and events."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import pytest
from rich.console import Console

from fractune.cli.commands.jobs.jobs import _job_cells, job_json
from fractune.cli.printing import print_result
from fractune.cli.progress import JsonView, TableView, job_table, progress_json
from fractune.features.goal.goal_result import Goal, GoalStep, PeerTiming, SideBySide, goal_news
from fractune.features.tune.table import result_json
from fractune.server.job_status import JobProgress, JobStatus, job_status
from fractune.sessions.progress import BarView, LineView, status_text
from fractune_core.jobs import JobSpec, JobState
from tests.support.client_samples import job_script


def test_the_live_table_shows_best_and_gain_per_share() -> None:
    job = job_script()[2]
    job.operators[0].untuned_s["cpu:1"] = 3e-3
    console = Console(width=140, record=True, file=sys.stderr)
    console.print(job_table(job_status(job)))
    shown = console.export_text()
    for expected in ("fused_conv2d", "best cpu:1", "2.00 ms", "1.50x", "8/8 trials"):
        assert expected in shown
    assert "softmax" not in shown


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
    for view, places in ((TableView(console), 4), (BarView(console), 2)):
        with view:
            view.show(job_status(job))
        assert console.export_text().count(SHOWN) >= places
    LineView().show(job_status(job))
    said = capsys.readouterr()
    assert said.out.count(SHOWN) == 2
    assert "\x1b]0;" not in said.out + said.err


def test_what_other_jobs_asked_for_is_shown_as_shared(capsys: pytest.CaptureFixture[str]) -> None:
    script = job_script()
    for job in script:
        job.progress.candidates_shared = 3
    tuning, done = job_status(script[1]), job_status(script[-1])
    assert status_text(tuning).startswith("tuning, 5/8 trials, 3 shared, 2.0 trials/s")
    assert tuning.time_left_s == 1.5
    assert job_json(tuning)["candidates_shared"] == progress_json(tuning)["candidates_shared"] == 3
    assert result_json(done, "")["trials_shared"] == 3
    print_result(done, "")
    assert "shared: 3 more trials, which other jobs requested\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("state", "planned", "line"),
    [
        (JobState.QUEUED, 0, "queued"),
        (JobState.INGESTING, 0, "ingesting: splitting the model into operators"),
        (JobState.TUNING, 0, "tuning, no new trials"),
        (JobState.TUNING, 24, "tuning, 0/24 trials"),
        (JobState.TIMING, 24, "timing the whole model, 0/24 trials"),
    ],
)
def test_a_status_names_the_work_and_no_trials_before_they_are_planned(
    state: JobState, planned: int, line: str
) -> None:
    job = JobStatus("jobs/j1", state, SPEC, JobProgress(trials_planned=planned))
    assert status_text(job) == line
    assert ("0/0" in str(_job_cells(job)), "-" in _job_cells(job)) == (False, not planned)


def test_a_goal_is_shown_in_the_live_table_as_lines_and_as_events(capsys: pytest.CaptureFixture[str]) -> None:
    paced = SideBySide((3e-3,) * 6, (1e-3,) * 6)
    timing = PeerTiming((2e-3,) * 6, (1e-3,) * 6, paced, "cpu:1", "cpu:1", None, 1e-6, outputs_agree=True)
    known = Goal("onnxruntime", "1.31", 0.0, {"cpu:1": 1e-3})
    timed = replace(known, steps=(GoalStep(40.0, 7, (timing,)),))
    console = Console(width=140, record=True, file=sys.stderr, force_terminal=True)
    for view in (TableView(console), LineView(), JsonView()):
        with view:
            view.show_goal(goal_news(known))
            view.show(job_status(job_script()[2]))
            view.show_goal(goal_news(timed))
    lines = ("goal  onnxruntime 1.31: cpu:1 1.00 ms", "7 trials, 40 s, ours / theirs: cpu:1 2.00 (2.00 .. 2.00)")
    said, shown = capsys.readouterr().out, console.export_text()
    for line in lines:
        assert line in said
        assert line in shown
    assert "fused_conv2d" in shown
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
    print_result(replace(done, progress=replace(done.progress, trials_per_s=0.0)), "")
    assert "trials/s" not in capsys.readouterr().out
    print_result(replace(done, progress=replace(done.progress, trials_per_s=2.0)), "")
    assert ", 2.0 trials/s while searching" in capsys.readouterr().out
