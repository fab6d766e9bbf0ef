"""What the fleet's service says of a real Redis with made-up workers and work."""

import time
import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from fractune_core.analysis.match import How, Match
from fractune_core.codec.messages import seconds
from fractune_core.fleet import redis_names
from fractune_core.jobs import OperatorTask
from fractune_core.pb import fractune_pb2 as pb
from fractune_server.authenticator import ANYBODY, set_caller
from fractune_server.main import call_context
from fractune_server.selection.model_match import OperatorAnswer
from fractune_server.services.fleet import FleetService
from fractune_server.services.log import _answer
from fractune_server.services.paging import PAGE_BYTES, first_page
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


def rows(sizes: Sequence[int]) -> list[tuple[int, pb.Workload]]:
    return [(place, pb.Workload(json="x" * size)) for place, size in enumerate(sizes)]


@pytest.mark.parametrize(
    ("sizes", "size", "kept", "end"),
    [
        ([], 3, 0, None),
        ([1, 1, 1], 3, 3, None),
        ([1, 1, 1, 1], 3, 3, 2),
        ([PAGE_BYTES // 4] * 9, 8, 3, 2),
        ([2 * PAGE_BYTES, 1], 8, 1, 0),
    ],
)
def test_a_page_ends_before_it_is_too_large_and_has_a_row_at_least(
    sizes: list[int], size: int, kept: int, end: int | None
) -> None:
    found = rows(sizes)
    page, last = first_page(found, size)
    assert (page, last) == ([item for _, item in found[:kept]], end)


def test_a_match_without_a_record_has_the_time_of_the_untuned_default_at_its_share() -> None:
    task = OperatorTask("0123", "conv", 1)
    known, unknown = (
        _answer(OperatorAnswer("cpu:1", task, Match(How.NONE, None, 0.0, "", untuned_s), None))
        for untuned_s in (2e-3, None)
    )
    assert dict(known.operator.untuned_s) == {"cpu:1": 2e-3}
    assert not unknown.operator.untuned_s
    assert not known.HasField("record")
