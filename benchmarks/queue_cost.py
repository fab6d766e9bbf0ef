"""The cost of the queue for a candidate: in batches as fractune sends them, against one piece of work for each.

Redis and the work loop are real. The role is simulated: it only delivers one result a candidate, in the transaction
that every real role uses. Usage: python -m benchmarks.queue_cost [--quick] [--out FILE]
"""

import statistics
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

import redis

from benchmarks.support.machine import arguments, write_result
from fractune_core.codec.plain_json import to_dict
from fractune_core.fleet.messages import CPU_BATCH, BuildWork, CandidateItem
from fractune_core.fleet.redis_names import BUILD_QUEUE, SERVER_STREAM
from fractune_server.transport.work_queues import WorkQueues
from fractune_workers.context import WorkerContext
from fractune_workers.entry import WorkHandler, WorkLoop
from fractune_workers.locks.core_locks import CoreLocks
from fractune_workers.roles import Role
from tests.support.fleet_messages import CONV2D, build_work
from tests.support.processes.redis_process import running_redis

TRACE = "x" * 3500
"""as long as the trace of a convolution"""
LIMIT_MS = 5.0


class SimulatedRole(Role):
    """Delivers an event for each candidate, and does no work."""

    def __init__(self, station: WorkerContext) -> None:
        self._station = station

    def queue(self) -> str:
        return BUILD_QUEUE

    def handle(self, work: Any) -> None:
        delivery = self._station.transaction(work)
        for item in work.candidates:
            event: Any = {"event": "measured", "job": work.job, "round_id": "", "record": to_dict(item)}
            delivery.event(SERVER_STREAM, event)
        delivery.send()

    def stop(self) -> None:
        pass


def ms_per_candidate(station: WorkerContext, candidates: int, batch: int) -> float:
    """Milliseconds from before the first piece of work is queued until the last result is in the stream."""
    station.redis.flushall()
    handler = WorkHandler(station, SimulatedRole(station))
    worker = WorkLoop(uuid.uuid4().hex, station.redis, handler.queue, handler.handle)
    queues = WorkQueues(station.redis, station.secret)
    start = time.perf_counter()
    for _ in range(candidates // batch):
        queues.enqueue(BUILD_QUEUE, _build_work(batch))
    worker.run(candidates // batch)
    spent_s = time.perf_counter() - start
    if station.redis.xlen(SERVER_STREAM) != candidates + candidates // batch:  # and what each piece has taken
        raise SystemExit("queue_cost: results are missing")
    return spent_s / candidates * 1e3


def _build_work(candidates: int) -> BuildWork:
    traces = [CandidateItem(uuid.uuid4().hex, TRACE) for _ in range(candidates)]
    return build_work(CONV2D, traces, work_id=uuid.uuid4().hex)


def costs_of(candidates: int, rounds: int) -> dict[int, list[float]]:
    """Milliseconds a candidate, `rounds` times, by the number of candidates in one piece of work: 1, and ours."""
    costs: dict[int, list[float]] = {1: [], CPU_BATCH: []}
    with running_redis() as url, tempfile.TemporaryDirectory() as folder:
        connection = redis.Redis.from_url(url, socket_timeout=None)
        station = WorkerContext("bench", connection, b"secret", CoreLocks(Path(folder)), [0], Path(folder))
        for _ in range(rounds):  # interleaved, so that both meet the same load of the machine
            for batch, found in costs.items():
                found.append(ms_per_candidate(station, candidates, batch))
    return costs


def main() -> None:
    parser = arguments(__doc__)
    args = parser.parse_args()
    candidates, rounds = (64, 2) if args.quick else (512, 7)
    costs = costs_of(candidates, rounds)
    single, batched = statistics.median(costs[1]), statistics.median(costs[CPU_BATCH])
    print(f"{'candidates in one piece of work':<34}{'ms a candidate (median)':>26}{'smallest':>10}{'largest':>10}")
    for batch, found in costs.items():
        print(f"{batch:<34}{statistics.median(found):>26.2f}{min(found):>10.2f}{max(found):>10.2f}")
    write_result("queue_cost", args, {"candidates": candidates, "ms_per_candidate": costs, "limit_ms": LIMIT_MS})
    print(
        f"queue_cost: {batched:.2f} ms a candidate in batches of {CPU_BATCH} (limit {LIMIT_MS:g} ms), "
        f"{batched / single:.2f} of what one piece of work for each costs"
    )


if __name__ == "__main__":
    main()
