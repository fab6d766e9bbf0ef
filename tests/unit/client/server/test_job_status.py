"""What the client reads from the messages of the contract."""

from dataclasses import replace

import pytest

from fractune.server.job_status import JobProgress, JobStatus, job_status
from fractune.server.pace import Pace, TimeLeft
from fractune_core.jobs import JobSpec, JobState
from tests.support.client_samples import job_script


def test_time_left_counts_every_phase_and_is_a_lower_bound_without_an_earlier_job() -> None:
    """3 s of search, four trials for the operator at 2 a second, a build of it, two seconds a share."""
    job = job_script()[1]
    assert job_status(job).time_left == TimeLeft(3.0 + 2.0 + 3.25 + 4.0, is_least=True)
    job.spec.minutes = 0.05
    assert job_status(job).time_left == TimeLeft(1.0 + 9.25, is_least=True)
    assert job_status(job_script()[0]).time_left is None
    assert job_status(job_script()[-1]).time_left is None


def test_an_earlier_job_of_the_model_says_how_long_phases_take() -> None:
    past = Pace({"queued": 0.0, "ingesting": 4.0, "tuning": 50.0, "validating": 20.0, "timing": 6.0}, afterwards_s=8.0)
    queued, tuning = (replace(job_status(each), pace=past) for each in job_script()[:2])
    assert queued.time_left == TimeLeft(4.0 + 50.0 + 20.0 + 0.0 + 6.0 + 8.0, is_least=False)
    assert tuning.time_left == TimeLeft(3.0 + 20.0 + 3.25 + 6.0 + 8.0, is_least=False)
    validating = replace(tuning, state=JobState.VALIDATING, progress=JobProgress(phases_s={"validating": 15.0}))
    assert validating.time_left == TimeLeft(5.0 + 0.0 + 6.0 + 8.0, is_least=False)


@pytest.mark.parametrize(
    ("planned", "requested", "known", "text"),
    [
        (100, 100, 0, "100 of 100 new trials"),
        (100, 260, 160, "100 of 100 new trials (260 requested, 160 in the log)"),
        (100, 260, 0, "100 of 100 new trials (260 requested)"),
        (4, 0, 7, "4 of 4 new trials"),
    ],
)
def test_trials_tell_new_ones_from_those_in_the_log(planned: int, requested: int, known: int, text: str) -> None:
    progress = JobProgress(trials_planned=planned, candidates_done=planned, trials_known=known)
    assert JobStatus("jobs/j", JobState.DONE, JobSpec("", "m", (), trials=requested), progress).trials_text == text


def test_the_last_trials_gain_what_they_saved_of_the_operators_time() -> None:
    pace = Pace()
    for trials, secs in ((4, 10.0), (20, 8.0), (90, 4.0), (120, 3.8)):
        pace = pace.after(trials, {"cpu:1": secs, "cpu:2": 2.0}).after(trials + 1, {"cpu:1": secs, "cpu:2": 2.0})
    assert [at for at, _ in pace.sums] == [4, 20, 90, 120]
    last, part = pace.gained(128) or (0, 0.0)
    assert last == 32
    assert part == pytest.approx(0.05)
    assert pace.gained(400) == (64, 0.0)
    assert pace.gained(31) is None, "seven trials tell nothing"
    assert Pace().gained(128) is None
    assert pace.speed_ups() == {"cpu:1": pytest.approx(10 / 3.8), "cpu:2": 1.0}
