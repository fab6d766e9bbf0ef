"""Simulated workers as coroutines: hundreds of them in one process, each with the exact commands of a real one.

They send the commands of a real worker for a piece of work to Redis, RQ's bookkeeping included. So Redis and the server
have the same work; a test compares Redis's counts. Two things differ. Commands with answers that a worker ignores
travel together. Nothing is searched, built or measured: the workers sleep as long as the work took in a real log.
`benchmarks.support.simulated_fleet` has many of them.
"""

import asyncio
import json
import random
import time
import uuid
import zlib
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from redis import asyncio as aioredis
from redis.exceptions import ResponseError
from rq.utils import utcformat

from benchmarks.queue_cost import TRACE
from fractune_core.files.bundles import Bundle
from fractune_core.fleet import messages, redis_names
from fractune_core.fleet.blobs import add_signed_blob
from fractune_core.fleet.messages import CPU_BATCH, BuildWork, CandidateItem, MeasureWork, WorkerInfo, cancelled_by
from fractune_core.fleet.redis_state import CANCELLED, DONE, mark
from fractune_core.fleet.signed_messages import open_dated_work, seal_event, seal_work, seal_worker
from fractune_core.names import UNTUNED_VARIANT
from fractune_core.records import ArtifactItem, Kind, Status, candidate_id
from fractune_workers.context import WorkCounts
from tests.support.processes.made_up import DEVICE, TARGET, VERSIONS, granted, made_up_record
from tests.support.secret import SECRET

SHARE = "cpu:1"
ARTIFACT = b"\0" * 16_384
"""as many bytes as the object file of an operator usually has"""
_TTL_S = 24 * 3600
"""of what a worker notes of itself and of a piece of work"""
_BLPOP_S = 405
_CONNECT_S = 60.0
"""that a connection may take"""
_SIGNATURE_BYTES = 32
"""the prefix of signed content: fractune_core.fleet.signed_messages"""
SECS = json.loads(Path(__file__).with_name("service_times.json").read_text(encoding="utf-8"))["secs"]


@dataclass
class FleetLife:
    """The lives and deaths of a simulated fleet's workers, and their work."""

    seed: int = 1
    crashes: float = 0.0
    """of so many pieces of work one ends its worker, as `kill -9` does"""
    drains: float = 0.0
    """after so many pieces of work the worker must stop, and another takes its place"""
    speed: float = 1.0
    """service times are divided by it"""
    done: Counter[str] = field(default_factory=Counter)
    """pieces of work by what they are, and `crash` and `drain`"""
    chance: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)

    def service_s(self, kind: str) -> float:
        return float(self.chance.choice(SECS[kind])) / self.speed


class Crash(Exception):
    """The worker is gone from one moment to the next."""


