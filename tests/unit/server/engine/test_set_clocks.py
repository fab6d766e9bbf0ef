"""A job while the clock of the server's host is set."""

from __future__ import annotations

import pytest

from fractune_core.jobs import JobSpec, JobState
from fractune_server.engine import active_job as module
from fractune_server.engine.active_job import ActiveJob
from fractune_server.services.jobs import job_to_proto
from fractune_server.store.stored_job import StoredJob
from tests.support.samples import DEVICE, granted


class Clock:
    """The time of day, which may be set, and the seconds that go by."""

    def __init__(self) -> None:
        self.day_s, self.gone_s = 1e9, 50.0

    def time(self) -> float:
        return self.day_s

    def monotonic(self) -> float:
        return self.gone_s

    def pass_by(self, secs: float) -> None:
        self.day_s += secs
        self.gone_s += secs


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "time", made)
    return made


def a_job(clock: Clock, minutes: float = 0.0) -> ActiveJob:
    spec = JobSpec(model="a" * 64, model_name="net.onnx", shares=("cpu:1",), minutes=minutes)
    return ActiveJob(StoredJob("j", spec, clock.day_s, DEVICE, {"cpu:1": granted(1)}, "llvm"), [])


@pytest.mark.parametrize("set_by_s", [3600.0, -86400.0])
def test_a_search_takes_its_minutes_though_the_clock_is_set(clock: Clock, set_by_s: float) -> None:
    job = a_job(clock, minutes=2)
    assert not job.time_is_up
    job.stored.tuning_began = job.now()
    assert not job.time_is_up
    clock.day_s += set_by_s
    clock.pass_by(119)
    assert not job.time_is_up
    clock.pass_by(2)
    assert job.time_is_up


def test_what_an_earlier_server_searched_counts(clock: Clock) -> None:
    job = a_job(clock, minutes=2)
    job.stored.tuning_began = clock.day_s - 90
    assert not job.time_is_up
    clock.pass_by(31)
    assert job.time_is_up


def test_no_phase_is_negative_though_the_clock_is_set_back(clock: Clock) -> None:
    job = a_job(clock)
    clock.pass_by(5)
    job.enter(JobState.INGESTING)
    clock.pass_by(5)
    clock.day_s -= 86400
    job.enter(JobState.TUNING)
    clock.pass_by(5)
    job.end(JobState.CANCELLED)
    phases = job.stored.phases_s(clock.day_s)
    assert phases == {"queued": 5.0, "ingesting": 0.0, "tuning": 0.0}
    shown = job_to_proto(job.stored)
    assert shown.progress.elapsed_s == 5.0
    assert shown.end_time.seconds >= shown.create_time.seconds
