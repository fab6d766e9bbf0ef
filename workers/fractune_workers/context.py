"""The resources of every role: the queue, the fleet's secret, the core locks, and one way to deliver results."""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import redis
from rq import Queue
from rq.job import Job
from rq.serializers import JSONSerializer

from fractune_core import tracing
from fractune_core.errors import BadModel, FractuneError, as_message
from fractune_core.fleet import messages, redis_state
from fractune_core.fleet.blobs import add_signed_blob, get_signed_blob
from fractune_core.fleet.redis_names import BLOB_TTL_S, EVENT_FIELD, HANDLER, SERVER_STREAM, workload_blob
from fractune_core.fleet.redis_state import CANCELLED, DONE, HANDED_BACK, is_marked, mark
from fractune_core.fleet.signed_messages import seal_event, seal_work
from fractune_core.operators import check_workload
from fractune_workers.child import Child
from fractune_workers.locks.core_locks import CoreLocks

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_AFTER_NAME = 11
"""fields of /proc/PID/stat that lie between the name and user time"""


class Spent(NamedTuple):
    worked_s: float
    """without waits for locks"""
    cpu_s: float


class Meter:
    """Starts when it is made. `waited_s` returns how long this process has waited for locks so far."""

    def __init__(self, waited_s: Callable[[], float]) -> None:
        self._waited_s = waited_s
        self._began = self._now()

    def read(self) -> Spent:
        now = self._now()
        return Spent(*(max(0.0, after - before) for before, after in zip(self._began, now, strict=True)))

    def _now(self) -> Spent:
        return Spent(time.perf_counter() - self._waited_s(), cpu_s())


def cpu_s() -> float:
    """CPU seconds of this process so far, with its children, living and dead, and the dead children of these."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages) + sum(map(_used_s, _children()))


def _children() -> Iterator[int]:
    """Process ids of the children of all threads; none where the kernel does not list them."""
    for place in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread has just ended
            yield from map(int, place.read_text().split())


def _used_s(pid: int) -> float:
    """CPU seconds of a process and of its children that ended; 0 when it has just ended."""
    with contextlib.suppress(OSError, ValueError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[_AFTER_NAME : _AFTER_NAME + 4])) / _TICKS_PER_S
    return 0.0


class WorkCounts:
    """Thread-safe: one thread works and counts, another renews the worker's entry."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: defaultdict[redis_state.CountKey, float] = defaultdict(float)
        self._busy = False
        self._began = time.monotonic()

    def begin(self, kind: str, waited_s: float) -> None:
        """A piece of work of this kind begins, `waited_s` after it was queued, by the clocks of two hosts."""
        with self._lock:
            self._busy = True
            self._note(redis_state.SCHEDULE_TO_START, kind, max(0.0, waited_s))

    def end(self, kind: str, took_s: float, locks_s: float) -> None:
        """The work has ended, well or not; of `took_s` it waited `locks_s` for locks."""
        with self._lock:
            self._busy = False
            self._note(redis_state.WORK_DURATION, kind, max(0.0, took_s - locks_s))
            self._note(redis_state.GATE_WAIT, kind, locks_s)

    def add(self, name: str, label: str = "", count: int = 1) -> None:
        """Add `count` to a counter."""
        with self._lock:
            self._counts[redis_state.CountKey(name, label, redis_state.COUNT)] += count

    def describe(self, info: messages.WorkerInfo) -> messages.WorkerInfo:
        """The worker's entry with the present counts."""
        with self._lock:
            counts = [(*key, value) for key, value in self._counts.items()]
            state, uptime_s = messages.BUSY if self._busy else messages.IDLE, time.monotonic() - self._began
            return replace(info, state=state, uptime_s=uptime_s, counts=counts)

    def _note(self, name: str, label: str, secs: float) -> None:
        self._counts[redis_state.CountKey(name, label, redis_state.bucket_of(secs))] += 1
        self._counts[redis_state.CountKey(name, label, redis_state.SUM)] += secs


_MEMORY_PATIENCE_S = 30.0
"""how long a worker keeps results while Redis is out of memory"""
_MEMORY_LOOK_EVERY_S = 0.5

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WorkerContext:
    """The resources of one worker."""

    name: str
    redis: redis.Redis
    secret: bytes
    core_locks: CoreLocks
    cores: list[int]
    """cores that this worker may compute on"""
    scratch_dir: Path
    """a folder of its own, removed when the worker ends"""
    counts: WorkCounts = field(default_factory=WorkCounts)

    def is_obsolete(self, work: messages.Work) -> bool:
        """True when a worker that died afterwards has delivered the work, or when its job was cancelled."""
        if is_marked(self.redis, DONE, work.work_id):
            _log.warning("%s %s is refused: it was delivered before, or withdrawn", work.task, work.work_id)
            return True
        return not self.is_wanted(work)

    def is_wanted(self, work: messages.Work) -> bool:
        return not is_marked(self.redis, CANCELLED, messages.cancelled_by(work))

    def hand_back(self, work: messages.Work) -> None:
        """Note that this worker ends without having done the work, and that the work is not the reason."""
        with contextlib.suppress(redis.RedisError):  # else it counts as a death, and work survives two deaths
            mark(self.redis, HANDED_BACK, work.work_id)

    def signed_blob(self, name: str) -> bytes:
        """The blob, its signature checked. Raises NotFound or Unsigned."""
        return get_signed_blob(self.redis, self.secret, name)

    def workload(self, workload_hash: str) -> str:
        """The text of an operator. Raises as `signed_blob`, and BadRequest for the text of another one."""
        text = self.signed_blob(workload_blob(workload_hash)).decode()
        check_workload(workload_hash, text)
        return text

    @contextlib.contextmanager
    def computing(self, child: Child) -> Iterator[None]:
        """Within the block `child` may compute on this worker's cores; it is stopped while a measurement needs them."""
        with self.core_locks.working(self.cores) as hold, child.preemptible_by(hold):
            yield

    def load(self, child: Child) -> None:
        """Have `child` load TVM and the like; when it cannot, the first work reports why."""
        with contextlib.suppress(FractuneError), self.computing(child):
            child.ensure()

    def meter(self) -> Meter:
        return Meter(lambda: self.core_locks.waited_s)

    def transaction(self, work: messages.Work, meter: Meter | None = None) -> ResultTransaction:
        """Make it when the work begins, or pass a `meter` that runs since then: it reports the cost of the work."""
        return ResultTransaction(self, work, meter or self.meter())


