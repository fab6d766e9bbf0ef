"""Messages as they are under way between server and workers, for tests that put them into Redis by hand."""

from __future__ import annotations

from typing import Any

import redis

from fractune_core.fleet import messages, redis_names
from fractune_core.fleet.signed_messages import seal_event, seal_replayed
from fractune_core.records import TuningRecord
from tests.support.processes.made_up import DEVICE, made_up_record
from tests.support.samples import WORKLOAD
from tests.support.secret import SECRET

STREAM = redis_names.tuner_stream("tune-1")
BUILD: messages.BuildWork = {
    "task": "build",
    "work_id": "work1",
    "round_id": "round1",
    "job": "job1",
    "namespace": "",
    "purpose": "trial",
    "operator": {"workload_hash": WORKLOAD, "name": "conv2d", "target": "{}", "target_key": "{}"},
    "device_key": DEVICE.key,
    "shares": ["cpu:1", "cpu:2"],
    "candidates": [{"candidate": "c1", "trace": "[1]"}, {"candidate": "c2", "trace": "[2]"}],
    "reply": STREAM,
}


def record(candidate: str, share: str = "cpu:1") -> TuningRecord:
    return made_up_record({**BUILD, "share": share}, candidate, f'["{candidate}"]')


def send(connection: redis.Redis, *records: TuningRecord, stream: str = STREAM) -> None:
    for each in records:
        connection.xadd(stream, {redis_names.EVENT_FIELD: _sealed(each)})


def send_once_more(connection: redis.Redis, *records: TuningRecord) -> None:
    """As if an operator had asked for it: they count though no round waits for them."""
    for each in records:
        replayed = seal_replayed(SECRET, _sealed(each))
        connection.xadd(redis_names.SERVER_STREAM, {redis_names.REPLAYED_FIELD: replayed})


def _sealed(record: TuningRecord) -> str:
    event: Any = {"event": "measured", "job": "job1", "round_id": "round1", "record": record.to_json()}
    return seal_event(SECRET, event)


def worker_info(name: str, started_at: float, role: str = "build") -> messages.WorkerInfo:
    """The entry of a worker without a share; `started_at` in seconds since 1970."""
    return {
        "protocol": redis_names.PROTOCOL,
        "name": name,
        "role": role,
        "started_at": started_at,
        "host": "",
        "pid": 0,
        "cores": [],
        "device": {},
        "granted": {},
        "share": "",
        "target": "",
        "versions": {},
    }
