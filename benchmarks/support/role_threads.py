"""Real roles of workers in threads of this process. Their children are simulated: searches and builds sleep.

Their queues, locks and messages are those of real workers. So what a role waits for can be counted without a GPU.
"""

import contextlib
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import redis

from fractune_core.fleet.redis_state import put_entry
from fractune_core.fleet.signed_messages import seal_worker
from fractune_core.records import Status, candidate_id
from fractune_workers.builder_process import BuilderProcess, BuiltCandidate
from fractune_workers.child import Child, Preemption
from fractune_workers.context import WorkerContext
from fractune_workers.entry import ANSWER_TIMEOUT_S, WorkHandler, WorkLoop
from fractune_workers.locks.core_locks import CoreLocks
from fractune_workers.roles import Role, build, tune
from fractune_workers.roles.build import Builder
from fractune_workers.roles.tune import Tuner
from tests.support.fleet_messages import worker_info
from tests.support.secret import SECRET

_LOOK_EVERY_S = 0.1
_RENEW_S = 0.5
_STEP_S = 0.02
"""in which the cores are shared out"""
_CODE_BYTES = 16_384


class RoleThread:
    """One role at work, until `stop`."""

    def __init__(self, url: str, name: str, role: str, locks: Path, make: Callable[[WorkerContext], Role]) -> None:
        connection = redis.Redis.from_url(url, socket_timeout=ANSWER_TIMEOUT_S)
        # Locks of its own: they belong to open files, as in a process of its own.
        self.context = WorkerContext(name, connection, SECRET, CoreLocks(locks, 64), [0], locks)
        self.role = make(self.context)
        self.role.start()
        self._busy_s, self._began_s = 0.0, 0.0
        self._handler = WorkHandler(self.context, self.role)
        self._loop = WorkLoop(name, connection, self._handler.queue, self._handle, self.role)
        self._info = self.role.describe(worker_info(name, time.time(), role))
        self._line = redis.Redis.from_url(url)
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=run, name=name) for run in (self._renew, self._work)]
        for thread in self._threads:
            thread.start()

    def busy_now_s(self) -> float:
        """Seconds with work so far, waits for locks included."""
        return self._busy_s + (time.monotonic() - self._began_s if self._began_s else 0.0)

    def stop(self) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()
        self.role.stop()
        self.context.redis.close()
        self._line.close()

    def _handle(self, job_id: str, message: str) -> None:
        self._began_s = time.monotonic()
        self._handler.handle(job_id, message)
        self._busy_s, self._began_s = self.busy_now_s(), 0.0

    def _renew(self) -> None:
        while True:
            info = self.context.counts.describe(self._info)
            put_entry(self._line, self.context.name, seal_worker(SECRET, info))
            if self._stopped.wait(_RENEW_S):
                return

    def _work(self) -> None:
        while not self._stopped.is_set():
            job_id = self._loop.take_or_rest(_LOOK_EVERY_S)
            if job_id is not None:
                self._loop.work_on(job_id)
        self.role.rest()


class Cores:
    """Cores that searches and builds share evenly; nothing is computed."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._running = 0
        self._lock = threading.Lock()

    def spend(self, cpu_s: float, threads: int = 1, speed: float = 1.0) -> None:
        """Return when so many threads have had `cpu_s` CPU seconds together, on cores of that speed."""
        with self._lock:
            self._running += threads
        while cpu_s > 0:
            began_s = time.monotonic()
            time.sleep(_STEP_S)
            got = min(1.0, self._count / self._running) * threads * speed
            cpu_s -= got * (time.monotonic() - began_s)
        with self._lock:
            self._running -= threads


@dataclass
class Rates:
    """What searches and builds take, in CPU seconds."""

    cores: Cores
    search_s: tuple[float, float] = (0.0, 0.0)
    """the part of a search that one thread does: for a round, and besides for each of its candidates"""
    search_threads_s: tuple[float, float] = (0.0, 0.0)
    """likewise the part that all threads of the search do"""
    threads: int = 1
    build_s: float = 0.0
    """of a candidate, by one thread"""
    speed: float = 1.0
    """all of it, and measurements, are so much faster: for the start of a session"""

    def search(self, count: int) -> None:
        for (a_round, each), threads in ((self.search_s, 1), (self.search_threads_s, self.threads)):
            self.cores.spend(a_round + count * each, threads, self.speed)

    def build(self) -> None:
        self.cores.spend(self.build_s, speed=self.speed)

    def measure(self, secs: float) -> None:
        time.sleep(secs / self.speed)


class SimulatedChild(Child):
    """In place of the process that searches, or that builds."""

    def __init__(self, rates: Rates) -> None:
        self._rates = rates
        self._known: set[str] = set()
        self._numbers = itertools.count()

    @contextlib.contextmanager
    def preemptible_by(self, hold: Preemption) -> Iterator[None]:
        del hold
        yield

    def stop(self) -> None:
        pass

    def call(self, method: str, timeout_s: float, **payload: Any) -> Any:
        del timeout_s
        name = payload["workload_hash"]
        if method == "knows":
            return name in self._known
        if method == "open":
            self._known.add(name)
        if method == "propose":
            self._rates.search(payload["count"])
            traces = [f'["{name} {next(self._numbers)}"]' for _ in range(payload["count"])]
            return [{"candidate": candidate_id(name, payload["target_key"], each), "trace": each} for each in traces]
        return None


class SimulatedBuilder(BuilderProcess):
    """In place of a builder's process."""

    def __init__(self, rates: Rates) -> None:
        self.child = SimulatedChild(rates)
        self._rates = rates

    def learn(self, *_args: Any, **_options: Any) -> list[Any]:
        return []

    def build(self, *_args: Any, **_options: Any) -> BuiltCandidate:
        self._rates.build()
        # Different code each time: a simulated kernel's time follows from it.
        return BuiltCandidate(Status.OK, "", os.urandom(_CODE_BYTES), "", self._rates.build_s, {})

    def stop(self) -> None:
        pass


def tuner(rates: Rates, context: WorkerContext) -> Tuner:
    with patch.object(tune, "Child", lambda *_: SimulatedChild(rates)):
        return Tuner(context)


def builder(rates: Rates, context: WorkerContext) -> Builder:
    with patch.object(build, "BuilderProcess", lambda *_: SimulatedBuilder(rates)):
        return Builder(context)
