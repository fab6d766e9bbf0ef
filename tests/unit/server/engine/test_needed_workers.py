"""Which workers a job notes as missing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fractune_core.fleet.messages import CoreHolder, WorkerInfo
from fractune_core.jobs import JobSpec, JobState
from fractune_server.engine import open_jobs
from fractune_server.engine.active_job import ActiveJob, SingleWork
from fractune_server.engine.open_jobs import MissingWorkers, NeededWorker
from fractune_server.store.stored_job import StoredJob
from fractune_server.transport.live_workers import Fleet
from tests.support.fleet_messages import worker_info
from tests.support.samples import DEVICE, LIMITED, granted

SHARES = ("cpu:1", "cpu:2")


def a_job(state: JobState) -> ActiveJob:
    spec = JobSpec(model="a" * 64, model_name="net.onnx", shares=SHARES)
    held = {share: granted(int(share[-1])) for share in SHARES}
    return ActiveJob(StoredJob("j", spec, 1.0, DEVICE, held, "llvm", state), [])


def worker(role: str, share: str = "", isa: str = DEVICE.isa) -> WorkerInfo:
    measuring = role == "measure"
    info = replace(worker_info(f"{role} {share} {isa}", 1.0, role), share=share, host="here", pid=1)
    return replace(info, device=replace(DEVICE, isa=isa), granted=granted(int(share[-1]))) if measuring else info


@pytest.mark.parametrize(
    ("state", "workers", "missing"),
    [
        (JobState.QUEUED, [], ["role compile"]),
        (JobState.INGESTING, [worker("compile")], []),
        (JobState.TUNING, [worker("tune"), worker("measure", "cpu:1")], ["role build", "role measure, share cpu:2"]),
        (JobState.VALIDATING, [worker("build"), *(worker("measure", share) for share in SHARES)], []),
        (
            JobState.TIMING,
            [worker("measure", "cpu:1", "zen"), worker("measure", "cpu:2")],
            ["role measure, share cpu:1"],
        ),
    ],
)
def test_what_the_phase_lacks_is_noted_and_goes_when_it_comes(
    monkeypatch: pytest.MonkeyPatch, state: JobState, workers: list[WorkerInfo], missing: list[str]
) -> None:
    monkeypatch.setattr(open_jobs, "MISSING_S", 0.0)
    job, missing_workers = a_job(state), MissingWorkers()
    missing_workers.note(Fleet(workers), [job])
    assert job.stored.notes == [f"waiting for a worker: {each}" for each in missing]
    others = [worker(role) for role in ("compile", "build", "tune")]
    missing_workers.note(Fleet([*others, *(worker("measure", share) for share in SHARES)]), [job])
    assert job.stored.notes == []


def test_a_worker_under_a_cpu_limit_is_needed_only_to_time_the_whole_model() -> None:
    for state in (JobState.TUNING, JobState.VALIDATING, JobState.TIMING):
        job = a_job(state)
        job.stored.granted["cpu:1500m"] = LIMITED
        measuring = [needed.share for needed in open_jobs.needed_workers(job) if needed.role == "measure"]
        assert measuring == [*SHARES, *(["cpu:1500m"] if state is JobState.TIMING else [])]
        assert (job.share_keys, job.stored.cores) == (a_job(state).share_keys, 2)
    assert job.work_id(SingleWork("time_model", "cpu:1500m")) == "j-time_model2-0"


def test_measurements_of_another_stack_that_hold_the_cores_are_noted() -> None:
    job, missing_workers = a_job(JobState.TUNING), MissingWorkers()
    present = [worker(role) for role in ("compile", "build", "tune")]
    measurers = [worker("measure", share) for share in SHARES]
    holders = [CoreHolder("here", 1, [0]), CoreHolder("here", 7, [0])]
    waiting = [replace(each, waits_for=holders) for each in (*present, *measurers)]
    missing_workers.note(Fleet(waiting), [job])
    assert job.stored.notes == ["waiting for the measurement cores of here, held by PID 7 of another stack"]
    ingesting = a_job(JobState.INGESTING)
    missing_workers.note(Fleet([*present, *waiting[1:2], *measurers[:1], *waiting[4:]]), [ingesting])
    assert ingesting.stored.notes == [], "its workers do not wait"
    missing_workers.note(Fleet([*present, *measurers]), [job])
    assert job.stored.notes == []


def test_a_worker_that_is_missing_for_a_moment_is_not_noted() -> None:
    job = a_job(JobState.QUEUED)
    MissingWorkers().note(Fleet(()), [job])
    assert job.stored.notes == []
    assert str(NeededWorker("measure", "cpu:1")) == "role measure, share cpu:1"


def test_single_work_is_named_the_same_until_it_is_asked_for_again() -> None:
    job, timing = a_job(JobState.TIMING), SingleWork("time_model", "cpu:2")
    assert job.work_id(timing) == job.work_id(timing) == "j-time_model1-0"
    assert job.work_id(SingleWork("compile")) == "j-compile-0"
    job.note_requested(timing)
    assert timing in job.requested
    assert job.work_id(timing) == "j-time_model1-1"
    assert job.work_id(SingleWork("time_model", "cpu:1")) == "j-time_model0-0"
    job.enter(JobState.TIMING)
    assert timing not in job.requested
