"""What comes through Redis: messages that strangers wrote, and signed ones of a worker that is not like ours."""

import json
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fractune_core.codec.messages import timestamp, to_proto
from fractune_core.codec.plain_json import write_json
from fractune_core.errors import FractuneError
from fractune_core.fleet.messages import CandidateItem, CoreHolder
from fractune_core.fleet.redis_names import BUILD_QUEUE
from fractune_core.fleet.signed_messages import (
    check_greeting,
    open_event,
    open_work,
    open_worker,
    seal_event,
    seal_greeting,
    seal_work,
    seal_worker,
    sign_json,
)
from fractune_core.pb import fractune_pb2 as pb
from fractune_server.transport.live_workers import open_entries
from fractune_server.transport.recorder import read_event
from tests.support.fleet_messages import build_work, worker_info
from tests.support.fuzz.files import RECORD
from tests.support.fuzz.mutations import Mutator
from tests.support.fuzz.target import Target
from tests.support.processes.made_up import DEVICE, TARGET, TARGET_KEY, granted, target_operator
from tests.support.samples import WORKLOAD
from tests.support.secret import SECRET

_ROOF = {"gflops": 100.0, "gb_per_s": 10.0, "cache_bytes": 1 << 25}
_OPERATOR_ITEM = {"workload_hash": WORKLOAD, "name": "conv", "weight": 2, "workload": "[]", "flops": 1e9, "io_bytes": 5}
_CALL = {"name": "conv", "calls": 2, "secs": 0.5, "workload_hash": WORKLOAD}
EVENTS: tuple[dict[str, Any], ...] = (
    {"event": "measured", "job": "j1", "round_id": "r", "record": RECORD},
    {
        "event": "proposed",
        "job": "j1",
        "round_id": "r",
        "workload_hash": WORKLOAD,
        "candidates": ["c"],
        "exhausted": False,
    },
    {"event": "search_forgotten", "job": "j1", "round_id": "r"},
    {"event": "ingested", "job": "j1", "target": TARGET, "target_key": TARGET_KEY, "operators": [_OPERATOR_ITEM]},
    {"event": "roof_measured", "job": "j1", "device_key": DEVICE.key, "share_key": "core-1", "roof": _ROOF},
    {"event": "compiled", "job": "j1", "bundle": "b1"},
    {"event": "model_timed", "job": "j1", "share": "cpu:1", "granted": granted("cpu:1").to_json()}
    | {"run_secs": {"untuned": [1.0, 1.1]}, "max_error": {"untuned": 0.0}}
    | {"at_load": [{"variant": "untuned", "threads": 1, "loop_secs": [1.0], "latency_secs": [1.0, 2.0]}]}
    | {"others_cores": 0.0, "inside": {"calls": [_CALL], "whole_s": 1.0, "clocked_s": 1.1}},
    {"event": "piece_done", "job": "j1", "work_id": "w1", "task": "measure", "share": "cpu:1"}
    | {"worked_s": 1.5, "cpu_s": 0.5, "ended_at": 1e9},
    {"event": "work_failed", "job": "j1", "task": "build", "round_id": "r", "error": "JobFailed", "message": "why"},
    {"event": "work_failed", "job": "j1", "task": "ingest", "error": "BadModel", "message": "why"},
)
_ENTRY = replace(
    worker_info("w", 1e9, "measure"),
    device=DEVICE,
    granted=granted("cpu:1"),
    share="cpu:1",
    target=TARGET,
    counts=[("work_duration", "build", "sum", 1.0)],
    waits_for=[CoreHolder("here", 7, [0])],
)
WORKER: dict[str, Any] = json.loads(write_json(_ENTRY))
_WORK = build_work(target_operator("conv"), [CandidateItem("c", "")], "r", work_id="w1", job="j1", reply="s")


def _strange(mutator: Mutator) -> bytes:
    """What somebody without the secret may write: a message of ours that was altered, or anything."""
    valid: Any = mutator.random.choice(_SEALED)
    return mutator.blob(valid.encode())


def _take_strange(message: bytes) -> None:
    """All readers refuse it, or it is the message that was sealed."""
    refusals: list[FractuneError] = []
    for read in _READERS:
        try:
            read(message)
        except FractuneError as error:
            refusals.append(error)
    assert len(refusals) >= len(_READERS) - 1, "two places took one message"
    if len(refusals) == len(_READERS):
        raise refusals[0]


_READERS: tuple[Callable[[bytes], object], ...] = (
    lambda message: open_work(SECRET, BUILD_QUEUE, "w1", message),
    lambda message: open_event(SECRET, message),
    lambda message: open_worker(SECRET, "w", message),
    lambda message: check_greeting(SECRET, message),
)
_SEALED = (
    seal_work(SECRET, BUILD_QUEUE, _WORK),
    seal_event(SECRET, EVENTS[0]),  # type: ignore[arg-type]
    seal_worker(SECRET, _ENTRY),
    seal_greeting(SECRET),
)


def _work(mutator: Mutator) -> str:
    whole = mutator.value({"work": json.loads(write_json(_WORK)), "issued_at": time.time()})
    return sign_json(SECRET, f"work on the queue {BUILD_QUEUE}", whole)


def event_of(mutator: Mutator) -> str:
    """Signed, of a worker that writes other events than ours do."""
    return sign_json(SECRET, "a result", mutator.value(mutator.random.choice(EVENTS)))


def worker_of(mutator: Mutator) -> str:
    return sign_json(SECRET, "the entry of worker w", mutator.value(WORKER))


def _take_work(message: str) -> None:
    open_work(SECRET, BUILD_QUEUE, "w1", message)


def _take_result(message: str) -> None:
    """What is read can be told again."""
    record = read_event(open_event(SECRET, message)).record
    assert record is None or to_proto(record, pb.Record) is not None


def _take_worker(message: str) -> None:
    fleet = open_entries(SECRET, {"w": message.encode()})
    if not fleet.workers:
        raise FractuneError("it is left out")
    for held in fleet.offers:
        assert to_proto(held.device, pb.Device) is not None
        assert to_proto(held.granted, pb.GrantedShare) is not None
    for name, worker in fleet.workers.items():
        assert pb.Worker(name=name, pid=worker.pid, start_time=timestamp(worker.started_at)) is not None


TARGETS = (
    Target("messages of strangers", _strange, _take_strange, weight=14),
    Target("signed work", _work, _take_work, weight=5),
    Target("signed results", event_of, _take_result, weight=8),
    Target("entries of workers", worker_of, _take_worker, weight=5),
)
