"""Work that has killed all of its workers: its results are recorded as failures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from redis import Redis

from fractune_core.fleet.marks import DONE, mark
from fractune_core.fleet.messages import BuildWork, Event, MeasureWork, Work, WorkFailed, work_record
from fractune_core.fleet.redis_names import EVENT_FIELD, SERVER_STREAM
from fractune_core.fleet.signed_messages import seal_event
from fractune_core.records import TRIAL_POLICY, VALIDATION_POLICY, Kind, Status
from fractune_core.shares import Device, GrantedShare
from fractune_server.transport.requeue import ATTEMPTS


@dataclass(frozen=True)
class RoundPlace:
    """Where the candidates of a round are measured."""

    device: Device
    granted: Mapping[str, GrantedShare]
    """by share as text"""


def write_dead_letters(redis: Redis, secret: bytes, work: Work, place: RoundPlace | None) -> None:
    """Send failed results for the work, through the results streams like all results.

    `place`: of the work's round; None if the round has ended, or the work has none.
    """
    if "round_id" in work and place is None:
        return
    with redis.pipeline() as pipe:
        if place is not None and (work["task"] == "build" or work["task"] == "measure"):
            for event in _crashes(work, place):
                pipe.xadd(work["reply"], {EVENT_FIELD: seal_event(secret, event)})
        else:
            pipe.xadd(SERVER_STREAM, {EVENT_FIELD: seal_event(secret, _failure(work))})
        mark(pipe, DONE, work["work_id"])
        pipe.execute()


def _crashes(work: BuildWork | MeasureWork, place: RoundPlace) -> Iterator[Event]:
    shares = work["shares"] if work["task"] == "build" else [work["share"]]
    items = work["candidates"] if work["task"] == "build" else work["artifacts"]
    for share in (each for each in shares if each in place.granted):
        for item in items:
            record = work_record(
                work,
                item,
                place.device,
                place.granted[share],
                Status.CRASHED,
                f"{ATTEMPTS} workers died while they had this batch ({work['task']})",
                VALIDATION_POLICY if work["purpose"] == Kind.VALIDATION else TRIAL_POLICY,
            )
            yield {"event": "measured", "job": work["job"], "round_id": work["round_id"], "record": record.to_json()}


def _failure(work: Work) -> WorkFailed:
    event: WorkFailed = {
        "event": "work_failed",
        "job": work["job"],
        "task": work["task"],
        "error": "JobFailed",
        "message": f"{ATTEMPTS} workers died during this work: {work['task']}; see their logs",
    }
    if work["task"] == "search":
        event["round_id"] = work["round_id"]
    return event
