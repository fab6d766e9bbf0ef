"""Work that has killed every worker it was given to: what it was to deliver is written down as failed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator

from redis import Redis

from fractune_core.messages import (
    EVENT_FIELD,
    SERVER_STREAM,
    BuildWork,
    Event,
    MeasureWork,
    Work,
    WorkFailed,
    done_key,
)
from fractune_core.records import FINAL_POLICY, TRIAL_POLICY, Kind, Status, TuningRecord, record_id
from fractune_server.store.stored_job import StoredJob
from fractune_server.transport.requeue import ATTEMPTS

_DONE_TTL_S = 24 * 3600


def write_dead_letters(redis: Redis, work: Work, find_job: Callable[[str], StoredJob | None]) -> None:
    """Send the results that a lost piece of work owes; they take the way of all results."""
    job = find_job(work["job"])
    if job is None:
        return
    with redis.pipeline() as pipe:
        if work["do"] == "build" or work["do"] == "measure":
            for event in _crashes(work, job):
                pipe.xadd(work["reply"], {EVENT_FIELD: json.dumps(event)})
        else:
            pipe.xadd(SERVER_STREAM, {EVENT_FIELD: json.dumps(_failure(work))})
        pipe.set(done_key(work["work_id"]), 1, ex=_DONE_TTL_S)
        pipe.execute()


def _crashes(work: BuildWork | MeasureWork, job: StoredJob) -> Iterator[Event]:
    shares = work["shares"] if work["do"] == "build" else [work["share"]]
    items = work["candidates"] if work["do"] == "build" else work["artifacts"]
    for share in shares:
        for item in items:
            record = _crash(work, job, share, item["candidate"], item["trace"])
            yield {"event": "measured", "job": job.id, "lease": work["lease"], "record": record.to_json()}


def _crash(work: BuildWork | MeasureWork, job: StoredJob, share: str, candidate: str, trace: str) -> TuningRecord:
    kind = Kind(work["kind"])
    return TuningRecord(
        record_id=record_id(work["lease"], candidate, share),
        kind=kind,
        candidate_id=candidate,
        workload_hash=work["workload_hash"],
        operator=work["operator"],
        target=work["target"],
        target_key=work["target_key"],
        trace=trace,
        device=job.device,
        share=share,
        granted=job.granted[share],
        status=Status.CRASHED,
        cause=f"{ATTEMPTS} workers ended while this batch was in their hands ({work['do']})",
        run_secs=(),
        policy=FINAL_POLICY if kind is Kind.FINAL else TRIAL_POLICY,
        anchor_ratio=0.0,
        neighbours=0,
        job=job.id,
        worker="",
        measured_at=time.time(),
    )


def _failure(work: Work) -> WorkFailed:
    event: WorkFailed = {
        "event": "work_failed",
        "job": work["job"],
        "do": work["do"],
        "error": "JobFailed",
        "message": f"{ATTEMPTS} workers ended while they did this: {work['do']}; see their logs",
    }
    if work["do"] == "search":
        event["lease"] = work["lease"]
    return event
