"""What the fleet's service says of a real Redis with made-up workers and work."""

from __future__ import annotations

import time
import uuid
from dataclasses import replace
from typing import Any

import pytest

from fractune_core.codec.messages import seconds
from fractune_core.fleet import redis_names
from fractune_core.pb import fractune_pb2 as pb
from fractune_server.access.authenticator import ANYBODY, set_caller
from fractune_server.main import call_context
from fractune_server.services.fleet import FleetService
from fractune_server.transport.context import ServerContext
from fractune_server.transport.work_queues import WorkQueues
from tests.support.fleet_messages import BUILD
from tests.support.processes.fleet_simulated import SimulatedWorker
from tests.support.processes.made_up import DEVICE
from tests.support.secret import SECRET


def listed(context: ServerContext) -> pb.ListWorkersResponse:
    asked: Any = None  # the call's context, which is not used
    set_caller(ANYBODY)
    return FleetService(call_context(context)).ListWorkers(pb.ListWorkersRequest(), asked)


def enqueue(context: ServerContext, queue: str) -> None:
    WorkQueues(context.redis, SECRET).enqueue(queue, replace(BUILD, work_id=uuid.uuid4().hex))


def test_waiting_work_is_by_role_and_share(context: ServerContext) -> None:
    assert not listed(context).waiting
    before_s = time.time()
    for _ in range(3):
        enqueue(context, redis_names.BUILD_QUEUE)
    enqueue(context, redis_names.measure_queue(DEVICE.key, "cpu:2"))
    waiting = listed(context).waiting
    assert [(each.role, each.share, each.pieces) for each in waiting] == [("build", "", 3), ("measure", "cpu:2", 1)]
    assert all(before_s - 1 < seconds(each.oldest_time) < time.time() + 1 for each in waiting)


@pytest.mark.parametrize("state", ["busy", "idle"])
def test_a_worker_says_whether_it_is_busy(context: ServerContext, state: str) -> None:
    worker = SimulatedWorker("redis://", "measure", "measure-1", "cpu:1")
    worker.redis.close()
    worker.redis, worker.started_at = context.redis, time.time()
    worker.counts.begin("measure", 0.02)
    if state == "idle":
        worker.counts.end("measure", 2.0, 0.5)
    worker.register()
    assert [each.state for each in listed(context).workers] == [state]
