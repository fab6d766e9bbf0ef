"""Clients of a server under load, as coroutines of one process: each with its own connection.

A client submits a job, watches it to its end, and requests other things meanwhile: the job, the list of jobs, the log,
the fleet. It notes the duration of every call, and whether every watch received all changes that other calls saw.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import grpc

from fractune_core.pb import fractune_pb2 as pb, fractune_pb2_grpc as rpc

_ASK_EVERY_S = 2.0
_PAUSE_S = 20.0
"""between two jobs of a client, on average"""
_CALL_TIMEOUT_S = 60.0
_PAGE = 100


@dataclass
class Observations:
    """The observations of a run's clients."""

    call_s: dict[str, list[float]] = field(default_factory=dict)
    """seconds of each call that was answered, by method"""
    behind_s: list[float] = field(default_factory=list)
    """from GetJob's first answer with a revision until the watch had reported it, too; 0 where it had before"""
    failed: Counter[str] = field(default_factory=Counter)
    """calls that ended with an error, by method and status"""
    jobs: int = 0
    """watched to their end"""
    messages: int = 0
    """on all watches"""
    lost: list[str] = field(default_factory=list)
    """changes that a watch missed, or reported in a wrong order"""


@dataclass(frozen=True)
class LoadPlan:
    """The tasks of the clients."""

    address: str
    models: list[str]
    share: str
    clients: int
    secs: float
    """so long they begin new jobs; those that are open then are watched to their end"""
    more: int
    """candidates of each job"""
    pause_s: float = _PAUSE_S


def run_clients(load: LoadPlan) -> Observations:
    """In a separate process."""
    return asyncio.run(_run(load))


async def _run(load: LoadPlan) -> Observations:
    seen, ends_at = Observations(), time.monotonic() + load.secs
    await asyncio.gather(*(_Client(load, number, seen, ends_at).live() for number in range(load.clients)))
    return seen


class WatchCheck:
    """Check of one watch for completeness: revisions only grow, states only go on, and GetJob's revisions arrive."""

    def __init__(self) -> None:
        self._revision, self._state = 0, 0
        self._wanted: dict[int, float] = {}
        """revisions that GetJob reported before the watch, with their moments"""
        self.behind_s: list[float] = []
        self.lost: list[str] = []
        self.ended = False

    def watch_told(self, job: pb.Job, now: float) -> None:
        if job.revision <= self._revision or job.state < self._state or self.ended:
            self.lost.append(f"{job.name}: revision {job.revision} after {self._revision}")
        self._revision, self._state = job.revision, job.state
        self.ended = job.HasField("end_time")
        for revision in [revision for revision in self._wanted if revision <= job.revision]:
            self.behind_s.append(now - self._wanted.pop(revision))

    def call_told(self, job: pb.Job, now: float) -> None:
        if job.revision <= self._revision:
            self.behind_s.append(0.0)
        else:
            self._wanted.setdefault(job.revision, now)

    def finish(self, last: pb.Job) -> list[str]:
        """The missing changes, once the watch is over; `last` is the job as GetJob returns it then."""
        if not self.ended or last.revision != self._revision:
            self.lost.append(f"{last.name}: the watch ended with revision {self._revision} of {last.revision}")
        self.lost += [f"{last.name}: revision {revision} never came" for revision in self._wanted]
        return self.lost


class _Client:
    def __init__(self, load: LoadPlan, number: int, seen: Observations, ends_at: float) -> None:
        self._load, self._seen, self._ends_at = load, seen, ends_at
        self._namespace = f"client-{number}"
        self._jobs_begun = 0
        self._model = load.models[number % len(load.models)]
        self._chance = random.Random(number)

    async def live(self) -> None:
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(self._load.address, options=options) as channel:
            self._jobs = rpc.JobServiceStub(channel)
            self._log = rpc.LogServiceStub(channel)
            self._fleet = rpc.FleetServiceStub(channel)
            await asyncio.sleep(self._chance.uniform(0.0, min(self._load.pause_s, self._load.secs / 2)))
            while time.monotonic() < self._ends_at:
                await self._one_job()
                await asyncio.sleep(self._chance.uniform(0.5, 1.5) * self._load.pause_s)

    async def _one_job(self) -> None:
        # A separate namespace: each job finds as little as the first one, so that growth is not the job's.
        namespace = f"{self._namespace}-{self._jobs_begun}"
        self._jobs_begun += 1
        spec = pb.JobSpec(model=self._model, shares=[self._load.share], more=self._load.more, namespace=namespace)
        created = await self._timed("CreateJob", self._jobs.CreateJob, pb.CreateJobRequest(spec=spec))
        if created is None:
            return
        check, over = WatchCheck(), asyncio.Event()
        asking = asyncio.create_task(self._ask(created.name, check, over))
        try:
            async for job in self._jobs.WatchJob(pb.WatchJobRequest(name=created.name)):
                check.watch_told(job, time.monotonic())
                self._seen.messages += 1
        except grpc.aio.AioRpcError as error:
            self._seen.failed[f"WatchJob {error.code().name}"] += 1
        over.set()
        await asking
        last = await self._timed("GetJob", self._jobs.GetJob, pb.GetJobRequest(name=created.name))
        if last is not None:
            self._seen.lost += check.finish(last)
            if last.state != pb.JOB_STATE_DONE:
                self._seen.failed[f"job {pb.JobState.Name(last.state)} {last.message}"] += 1
        self._seen.behind_s += check.behind_s
        self._seen.jobs += 1

    async def _ask(self, job: str, check: WatchCheck, over: asyncio.Event) -> None:
        """One question after the other, until the watch is over."""
        others: list[tuple[str, Callable[..., Awaitable[Any]], Any]] = [
            ("ListJobs", self._jobs.ListJobs, pb.ListJobsRequest(page_size=20)),
            ("ListRecords", self._log.ListRecords, pb.ListRecordsRequest(page_size=_PAGE)),
            ("ListShares", self._fleet.ListShares, pb.ListSharesRequest()),
        ]
        while not over.is_set():
            found = await self._timed("GetJob", self._jobs.GetJob, pb.GetJobRequest(name=job))
            if found is not None:
                check.call_told(found, time.monotonic())
            await self._timed(*self._chance.choice(others))
            try:
                await asyncio.wait_for(over.wait(), self._chance.uniform(0.5, 1.5) * _ASK_EVERY_S)
            except TimeoutError:
                continue

    async def _timed(self, method: str, call: Callable[..., Awaitable[Any]], request: Any) -> Any:
        """The answer; None for an error, which is counted."""
        began = time.perf_counter()
        try:
            answer = await call(request, timeout=_CALL_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            self._seen.failed[f"{method} {error.code().name}"] += 1
            return None
        self._seen.call_s.setdefault(method, []).append(time.perf_counter() - began)
        return answer