class SimulatedWorker:
    """One worker of one role: `tune`, `build` or `measure`."""

    def __init__(self, url: str, role: str, name: str, life: FleetLife) -> None:
        self.name, self.role, self.life = name, role, life
        self.counts = WorkCounts()
        self.started_at = time.time()
        self.redis = aioredis.Redis.from_url(
            url, socket_timeout=None, socket_connect_timeout=_CONNECT_S, single_connection_client=True
        )
        self._key = f"rq:worker:{name}"
        self._queue = {
            "tune": redis_names.tune_queue(name),
            "build": redis_names.BUILD_QUEUE,
            "measure": redis_names.measure_queue(DEVICE.key, SHARE),
        }[role]
        self._stream = redis_names.tuner_stream(name)
        self._known: set[str] = set()
        """workloads that its child has"""
        self._proposed: Counter[str] = Counter()
        self._do = {
            "search": self._search,
            "build": self._build,
            "measure": self._measure,
            "time_model": self._time_model,
        }

    def entry(self) -> str:
        """Its heartbeat of every second, sealed."""
        measuring = self.role == "measure"
        info = WorkerInfo(
            name=self.name,
            role=self.role,
            host="simulated",
            pid=1,
            started_at=self.started_at,
            cores=[0],
            device=DEVICE if measuring else None,
            granted=granted(SHARE) if measuring else None,
            share=SHARE if measuring else "",
            target=TARGET if measuring else "",
            versions=VERSIONS,
        )
        return seal_worker(SECRET, self.counts.describe(info))

    async def serve(self, most: int | None = None) -> None:
        """Do pieces of work, `most` of them, until it is drained. Raises Crash where it is to die in the middle."""
        await self._begin()
        done = 0
        while most is None or done < most:
            await self._one()
            done += 1
            if self.life.drains and self.life.chance.random() < 1 / self.life.drains:
                self.life.done["drain"] += 1
                break
        await self._end()

    # ---- the loop's bookkeeping--------------------------------------------------------------------

    async def _begin(self) -> None:
        if self.role == "tune":
            await self._join_stream()

    async def _end(self) -> None:
        await self.redis.delete(self._key)

    async def _one(self) -> None:
        """Wait for a piece of work, and do it."""
        job = await self._take()
        found = await self._read(job)
        if found is None:
            return
        work, queued_at = found
        started = await self._note_begun(job)
        self.counts.begin(work.task, time.time() - queued_at)
        began = time.perf_counter()
        await self._do[work.task](work)
        self.counts.end(work.task, time.perf_counter() - began, 0.0)
        self.life.done[work.task] += 1
        await self._note_ended(job, started)

    async def _take(self) -> str:
        async with self.redis.pipeline(transaction=True) as pipe:
            self._note_state(pipe, "idle")
            await pipe.execute()
        while True:
            taken: Any = await self.redis.blmove(
                f"rq:queue:{self._queue}", f"rq:queue:{self._queue}:intermediate", _BLPOP_S, "LEFT", "RIGHT"
            )
            if taken is not None:
                return str(taken.decode())

    async def _read(self, job: str) -> tuple[Any, float] | None:
        """The work, and when it was queued; None when it was taken back meanwhile."""
        data: Any = await self.redis.hget(f"rq:job:{job}", "data")
        if data is None:
            return None
        return open_dated_work(SECRET, self._queue, job, json.loads(zlib.decompress(data))[2][0])

    async def _note_begun(self, job: str) -> str:
        started, now = f"{job}:{uuid.uuid4().hex}", time.time()
        key = f"rq:execution:{started}"
        async with self.redis.pipeline(transaction=True) as pipe:
            self._note_state(pipe, "busy")
            pipe.hset(key, mapping={"created_at": now, "worker_name": self.name})
            pipe.expire(key, _TTL_S)
            pipe.zadd(f"rq:wip:{self._queue}", {started: now + _TTL_S})
            pipe.hset(f"rq:job:{job}", "status", "started")
            pipe.lrem(f"rq:queue:{self._queue}:intermediate", 1, job)
            await pipe.execute()
        return started

    async def _note_ended(self, job: str, started: str) -> None:
        async with self.redis.pipeline(transaction=True) as pipe:
            pipe.zrem(f"rq:wip:{self._queue}", started)
            pipe.delete(f"rq:execution:{started}")
            pipe.delete(f"rq:job:{job}")
            await pipe.execute()

    def _note_state(self, pipe: Any, state: str) -> None:
        pipe.hset(self._key, "state", state)
        pipe.expire(self._key, _TTL_S)

    # ---- roles ----------------------------------------------------------------------------------

    async def _is_obsolete(self, work: Any) -> bool:
        if await self.redis.zscore(DONE, work.work_id) is not None:
            return True
        return await self.redis.zscore(CANCELLED, cancelled_by(work)) is not None

    async def _serve_for(self, kind: str) -> None:
        """Sleep as long as it takes. Raises Crash where this is to be its last."""
        secs = self.life.service_s(kind)
        if self.life.crashes and self.life.chance.random() < 1 / self.life.crashes:
            await asyncio.sleep(secs * self.life.chance.random())
            raise Crash
        await asyncio.sleep(secs)

    async def _read_blob(self, name: str) -> bytes:
        """As fractune_core.fleet.blobs reads one of one chunk, without a look at its signature."""
        key = redis_names.blob_key(name)
        found: Any = await self.redis.lrange(key, 0, 0) if await self.redis.llen(key) else [b""]
        return bytes(found[0]) if found else b""

    async def _learn(self, workload_hash: str) -> None:
        if workload_hash not in self._known:
            self._known.add(workload_hash)
            await self._read_blob(redis_names.workload_blob(workload_hash))

    async def _join_stream(self) -> None:
        for group in (redis_names.RECORDER, redis_names.TUNER):
            try:
                await self.redis.xgroup_create(self._stream, group, id="0", mkstream=True)
            except ResponseError as error:
                if "BUSYGROUP" not in str(error):
                    raise
        await self.redis.sadd(redis_names.STREAMS, self._stream)

    async def _search(self, work: Any) -> None:
        await self._join_stream()
        while True:
            try:
                answer: Any = await self.redis.xreadgroup(redis_names.TUNER, self.name, {self._stream: ">"}, count=1000)
            except ResponseError as error:
                if "NOGROUP" not in str(error):
                    raise
                await self._join_stream()  # it was taken for dead, and its stream removed
                continue
            found = answer if not isinstance(answer, dict) else list(answer.items())
            entries = [entry for _, held in found or () for entry in _flat(held)]
            if not entries:
                break
            await self.redis.xack(self._stream, redis_names.TUNER, *(entry for entry, _ in entries))
        if await self._is_obsolete(work):
            return
        name = work.round.operator.workload_hash
        await self._learn(name)
        await self._serve_for("search")
        items = []
        for _ in range(work.count):
            self._proposed[name] += 1
            trace = f'["{self.name} {self._proposed[name]}{TRACE}"]'
            items.append(CandidateItem(candidate_id(name, work.round.operator.target_key, trace), trace))
        proposed: Any = {"event": "proposed", "job": work.job, "round_id": work.round.id, "workload_hash": name}
        proposed |= {"candidates": [item.candidate for item in items], "exhausted": False}
        async with self.redis.pipeline(transaction=True) as pipe:
            pipe.xadd(self._stream, {redis_names.EVENT_FIELD: seal_event(SECRET, proposed)})
            for start in range(0, len(items), CPU_BATCH):
                build = BuildWork(
                    work_id=uuid.uuid4().hex,
                    job=work.job,
                    tenant=work.tenant,
                    round=work.round,
                    purpose=Kind.TRIAL,
                    device_key=work.device_key,
                    shares=work.shares,
                    candidates=items[start : start + CPU_BATCH],
                    reply=self._stream,
                )
                _enqueue(pipe, redis_names.BUILD_QUEUE, build)
            await self._deliver(pipe, work)

    async def _build(self, work: Any) -> None:
        if await self._is_obsolete(work):
            return
        await self._learn(work.round.operator.workload_hash)
        await self._serve_for("build")
        artifacts = [ArtifactItem(item.candidate, item.trace, Status.OK, "", 0.25) for item in work.candidates]
        async with self.redis.pipeline(transaction=True) as pipe:
            for item in artifacts:
                blob = redis_names.artifact_blob(work.round.id, item.candidate)
                add_signed_blob(pipe, SECRET, blob, ARTIFACT)
            for share in work.shares:
                measure = MeasureWork(
                    work_id=uuid.uuid4().hex,
                    job=work.job,
                    tenant=work.tenant,
                    round=work.round,
                    purpose=work.purpose,
                    share=share,
                    args_info=[],
                    candidates=artifacts,
                    reply=work.reply,
                )
                _enqueue(pipe, redis_names.measure_queue(work.device_key, share), measure)
            await self._deliver(pipe, work)

    async def _measure(self, work: Any) -> None:
        if await self._is_obsolete(work):
            return
        for item in work.candidates:
            await self._read_blob(redis_names.artifact_blob(work.round.id, item.candidate))
        await self._serve_for("measure")
        async with self.redis.pipeline(transaction=True) as pipe:
            for item in work.candidates:
                record = made_up_record(work, item.candidate, item.trace, worker=self.name)
                event: Any = {"event": "measured", "job": work.job, "round_id": work.round.id}
                event["record"] = record.to_json()
                pipe.xadd(work.reply, {redis_names.EVENT_FIELD: seal_event(SECRET, event)})
            await self._deliver(pipe, work)

    async def _time_model(self, work: Any) -> None:
        if await self._is_obsolete(work):
            return
        bundle = await self._read_blob(redis_names.bundle_blob(work.bundle))
        await self._serve_for("measure")
        variants = [variant["name"] for variant in Bundle(bundle[_SIGNATURE_BYTES:]).variants]
        event: Any = {"event": "model_timed", "job": work.job, "share": work.share}
        event |= {
            "granted": granted(SHARE).to_json(),
            "at_load": [],
            "others_cores": 0.0,
            "inside": None,
            "max_error": dict.fromkeys(variants, 0.0),
        }
        event["run_secs"] = {name: [2.0] * 3 if name == UNTUNED_VARIANT else [1.0] * 3 for name in variants}
        async with self.redis.pipeline(transaction=True) as pipe:
            pipe.xadd(redis_names.SERVER_STREAM, {redis_names.EVENT_FIELD: seal_event(SECRET, event)})
            await self._deliver(pipe, work)

    async def _deliver(self, pipe: Any, work: Any) -> None:
        share = getattr(work, "share", "")
        spent = messages.PieceDone(work.work_id, work.job, work.task, share, 0.1, 0.1, time.time())
        pipe.xadd(redis_names.SERVER_STREAM, {redis_names.EVENT_FIELD: seal_event(SECRET, spent)})
        mark(pipe, DONE, work.work_id)
        job = f"rq:job:{work.work_id}"
        pipe.delete(job)
        # As a worker's ResultTransaction: once, also where two do the same work.
        commands = list(pipe.command_stack)
        await pipe.reset()
        await pipe.watch(job)
        if await pipe.zscore(DONE, work.work_id) is None:
            pipe.multi()
            pipe.command_stack = commands
            await pipe.execute()


def _enqueue(pipe: Any, queue: str, work: Any) -> None:
    """As RQ's `enqueue_many` does within a transaction."""
    now = _text(time.time())
    data = json.dumps([redis_names.HANDLER, None, [seal_work(SECRET, queue, work)], {}]).encode()
    job = f"rq:job:{work.work_id}"
    fields = {"created_at": now, "enqueued_at": now, "origin": queue, "status": "queued", "description": work.task}
    pipe.sadd("rq:queues", f"rq:queue:{queue}")
    pipe.hset(job, "status", "queued")
    pipe.hset(job, mapping={**fields, "data": zlib.compress(data), "timeout": 180})
    pipe.rpush(f"rq:queue:{queue}", work.work_id)


def _text(at: float) -> str:
    """A time of day as RQ writes it."""
    return utcformat(datetime.fromtimestamp(at, UTC))


def _flat(found: Any) -> Any:
    """Entries as (id, fields); the client library nests them once more under RESP3."""
    if found and isinstance(found[0], list) and found[0] and isinstance(found[0][0], (list, tuple)):
        return found[0]
    return found
