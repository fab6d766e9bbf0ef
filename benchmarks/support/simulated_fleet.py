"""Simulated workers by the hundred, as tasks of one event loop.

The entries of all of them are renewed over one connection, where each real worker has one for that.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from redis import asyncio as aioredis

from benchmarks.support.simulated_workers import Crash, FleetLife, SimulatedWorker
from fractune_core.fleet import redis_names, redis_state
from fractune_core.fleet.redis_names import WORKER_TTL_S

_CONNECTING = 20
"""workers that connect at once"""
_PARTS = 20
"""in which the entries are renewed within a second"""


class SimulatedFleet:
    """Workers as tasks of this event loop: a crashed or drained worker has a successor under another name."""

    def __init__(self, url: str, life: FleetLife) -> None:
        self.life = life
        self._url = url
        self._tasks: list[asyncio.Task[None]] = []
        self._alive: dict[str, SimulatedWorker] = {}
        self._number = 0
        self._entrance = asyncio.Semaphore(_CONNECTING)

    def start(self, **roles: int) -> None:
        """So many workers of each role."""
        wanted = [role for role, count in roles.items() for _ in range(count)]
        self._tasks = [asyncio.create_task(self._succession(role)) for role in wanted]
        self._tasks.append(asyncio.create_task(self._renew()))

    def check(self) -> None:
        """Raises what a worker has ended by, if one has."""
        for task in self._tasks:
            if task.done():
                task.result()

    async def stop(self) -> None:
        """As `check`, when all have ended."""
        pending = set(self._tasks)
        while pending:  # the client library may mistake the first request for its own timeout, and go on
            for task in pending:
                task.cancel()
            _, pending = await asyncio.wait(pending, timeout=1.0)
        for worker in list(self._alive.values()):
            await worker.redis.aclose()
        for task in self._tasks:
            error = None if task.cancelled() else task.exception()
            if error is not None:
                raise error

    async def _succession(self, role: str) -> None:
        while True:
            self._number += 1
            worker = SimulatedWorker(self._url, role, f"{role}-simulated-{self._number}", self.life)
            async with self._entrance:
                await worker.redis.initialize()
            self._alive[worker.name] = worker
            try:
                await worker.serve()
                await self._drop(worker)
            except Crash:
                self.life.done["crash"] += 1
            del self._alive[worker.name]
            await worker.redis.aclose()

    async def _drop(self, worker: SimulatedWorker) -> None:
        async with worker.redis.pipeline(transaction=False) as pipe:
            pipe.delete(redis_state.worker_key(worker.name))
            pipe.srem(redis_names.WORKERS, worker.name)
            await pipe.execute()

    async def _renew(self) -> None:
        """Each worker's entry once a second, spread over the second."""
        redis = aioredis.Redis.from_url(self._url, single_connection_client=True)
        try:
            while True:
                for part in range(_PARTS):
                    began = time.monotonic()
                    await _put_entries(redis, list(self._alive.values())[part::_PARTS])
                    await asyncio.sleep(max(0.0, 1 / _PARTS - (time.monotonic() - began)))
        finally:
            await redis.aclose()


def put_entry(pipe: Any, worker: SimulatedWorker) -> None:
    """Queue the commands that show the worker, on a pipeline of either kind of client."""
    pipe.sadd(redis_names.WORKERS, worker.name)
    pipe.set(redis_state.worker_key(worker.name), worker.entry(), ex=WORKER_TTL_S)


async def _put_entries(redis: Any, workers: Sequence[SimulatedWorker]) -> None:
    async with redis.pipeline(transaction=False) as pipe:
        for worker in workers:
            put_entry(pipe, worker)
        if workers:
            await pipe.execute()
