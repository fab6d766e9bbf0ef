"""What the store and Redis hold for open jobs, and what is left when they have ended."""

import time
from dataclasses import replace
from typing import Any

import pytest

from fractune_core.fleet.blobs import get_signed_blob, has_blob, put_blob
from fractune_core.fleet.messages import Compiled, CoreHolder, WorkerInfo
from fractune_core.fleet.redis_names import (
    BLOB_TTL_S,
    RELEASED_BLOB_TTL_S,
    blob_key,
    bundle_blob,
    model_blob,
    workload_blob,
)
from fractune_core.fleet.redis_state import CANCELLED, DONE, is_marked, mark
from fractune_core.jobs import JobSpec, JobState, OperatorTask
from fractune_core.records import Kind
from fractune_server.engine import open_jobs
from fractune_server.engine.active_job import ActiveJob, SingleWork
from fractune_server.engine.ingest import CompileTurns, ingest_key
from fractune_server.engine.open_jobs import MissingWorkers, NeededWorker, OpenJobs
from fractune_server.engine.publish import PublishPhase
from fractune_server.engine.rounds import Rounds
from fractune_server.scheduler.fair_queue import FairQueue
from fractune_server.store.jobs import Round, StoredJob, StoredOperator
from fractune_server.store.store import IngestedModel, IngestKey
from fractune_server.transport.context import ServerContext
from fractune_server.transport.live_workers import Fleet
from fractune_server.transport.work_queues import WorkQueues, send_model, send_workload
from tests.support.client_samples import bundle_bytes
from tests.support.fleet_messages import worker_info
from tests.support.samples import DEVICE, LIMITED, WORKLOAD, WORKLOAD_TEXT, granted
from tests.support.secret import SECRET

MODEL, OTHER = "a" * 64, "b" * 64
OPERATORS = 50


def new_rounds(context: ServerContext) -> Rounds:
    return Rounds(context, WorkQueues(context.redis, SECRET), FairQueue())


@pytest.fixture
def jobs(context: ServerContext) -> OpenJobs:
    return OpenJobs(context, new_rounds(context))


def create(context: ServerContext, name: str, model: str = MODEL, *operators: str, bundle: str = "") -> None:
    """A stored job of these operators, which waits for its bundle's times where it has a bundle."""
    spec = JobSpec(model=model, model_name="net.onnx", shares=("cpu:1",), trials=8)
    state = JobState.TIMING if bundle else JobState.TUNING
    stored = StoredJob(name, spec, time.time(), DEVICE, {"cpu:1": granted(1)}, "llvm", state, bundle=bundle)
    context.store.jobs.create(stored)
    made = [StoredOperator(each, each, 1, selected=True) for each in operators]
    context.store.jobs.save(stored, dict(enumerate(made)))
    tasks = [OperatorTask(each, each, 1) for each in operators]
    context.store.models.save_ingested(ingest_key(stored), IngestedModel("llvm", "llvm", tasks))


def put_blobs(context: ServerContext, *names: str) -> None:
    for name in names:
        put_blob(context.redis, name, b"code")


def lifetimes(context: ServerContext, *names: str) -> list[int]:
    """Seconds that Redis will keep each of the blobs, rounded up to one of the two lifetimes."""
    left: list[Any] = [context.redis.ttl(blob_key(name)) for name in names]
    return [next(whole for whole in (RELEASED_BLOB_TTL_S, BLOB_TTL_S) if 0 < secs <= whole) for secs in left]


