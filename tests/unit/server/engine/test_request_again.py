"""Work whose result never comes, and operators that no store takes: callers hear of it, and the engine goes on."""

from __future__ import annotations

import time

import pytest

from fractune_core.errors import BadModel, StateUnusable
from fractune_core.fleet.messages import Ingested
from fractune_core.jobs import JobSpec, JobState
from fractune_server.engine import engine as module
from fractune_server.engine.active_job import ActiveJob, SingleWork
from fractune_server.engine.engine import Engine
from fractune_server.store.models import IngestKey
from fractune_server.store.stored_job import StoredJob
from fractune_server.transport.context import ServerContext
from tests.support.samples import DEVICE, granted

INGEST = SingleWork("ingest")
EVENT = Ingested(job="call", target="llvm", target_key="llvm", operators=[])


@pytest.fixture
def engine(context: ServerContext) -> Engine:
    return Engine(context, lambda: None)


def test_work_that_never_has_a_result_fails_its_job(engine: Engine) -> None:
    spec = JobSpec(model="a" * 64, model_name="net.onnx", shares=("cpu:1",))
    job = ActiveJob(StoredJob("j", spec, time.time(), DEVICE, {"cpu:1": granted(1)}, "llvm"), [])
    requests = 0
    while job.stored.state.open:
        job.note_requested(INGEST)
        requests += 1
        engine._request_again(job)
    assert requests == module._MOST_REQUESTS
    assert (job.stored.state, job.stored.error) == (JobState.FAILED, "JobFailed")
    assert job.stored.message.startswith(f"its work (ingest) was done {requests} times, and no result came; ")


def test_operators_that_cannot_be_stored_are_an_error_of_the_call(
    engine: Engine, context: ServerContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise BadModel("no")

    monkeypatch.setattr(engine._ingest, "save", refuse)
    context.model_ingests.expect("call", IngestKey("a" * 64, {}, "llvm"))
    engine._take_for_job(EVENT)
    assert isinstance(context.model_ingests.forget("call"), BadModel)


def test_a_store_that_takes_nothing_ends_the_engine(
    engine: Engine, context: ServerContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise StateUnusable("disk full")

    monkeypatch.setattr(engine._ingest, "save", refuse)
    context.model_ingests.expect("call", IngestKey("a" * 64, {}, "llvm"))
    with pytest.raises(StateUnusable):
        engine._take_for_job(EVENT)