class ResultTransaction:
    """The results of one piece of work, delivered in one transaction: all of them or none."""

    def __init__(self, context: WorkerContext, work: messages.Work, meter: Meter) -> None:
        self._context = context
        self._work = work
        self._meter = meter
        self._job_key = Job.key_for(work.work_id)
        self._pipe = context.redis.pipeline(transaction=True)

    def event(self, stream: str, event: messages.Event) -> None:
        """Raises BadModel for an event that is too large: a model of very many operators."""
        sealed = seal_event(self._context.secret, event)
        if len(sealed) > messages.MOST_EVENT_BYTES:
            raise BadModel(
                f"the result ({event.event}) has {len(sealed):,} bytes, and {messages.MOST_EVENT_BYTES:,} is the "
                "limit; tune a part of the model"
            )
        self._pipe.xadd(stream, {EVENT_FIELD: sealed})

    def events(self, stream: str, events: Iterable[messages.Event]) -> None:
        for event in events:
            self.event(stream, event)

    def failure(self, kind: str, message: str) -> messages.WorkFailed:
        """The event of a failure of the work; `kind` names the error's class."""
        work = self._work
        round_id = work.round.id if isinstance(work, messages.RoundWork) else ""
        return messages.WorkFailed(
            job=work.job, task=work.task, round_id=round_id, error=kind, message=as_message(message)
        )

    def blob(self, name: str, payload: bytes, ttl_s: int = BLOB_TTL_S) -> None:
        """Put `payload`, signed, where the next worker finds it within `ttl_s` seconds."""
        add_signed_blob(self._pipe, self._context.secret, name, payload, ttl_s)

    def enqueue(self, queue: str, work: messages.BuildWork | messages.MeasureWork) -> None:
        rq_queue = Queue(queue, connection=self._context.redis, serializer=JSONSerializer)
        # The one call of RQ that leaves a transaction open for the other results.
        message = seal_work(self._context.secret, queue, tracing.with_parent(work))
        at_front = work.round.at_front
        # `WorkLoop` orders work by the description, which is not signed: nothing else may follow from it.
        data = Queue.prepare_data(
            HANDLER, args=(message,), job_id=work.work_id, description=work.tenant, at_front=at_front
        )
        rq_queue.enqueue_many([data], pipeline=self._pipe)

    def send(self) -> None:
        """Deliver, unless a worker that was given the same work has delivered it: this one was taken for dead."""
        self.event(SERVER_STREAM, self._piece_done())
        mark(self._pipe, DONE, self._work.work_id)
        self._pipe.delete(self._job_key)  # with the work, so that of two who deliver at once one fails
        if not self._execute():
            _log.warning("%s %s was delivered by another worker", self._work.task, self._work.work_id)

    def _piece_done(self) -> messages.PieceDone:
        work, spent, share = self._work, self._meter.read(), getattr(self._work, "share", "")
        return messages.PieceDone(work.work_id, work.job, work.task, share, *spent, time.time())

    def _execute(self) -> bool:
        """Deliver once: when Redis refuses a command, the transaction has done nothing. It is tried again while Redis
        is out of memory; raises redis.OutOfMemoryError when that lasts too long. False: it was delivered before.
        """
        commands, deadline = list(self._pipe.command_stack), time.monotonic() + _MEMORY_PATIENCE_S
        while True:
            try:
                return self._execute_once(commands)
            except redis.WatchError:
                continue
            except redis.OutOfMemoryError as error:
                if time.monotonic() > deadline:
                    raise
                _log.warning("%s waits with its results: %s", self._work.task, error)
            time.sleep(_MEMORY_LOOK_EVERY_S)

    def _execute_once(self, commands: list[Any]) -> bool:
        """Raises redis.WatchError when the work has changed in Redis meanwhile."""
        pipe = self._pipe
        pipe.reset()
        pipe.watch(self._job_key)  # type: ignore[no-untyped-call]
        if is_marked(pipe, DONE, self._work.work_id):
            pipe.reset()
            return False
        pipe.multi()
        pipe.command_stack = list(commands)
        pipe.execute()
        return True


def chunks(items: list[Any], size: int) -> Iterable[list[Any]]:
    """`items` in lists of at most `size`."""
    return (items[start : start + size] for start in range(0, len(items), size))
