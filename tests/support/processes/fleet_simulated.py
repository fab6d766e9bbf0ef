"""A simulated fleet: real RQ workers on a real Redis that answer work with made-up, repeatable results.

It stands in for workers/fractune_workers/ and TVM, so that the server is tested by itself. A "model" is JSON text:
`{"operators": [{"name": ..., "weight": ..., "space": N}]}`; `space` bounds the candidates of an operator. Where it has
`flops`, `io_bytes` or `written_bytes`, ingest tells them; where it has `implementation`, candidates are of that one
unless they must be exact.
`python -m tests.support.processes.fleet_simulated URL ROLE NAME [SHARE]` runs one worker as a process of its own,
to be killed.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import redis
from rq import Queue
from rq.serializers import JSONSerializer

from fractune_core.analysis.at_load import AtLoad
from fractune_core.analysis.inside import CallTime, Inside
from fractune_core.analysis.roofline import Roof
from fractune_core.files.bundles import Bundle
from fractune_core.fleet import redis_names
from fractune_core.fleet.blobs import get_blob, get_signed_blob, has_blob, put_blob, put_signed_blob
from fractune_core.fleet.messages import (
    BuildWork,
    CandidateItem,
    CompileWork,
    IngestWork,
    MeasureWork,
    SearchWork,
    TimeModelWork,
    WorkerInfo,
    cancelled_by,
    trial_of,
)
from fractune_core.fleet.redis_state import CANCELLED, DONE, drop_entry, is_marked, mark, put_entry
from fractune_core.fleet.signed_messages import open_dated_work, seal_event, seal_work, seal_worker
from fractune_core.operators import DIRECT, text_of
from fractune_core.records import UNTUNED, ArtifactItem, Kind, Status, candidate_id
from fractune_core.shares import GrantedShare, Share
from fractune_workers.context import WorkCounts
from fractune_workers.entry import ANSWER_TIMEOUT_S, WorkLoop
from tests.support.client_samples import bundle_bytes, variants
from tests.support.processes.made_up import (
    DEVICE,
    TARGET,
    TARGET_KEY,
    VERSIONS,
    granted,
    made_up_record,
    outcome,
    piece_done,
    workload_hash,
    workload_text,
)
from tests.support.processes.redis_process import wait_until
from tests.support.secret import SECRET

_LOOK_EVERY_S = 0.05

INSIDE = Inside((CallTime("conv", 2, 0.9), CallTime("vm.builtin.reshape", 1, 0.05)), 1.0, 1.1)
"""what a model takes at any share"""


class SimulatedWorker:
    """One worker of one role; `hold` keeps it from finishing what it has begun."""

    device = DEVICE
    target, target_key = TARGET, TARGET_KEY

    def __init__(self, url: str, role: str, name: str, share: str = "") -> None:
        self.name, self.role, self.share = name, role, share
        self.redis = redis.Redis.from_url(url, socket_timeout=ANSWER_TIMEOUT_S)
        self._line = redis.Redis.from_url(url, socket_timeout=2, socket_connect_timeout=2, retry=None)
        """for its entry, as a real worker has one"""
        self.hold = threading.Event()
        self.hold_after: int | None = None
        """set `hold` by itself, once, when so many measurements are made"""
        self.stopped = threading.Event()
        self.counts = WorkCounts()
        self.handled: list[Any] = []
        """all that it took"""
        self.delivered: list[Any] = []
        """of which it has sent the results"""
        self.built: list[tuple[str, str]] = []
        """kind and candidate of each build, failed ones too"""
        self.measured: list[tuple[str, str, str]] = []
        """kind, candidate and share of each measurement"""
        self._results = self.redis.pipeline(transaction=True)
        """of the work in hand: as of a real worker, all of them or none"""
        self.roof: Roof | None = None
        """sent once, with the next batch that is measured"""
        self.twice = False
        """deliver every result two times"""
        self.forgetful = False
        """lose every search before the next one, as a tuner whose child was killed"""
        self._next: dict[tuple[str, str, str], int] = defaultdict(int)
        self._handlers: dict[str, Callable[[Any], None]] = {
            "ingest": self._ingest,
            "search": self._search,
            "build": self._build,
            "measure": self._measure,
            "compile": self._compile,
            "time_model": self._time_model,
        }

    # ---- life -----------------------------------------------------------------------------------

    def start(self) -> SimulatedWorker:
        if self.role == "tune":
            stream = redis_names.tuner_stream(self.name)
            for group in (redis_names.RECORDER, redis_names.TUNER):
                with contextlib.suppress(redis.ResponseError):
                    self.redis.xgroup_create(stream, group, id="0", mkstream=True)
            self.redis.sadd(redis_names.STREAMS, stream)
        self.started_at = time.time()
        self.register()
        self._threads = [
            threading.Thread(target=self._renew, daemon=True, name=f"renew {self.name}"),
            threading.Thread(target=self._work, daemon=True, name=f"work {self.name}"),
        ]
        for thread in self._threads:
            thread.start()
        return self

    def stop(self) -> None:
        self.stopped.set()
        self.hold.clear()
        for thread in self._threads:
            thread.join()
        with contextlib.suppress(redis.RedisError):
            drop_entry(self.redis, self.name)
        self.redis.close()
        self._line.close()

    def register(self, line: redis.Redis | None = None) -> None:
        measuring = self.role == "measure"
        info = WorkerInfo(
            name=self.name,
            role=self.role,
            host="here",
            pid=os.getpid(),
            started_at=self.started_at,
            cores=[0],
            device=self.device if measuring else None,
            granted=self.granted() if measuring else None,
            share=self.share,
            target=self.target if measuring else "",
            versions=VERSIONS,
        )
        info = self.counts.describe(info)
        put_entry(line or self.redis, self.name, seal_worker(SECRET, info))

    def granted(self) -> GrantedShare:
        return granted(self.share)

    def _renew(self) -> None:
        while not self.stopped.wait(0.5):
            with contextlib.suppress(redis.RedisError):
                self.register(self._line)

    def queue(self) -> str:
        """Where its work comes from."""
        return {
            "compile": redis_names.COMPILE_QUEUE,
            "build": redis_names.BUILD_QUEUE,
            "tune": redis_names.tune_queue(self.name),
            "measure": redis_names.measure_queue(self.device.key, self.share),
        }[self.role]

    def _work(self) -> None:
        def do(job_id: str, message: str) -> None:
            self._handle(*open_dated_work(SECRET, self.queue(), job_id, message))

        loop = WorkLoop(self.name, self.redis, self.queue(), do)
        while not self.stopped.is_set():
            try:
                if (job_id := loop.take(_LOOK_EVERY_S)) is not None:
                    loop.work_on(job_id)
            except redis.RedisError:
                self.stopped.wait(0.1)

    # ---- work -----------------------------------------------------------------------------------

    def _handle(self, work: Any, queued_at: float) -> None:
        self.counts.begin(work.task, time.time() - queued_at)
        began = time.perf_counter()
        try:
            self._deliver(work)
        finally:
            self.counts.end(work.task, time.perf_counter() - began, 0.0)

    def _deliver(self, work: Any) -> None:
        self.handled.append(work)
        while self.hold.is_set() and not self.stopped.is_set():
            time.sleep(0.01)
        if is_marked(self.redis, DONE, work.work_id) or is_marked(self.redis, CANCELLED, cancelled_by(work)):
            return
        self._results = self.redis.pipeline(transaction=True)
        try:
            self._send(redis_names.SERVER_STREAM, piece_done(work))
            self._handlers[work.task](work)
            mark(self._results, DONE, work.work_id)
            self._results.execute()
            self.delivered.append(work)
        except redis.RedisError:
            # A real worker ends here, and its successor is another one.
            self.started_at, self.counts = time.time(), WorkCounts()
            raise

    def _send(self, stream: str, event: Any) -> None:
        for _ in range(2 if self.twice else 1):
            self._results.xadd(stream, {redis_names.EVENT_FIELD: seal_event(SECRET, event)})

    def _enqueue(self, queue: str, work: Any) -> None:
        message, job = seal_work(SECRET, queue, work), work.work_id
        data = Queue.prepare_data(redis_names.HANDLER, args=(message,), job_id=job, at_front=work.round.at_front)
        rq_queue = Queue(queue, connection=self.redis, serializer=JSONSerializer)
        rq_queue.enqueue_many([data], pipeline=self._results)

    def _ingest(self, work: IngestWork) -> None:
        try:
            model = json.loads(get_blob(self.redis, redis_names.model_blob(work.tenant, work.model)))
        except ValueError:
            message = f"{work.model_name} is not an ONNX file"
            failed = {"event": "work_failed", "job": work.job, "task": "ingest", "error": "BadModel"}
            self._send(redis_names.SERVER_STREAM, {**failed, "message": message})
            return
        operators = [_operator_item(op) for op in model["operators"]]
        event = {"event": "ingested", "job": work.job, "target": self.target, "target_key": self.target_key}
        self._send(redis_names.SERVER_STREAM, {**event, "operators": operators})

    def _search(self, work: SearchWork) -> None:
        name = work.round.operator.workload_hash
        stream = redis_names.tuner_stream(self.name)
        search = (name, work.round.namespace, work.job if work.fresh else "")
        if self.forgetful:
            self._next.clear()
        opening = work.opening
        if opening is None and search not in self._next:
            self._send(stream, {"event": "search_forgotten", "job": work.job, "round_id": work.round.id})
            return
        operator = json.loads(get_signed_blob(self.redis, SECRET, redis_names.workload_blob(name)))
        space = operator.get("space", 1_000_000)
        known = {*opening.known, *(past.candidate for past in opening.history)} if opening else set()
        items: list[CandidateItem] = []
        while len(items) < work.count and self._next[search] < space:
            trace = json.dumps([operator["name"], self._next[search]])
            if not work.exact:
                trace = text_of(operator.get("implementation", DIRECT), trace)
            self._next[search] += 1
            candidate = candidate_id(name, work.round.operator.target_key, trace)
            if candidate not in known:
                items.append(CandidateItem(candidate, trace))
        proposed: dict[str, Any] = {
            "event": "proposed",
            "job": work.job,
            "round_id": work.round.id,
            "workload_hash": name,
        }
        proposed |= {"candidates": [item.candidate for item in items], "exhausted": len(items) < work.count}
        self._send(stream, proposed)
        if work.round.validates and items:
            items.append(CandidateItem(candidate_id(name, work.round.operator.target_key, UNTUNED), UNTUNED))
        for start in range(0, len(items), 4):
            build = BuildWork(
                work_id=f"{work.work_id}-b{start}",
                job=work.job,
                tenant=work.tenant,
                round=work.round,
                purpose=Kind.VALIDATION if work.round.validates else Kind.TRIAL,
                device_key=work.device_key,
                shares=work.shares,
                candidates=items[start : start + 4],
                reply=stream,
            )
            self._enqueue(redis_names.BUILD_QUEUE, build)

    def _build(self, work: BuildWork) -> None:
        for item in work.candidates:
            artifact = redis_names.artifact_blob(work.round.id, item.candidate)
            if item.built is None or not has_blob(self.redis, artifact):
                self.built.append((work.purpose, item.candidate))
                if outcome(item.trace) is Status.OK:
                    put_blob(self.redis, artifact, b"code")
        for place, share in enumerate(work.shares):
            measure = MeasureWork(
                work_id=f"{work.work_id}-m{place}",
                job=work.job,
                tenant=work.tenant,
                round=work.round,
                purpose=work.purpose,
                share=share,
                args_info=[],
                candidates=[
                    ArtifactItem(each.candidate, each.trace, outcome(each.trace), "made up", 0.1)
                    for each in work.candidates
                ],
                reply=work.reply,
            )
            self._enqueue(redis_names.measure_queue(work.device_key, share), measure)

    def _measure(self, work: MeasureWork) -> None:
        records = []
        for item in work.candidates:
            self.measured.append((work.purpose, item.candidate, work.share))
            records.append(made_up_record(work, item.candidate, item.trace, item.status, self.name))
        if work.round.validates and work.purpose is Kind.VALIDATION:
            records += [trial_of(work, record) for record in records if record.trace != UNTUNED]
        for record in records:
            event = {"event": "measured", "job": work.job, "round_id": work.round.id}
            self._send(work.reply, {**event, "record": record.to_json()})
        if self.hold_after is not None and len(self.measured) >= self.hold_after:
            self.hold_after = None
            self.hold.set()
        self._send_roof(work)

    def _send_roof(self, work: MeasureWork) -> None:
        if self.roof is None:
            return
        found = {"event": "roof_measured", "job": work.job, "roof": self.roof.to_json()}
        found |= {"device_key": self.device.key, "share_key": self.granted().key}
        self._send(redis_names.SERVER_STREAM, found)
        self.roof = None

    def _compile(self, work: CompileWork) -> None:
        names = [variant.name for variant in work.variants]
        payload = bundle_bytes(**{**work.manifest, "variants": variants(*names)})
        put_signed_blob(self.redis, SECRET, redis_names.bundle_blob(work.bundle), payload)
        self._send(redis_names.SERVER_STREAM, {"event": "compiled", "job": work.job, "bundle": work.bundle})

    def _time_model(self, work: TimeModelWork) -> None:
        bundle = Bundle(get_signed_blob(self.redis, SECRET, redis_names.bundle_blob(work.bundle)))
        variants, threads = [variant["name"] for variant in bundle.variants], {bundle.variants[0]["name"]: 1}
        share = Share.parse(work.share)
        if not share.kind.measures_kernels:
            threads = {str(each): each.cores for each in share.kernel_shares}
            variants = ["untuned", *threads]
        event: dict[str, Any] = {"event": "model_timed", "job": work.job, "share": work.share}
        event |= {"granted": granted(work.share).to_json(), "others_cores": 0.0, "inside": INSIDE.to_json()}
        event["run_secs"] = {v: [2.0, 2.0, 2.1] if v == "untuned" else [1.0, 1.0, 1.1] for v in variants}
        event["max_error"] = dict.fromkeys(variants, 0.0)
        event["at_load"] = [AtLoad(name, n, (1.0,) * 6, (1.5 / n,) * 6).to_json() for name, n in threads.items()]
        self._send(redis_names.SERVER_STREAM, event)


def _operator_item(op: dict[str, Any]) -> dict[str, Any]:
    facts = {name: op[name] for name in ("space", "implementation") if name in op}
    return {
        "workload_hash": workload_hash(op["name"], **facts),
        "name": op["name"],
        "weight": op["weight"],
        "workload": workload_text(op["name"], **facts),
        "flops": op.get("flops", 0.0),
        "io_bytes": op.get("io_bytes", 0),
        "written_bytes": op.get("written_bytes", 0),
    }


class SimulatedFleet:
    """Workers by name, in threads of this process."""

    def __init__(self, url: str | Callable[[str], str]) -> None:
        self.url = url
        """of Redis, or what gives that of each role"""
        self.workers: dict[str, SimulatedWorker] = {}

    def add(self, role: str, name: str, share: str = "") -> SimulatedWorker:
        url = self.url if isinstance(self.url, str) else self.url(role)
        self.workers[name] = SimulatedWorker(url, role, name, share).start()
        return self.workers[name]

    def remove(self, name: str) -> None:
        self.workers.pop(name).stop()

    def hold_measurers_after(self, count: int) -> None:
        """Each stops by itself when it has made about so many measurements: a job stays where it is then."""
        for worker in self.measurers():
            worker.hold_after = count

    def wait_until_measurers_hold(self) -> None:
        wait_until(lambda: all(worker.hold.is_set() for worker in self.measurers()))

    def release_measurers(self) -> None:
        for worker in self.measurers():
            worker.hold.clear()

    def measurers(self) -> list[SimulatedWorker]:
        return [worker for worker in self.workers.values() if worker.role == "measure"]

    @contextlib.contextmanager
    def held(self, *names: str) -> Iterator[None]:
        """These workers take work within, and finish it afterwards."""
        for name in names:
            self.workers[name].hold.set()
        try:
            yield
        finally:
            for name in names:
                self.workers[name].hold.clear()

    def stop(self) -> None:
        for name in list(self.workers):
            self.remove(name)


@contextlib.contextmanager
def simulated_fleet(url: str | Callable[[str], str], *, tuners: int = 1) -> Iterator[SimulatedFleet]:
    """One worker of every role, and measurers for cpu:1 and cpu:2."""
    fleet = SimulatedFleet(url)
    try:
        fleet.add("compile", "compile-1")
        fleet.add("build", "build-1")
        for index in range(tuners):
            fleet.add("tune", f"tune-{index + 1}")
        for share in ("cpu:1", "cpu:2"):
            fleet.add("measure", f"measure-{share[-1]}", share)
        yield fleet
    finally:
        fleet.stop()


def main() -> None:
    logging.basicConfig(level=logging.ERROR)
    worker = SimulatedWorker(*sys.argv[1:])
    if os.environ.get("HOLD"):
        worker.hold.set()
    worker.start().stopped.wait()


if __name__ == "__main__":
    main()