def test_of_a_jobs_operators_only_those_that_changed_are_written(
    context: ServerContext, jobs: OpenJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(context, "j", MODEL, *(f"w{place}" for place in range(OPERATORS)))
    jobs.update()
    written: list[list[int]] = []
    save = context.store.jobs.save

    def noted(job: StoredJob, operators: Any) -> bool:
        written.append(sorted(operators))
        return save(job, operators)

    monkeypatch.setattr(context.store.jobs, "save", noted)
    job = jobs.all()[0]
    for changed in ([], [7], [], [7, 9]):
        for place in changed:
            job.operators[place].trials += 1
            job.operators[place].best_s["cpu:1"] = 1.0 / job.operators[place].trials
        job.dirty, job.saved_at = True, 0.0
        jobs.save()
        assert context.store.jobs.operators("j") == job.operators
    assert written == [[], [7], [], [7, 9]]


@pytest.mark.parametrize("how", ["ends", "is cancelled"])
def test_what_redis_holds_for_a_job_alone_goes_when_it_ends(context: ServerContext, jobs: OpenJobs, how: str) -> None:
    create(context, "j", MODEL, "w1", "w2", bundle="b1")
    create(context, "other", OTHER, "w2")
    jobs.update()
    own = [model_blob("default", MODEL), workload_blob("w1"), bundle_blob("b1")]
    others = [model_blob("default", OTHER), workload_blob("w2")]
    put_blobs(context, *own, *others)
    if how == "ends":
        ended = next(job for job in jobs.all() if job.id == "j")
        ended.end(JobState.DONE)
        jobs.save()
    else:
        context.store.jobs.end("j", JobState.CANCELLED, "", "")
        jobs.update()
    assert lifetimes(context, *own) == [RELEASED_BLOB_TTL_S] * 3
    assert lifetimes(context, *others) == [BLOB_TTL_S] * 2
    assert all(has_blob(context.redis, name) for name in own), "work in hand may read them yet"


def test_a_blob_that_is_needed_again_lives_as_long_as_a_new_one(context: ServerContext, jobs: OpenJobs) -> None:
    put_blobs(context, model_blob("default", MODEL))
    jobs.release([model_blob("default", MODEL)])
    assert lifetimes(context, model_blob("default", MODEL)) == [RELEASED_BLOB_TTL_S]
    send_model(context.redis, context.view_of("default"), MODEL)
    assert lifetimes(context, model_blob("default", MODEL)) == [BLOB_TTL_S]


def test_a_workload_that_an_older_version_stored_unsigned_is_replaced(context: ServerContext) -> None:
    context.store.log.add_workloads([(WORKLOAD, WORKLOAD_TEXT)])
    put_blobs(context, workload_blob(WORKLOAD))
    send_workload(context, WORKLOAD)
    assert get_signed_blob(context.redis, SECRET, workload_blob(WORKLOAD)) == WORKLOAD_TEXT.encode()


def test_the_model_of_a_call_that_waits_for_its_operators_stays(context: ServerContext, jobs: OpenJobs) -> None:
    put_blobs(context, model_blob("default", MODEL))
    context.model_ingests.expect("call", IngestKey(MODEL, {}, "llvm"))
    jobs.release([model_blob("default", MODEL)])
    assert lifetimes(context, model_blob("default", MODEL)) == [BLOB_TTL_S]


def test_a_bundle_that_two_jobs_had_made_is_taken_though_its_blob_went_with_the_first(
    context: ServerContext, jobs: OpenJobs
) -> None:
    create(context, "second", MODEL, "w1")
    jobs.update()
    second = jobs.all()[0]
    second.stored = replace(second.stored, state=JobState.COMPILING)
    context.files.add_bundle("c" * 32, [bundle_bytes()])
    PublishPhase(context, WorkQueues(context.redis, SECRET), new_rounds(context), CompileTurns()).take_compiled(
        second, Compiled(job="second", bundle="c" * 32)
    )
    assert (second.stored.bundle, second.stored.state) == ("c" * 32, JobState.TIMING)


@pytest.mark.parametrize("state", [JobState.TUNING, JobState.VALIDATING, JobState.COMPILING])
def test_a_job_with_operators_of_another_version_begins_with_the_ingest_again(
    context: ServerContext, monkeypatch: pytest.MonkeyPatch, state: JobState
) -> None:
    """Else it would search to its end, and the compiler would then refuse its operators."""
    with monkeypatch.context() as earlier:
        earlier.setattr("fractune_server.store.store.LOWERING", 0)
        create(context, "j", MODEL, "w1", "w2")
        stored = context.store.jobs.get("j")
        stored.state = state
        context.store.jobs.save(stored)
    context.store.jobs.save_round(Round("r", "j", Kind.TRIAL, "w1", "t1", 4))
    mark(context.redis, DONE, "r")  # so that it counts as handed out
    rounds = new_rounds(context)
    jobs = OpenJobs(context, rounds)
    jobs.update()
    again = context.store.jobs.get("j")
    assert (again.state, context.store.jobs.operators("j")) == (JobState.INGESTING, [])
    assert "another version of fractune read its model" in again.notes[0]
    rounds.drop_unwanted()
    assert context.store.jobs.rounds() == []
    assert is_marked(context.redis, CANCELLED, "r")


def test_a_job_with_operators_of_this_version_continues(context: ServerContext) -> None:
    create(context, "j", MODEL, "w1", "w2")
    jobs = OpenJobs(context, new_rounds(context))
    jobs.update()
    job = jobs.all()[0]
    assert (job.stored.state, list(job.plans), job.stored.notes) == (JobState.TUNING, ["w1", "w2"], [])


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
