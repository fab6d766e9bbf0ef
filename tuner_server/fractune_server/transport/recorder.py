"""Results streams -> tuning log. A result is acknowledged only after its commit and after it has taken effect."""

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from redis import ConnectionPool, Redis
from redis.backoff import NoBackoff
from redis.exceptions import ResponseError
from redis.retry import Retry

from fractune_core import tracing
from fractune_core.analysis.at_load import AtLoad
from fractune_core.analysis.inside import Inside
from fractune_core.analysis.roofline import Roof
from fractune_core.codec.plain_json import checked, to_dict
from fractune_core.errors import BadModel, FractuneError
from fractune_core.fleet import messages, redis_names
from fractune_core.fleet.signed_messages import Unsigned, open_event, open_replayed
from fractune_core.names import UNTUNED_VARIANT
from fractune_core.operators import check_operator, check_workload
from fractune_core.records import TuningRecord
from fractune_core.targets import read_attributes
from fractune_server.store.records.log import TuningLog
from fractune_server.store.records.rows import check_measured
from fractune_server.transport.unreadable import UnreadableStream
from fractune_server.transport.work_queues import readable_names


@dataclass(frozen=True)
class _AnyEvent:
    event: str


class Unreadable(FractuneError):
    """A result that this version cannot read; the message says why."""


_BATCH = 1000
_CONSUMER = "server"
_REPLAY_MAX_AGE_S = 3600.0
_TASK_BY_EVENT = {"ingested": "ingest", "proposed": "search", "compiled": "compile", "model_timed": "time_model"}
_SINGLE_WORK = ("ingest", "compile", "time_model")
"""tasks of jobs, in no round"""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Arrival:
    event: messages.Event
    replayed: bool = False
    """an operator has replayed it, so it counts although its round has ended"""

    @property
    def record(self) -> TuningRecord | None:
        """Of a measurement."""
        return self.event.record if isinstance(self.event, messages.Measured) else None


@dataclass(frozen=True)
class ArrivalBatch:
    """The events of one poll, in the order of the streams, and the entries to acknowledge."""

    arrivals: list[Arrival]
    entries: Mapping[str, Sequence[bytes]]
    """entry ids by stream"""
    read_at: float
    """when Redis had answered, by time.perf_counter"""


class Recorder:
    """Reads all results streams through the consumer group RECORDER. Not thread-safe.

    After an error in `poll`, or after `repeat`, the next polls return the same entries again. Adding a record twice
    changes nothing, and the receiver of the events must handle repeated events too.

    `awaited` returns those arrivals of a batch that the server waits for, in order. The others are acknowledged and
    dropped: a writer to Redis can repeat genuine work, and its results are genuine too.
    """

    def __init__(
        self, redis: Redis, log: TuningLog, secret: bytes, awaited: Callable[[list[Arrival]], list[Arrival]]
    ) -> None:
        self._redis = redis
        self._reader = _without_retries(redis)
        self._log = log
        self._secret = secret
        self._awaited = awaited
        self._joined: set[str] = set()
        self._expected: set[str] = set()
        self._recovering = True
        self._looks_back = False
        self._unreadable = UnreadableStream(redis)

    def poll(self, block_ms: int) -> ArrivalBatch:
        """Wait up to `block_ms` (0 = not at all) for results, commit their records and ledger entries, and return them.

        Raises redis.RedisError, and StateUnusable if the log cannot be written.
        """
        streams = self._join_streams()
        recovering, self._recovering = self._recovering, True
        looks_back, self._looks_back = self._looks_back, False
        batch = self._decode(self._read(streams, "0", None) if recovering or looks_back else {})
        if not recovering and not any(batch.entries.values()):
            batch = self._decode(self._read(streams, ">", block_ms or None))
        records = [arrival.record for arrival in batch.arrivals if arrival.record is not None]
        pieces = [arrival.event for arrival in batch.arrivals if isinstance(arrival.event, messages.PieceDone)]
        if records or pieces:
            began = time.time()
            self._log.add(records, pieces)
            _trace(batch.arrivals, began)
        # Unacknowledged entries are read until none remains; only then come new ones.
        self._recovering = recovering and any(batch.entries.values())
        return batch

    def acknowledge(self, batch: ArrivalBatch) -> list[float]:
        """Call this after the events of the batch have taken effect.

        Returns how long each has taken since it was sent, in seconds, by Redis's clock alone.
        """
        held = {stream: entries for stream, entries in batch.entries.items() if entries}
        if not held:
            return []
        with self._redis.pipeline(transaction=False) as pipe:
            for stream, entries in held.items():
                pipe.xack(stream, redis_names.RECORDER, *entries)
            pipe.time()
            secs, micros = pipe.execute()[-1]
        now = secs + micros / 1e6
        return [max(0.0, now - _sent_at(entry)) for entries in held.values() for entry in entries]

    def repeat(self) -> None:
        """The next polls return the unacknowledged results again."""
        self._recovering = True

    def look_back(self) -> None:
        """The next poll returns unacknowledged results, if there are any, instead of new ones."""
        self._looks_back = True

    def expect(self, streams: Iterable[str]) -> None:
        """Also read these streams, even if Redis has forgotten them."""
        self._expected = set(streams)

    @property
    def streams(self) -> set[str]:
        return set(self._joined)

    def leave(self, stream: str) -> None:
        """Remove a stream that no worker writes to any more."""
        self._redis.srem(redis_names.STREAMS, stream)
        self._redis.delete(stream)
        self._joined.discard(stream)
        self._expected.discard(stream)

    def _join_streams(self) -> list[str]:
        names = readable_names(cast("set[bytes]", self._redis.smembers(redis_names.STREAMS)), redis_names.STREAMS)
        streams = sorted({redis_names.SERVER_STREAM, *names, *self._expected})
        for stream in streams:
            if stream not in self._joined:
                self._join(stream)
        return streams

    def _join(self, stream: str) -> None:
        for group in (
            (redis_names.RECORDER,)
            if stream == redis_names.SERVER_STREAM
            else (redis_names.RECORDER, redis_names.TUNER)
        ):
            try:
                self._redis.xgroup_create(stream, group, id="0", mkstream=True)
            except ResponseError as error:
                if "BUSYGROUP" not in str(error):
                    raise
        if stream != redis_names.SERVER_STREAM:
            self._redis.sadd(redis_names.STREAMS, stream)
        self._joined.add(stream)

    def _read(self, streams: Sequence[str], start: str, block_ms: int | None) -> Mapping[str, Any]:
        try:
            reply = self._reader.xreadgroup(
                redis_names.RECORDER, _CONSUMER, dict.fromkeys(streams, start), count=_BATCH, block=block_ms
            )
        except ResponseError as error:
            if "NOGROUP" in str(error):  # Redis came back empty
                self._joined.clear()
            raise
        pairs = reply.items() if isinstance(reply, dict) else reply or ()
        return {text(stream): entries for stream, entries in pairs}

    def _decode(self, reply: Mapping[str, Any]) -> ArrivalBatch:
        read_at = time.perf_counter()
        arrivals: list[Arrival] = []
        entries: dict[str, list[bytes]] = {}
        for stream, found in reply.items():
            for entry, fields in _flat(found):
                entries.setdefault(stream, []).append(entry)
                arrivals += self._arrivals(f"{stream} {entry.decode()}", fields)
        return ArrivalBatch(self._awaited(arrivals), entries, read_at)

    def _arrivals(self, place: str, fields: Mapping[bytes, bytes]) -> list[Arrival]:
        """The event in a stream's entry; none if the entry was trimmed while it was pending."""
        replayed = fields.get(redis_names.REPLAYED_FIELD.encode())
        if replayed is None:
            message = fields.get(redis_names.EVENT_FIELD.encode())
            return [] if message is None else self._open(place, message)
        try:
            message, age_s = open_replayed(self._secret, replayed)
        except Unsigned as error:
            self._set_aside(place, replayed, str(error))
            return []
        # Else a writer in Redis could repeat it forever.
        if not -redis_names.CLOCK_TOLERANCE_S <= age_s <= _REPLAY_MAX_AGE_S:
            wrong = "is dated in the future" if age_s < 0 else f"is older than {_REPLAY_MAX_AGE_S / 3600:g} h"
            self._set_aside(place, message, f"its replay {wrong}; replay it again")
            return []
        return [replace(arrival, replayed=True) for arrival in self._open(place, message)]

    def _open(self, place: str, message: bytes) -> list[Arrival]:
        """The event in a message. An unreadable one is set aside; if the fleet signed it, its round fails."""
        try:
            event = open_event(self._secret, message)
        except Unsigned as error:
            self._set_aside(place, message, str(error))
            return []
        try:
            return [read_event(event)]
        except Unreadable as error:
            self._set_aside(place, message, str(error))
            return _lost(event, error)

    def _set_aside(self, place: str, message: bytes, reason: str) -> None:
        """Keep an unreadable result for another version; reading it again would not help."""
        self._unreadable.keep(place, message, reason)
        _log.warning("cannot read a result, and keep it (`fractune log dead`): %s: %s", place, reason)


def _without_retries(redis: Redis) -> Redis:
    """The same Redis over separate connections that never retry a command.

    If the answer to a read is lost, a retry would get a group's next entries, and the first ones would never be read.
    """
    pool = redis.connection_pool
    never = Retry(NoBackoff(), 0)
    return Redis(
        connection_pool=ConnectionPool(
            connection_class=pool.connection_class, **{**pool.connection_kwargs, "retry": never}
        )
    )


def _trace(arrivals: Iterable[Arrival], began: float) -> None:
    """A span for each batch of measurements with records in this commit."""
    events = (arrival.event for arrival in arrivals)
    batches = Counter((event.job, event.traceparent) for event in events if isinstance(event, messages.Measured))
    ended = time.time()
    for (job, measured), records in batches.items():
        tracing.note(tracing.RECORD, measured, job, began, ended, records=records)


def _sent_at(entry: bytes) -> float:
    """When Redis received a stream's entry, in seconds since 1970. The id begins with the milliseconds."""
    return int(entry.partition(b"-")[0]) / 1e3


def _check_amounts(numbers: Iterable[Any]) -> None:
    """Raises ValueError for a number that a database cannot hold."""
    wrong = [number for number in numbers if isinstance(number, int | float) and not 0 <= number < math.inf]
    if wrong:
        raise ValueError(f"an amount of it is {wrong[0]}")


def _lost(event: Mapping[str, Any], error: Exception) -> list[Arrival]:
    """The failure of the round, or else of the job, that waits for an unreadable result. Nothing waits for others.

    A job whose work gave a result that cannot be read would request the same work again, and get the same result.
    """
    task = _task_of(event)
    if "job" not in event or ("round_id" not in event and task not in _SINGLE_WORK):
        return []
    failed = messages.WorkFailed(
        job=str(event["job"]),
        task=task,
        round_id=str(event.get("round_id", "")),
        error=BadModel.__name__ if task == "ingest" else FractuneError.__name__,
        message=f"a result of it ({task}) cannot be recorded: {error}; is a worker of another version?",
    )
    return [Arrival(failed)]


def _task_of(event: Mapping[str, Any]) -> str:
    """The task of the work that an event is a result of, as far as it says so."""
    kind = str(event.get("event"))
    return str(event.get("task")) if kind == "work_failed" else _TASK_BY_EVENT.get(kind, "measure")


def read_event(event: Mapping[str, Any]) -> Arrival:
    """Check a worker's event: it has the shape of its kind, and the log can hold it.

    Raises Unreadable for anything else, which would end the engine at every start.
    """
    try:
        return Arrival(_read(event))
    except (FractuneError, ArithmeticError, TypeError, ValueError) as error:
        raise Unreadable(str(error)) from error


def _read(written: Mapping[str, Any]) -> messages.Event:
    kind = messages.EVENT_BY_KIND.get(checked(_AnyEvent, written).event)
    if kind is None:
        raise ValueError(f"no event is called '{written['event']}'")
    event: messages.Event = checked(kind, written)
    match event:
        case messages.Measured():
            check_measured(event.record)
        case messages.PieceDone():
            _check_amounts((event.worked_s, event.cpu_s, event.ended_at))
        case messages.RoofMeasured():
            _check_amounts(to_dict(Roof.from_json(event.roof)).values())
        case messages.Ingested():
            read_attributes(event.target)
            for item in event.operators:
                check_operator(item.name, item.weight, item.flops, item.io_bytes, item.written_bytes)
                check_workload(item.workload_hash, item.workload)
        case messages.ModelTimed():
            _check_timed(event)
    return event


def _check_timed(event: messages.ModelTimed) -> None:
    """Raises ValueError for times without the untuned variant's or its operators', with which each job compares, and
    for what cannot be a time.
    """
    secs = [secs for repeats in event.run_secs.values() for secs in repeats]
    if UNTUNED_VARIANT not in event.run_secs:
        secs.append(event.untuned_sum_s)
    if not event.run_secs or not all(event.run_secs.values()):
        raise ValueError("a variant was timed without a repeat, or none was timed")
    if not all(0 < each < math.inf for each in secs):
        raise ValueError("a variant has a time that cannot be")
    strangers = {AtLoad.from_json(each).variant for each in event.at_load} - event.run_secs.keys()
    if strangers:
        raise ValueError(f"the variant '{min(strangers)}' was timed at load, and not in a loop")
    _check_amounts([event.others_cores, *event.max_error.values()])
    if event.inside is not None:
        Inside.from_json(event.inside).check()


def _flat(found: Any) -> list[tuple[bytes, dict[bytes, bytes]]]:
    """Entries as (id, fields); with RESP3 the client library nests them once more."""
    if found and isinstance(found[0], list) and found[0] and isinstance(found[0][0], (list, tuple)):
        found = found[0]
    # An entry that was trimmed while it was pending has no fields.
    return [(entry, fields or {}) for entry, fields in found]


def text(name: bytes | str) -> str:
    return name.decode() if isinstance(name, bytes) else name


def trim(redis: Redis, recorder: Recorder, alive: Collection[str], needed: Collection[str]) -> None:
    """Trim all streams, and remove those of tuner instances that are neither `alive` nor `needed`.

    It takes three round trips, and a few more for each stream that may be removed.
    """
    keep = {redis_names.tuner_stream(instance) for instance in (*alive, *needed)} | {redis_names.SERVER_STREAM}
    reading = {redis_names.tuner_stream(instance) for instance in alive}
    groups = _groups(redis, sorted(recorder.streams))
    for stream in groups.keys() - keep:
        if _drained(redis, stream, groups[stream]):
            recorder.leave(stream)
            del groups[stream]
    # A dead tuner instance never acknowledges, so that only the recorder counts.
    counting = [
        (stream, group)
        for stream, found in groups.items()
        for group in found
        if text(group["name"]) == redis_names.RECORDER or stream in reading
    ]
    done: dict[str, bytes | str] = {}
    for (stream, _), entry in zip(counting, _first_unacknowledged(redis, counting), strict=True):
        done[stream] = min(done.get(stream, entry), entry, key=_order)
    with redis.pipeline(transaction=False) as pipe:
        for stream, entry in done.items():
            pipe.xtrim(stream, minid=text(entry), approximate=False)
        pipe.execute()


def _groups(redis: Redis, streams: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """The groups of the streams, in one round trip."""
    with redis.pipeline(transaction=False) as pipe:
        for stream in streams:
            pipe.xinfo_groups(stream)
        return dict(zip(streams, pipe.execute(), strict=True))


def _first_unacknowledged(redis: Redis, counting: Sequence[tuple[str, dict[str, Any]]]) -> list[bytes | str]:
    """For each group the oldest entry that it needs, or the last one that it has read; in one round trip."""
    with redis.pipeline(transaction=False) as pipe:
        for stream, group in counting:
            if group["pending"]:
                pipe.xpending(stream, group["name"])
        oldest = iter(pipe.execute())
    # Pending entries may have been acknowledged since; then there is no oldest one.
    pending = [next(oldest)["min"] if group["pending"] else None for _, group in counting]
    return [first or group["last-delivered-id"] for first, (_, group) in zip(pending, counting, strict=True)]


def _drained(redis: Redis, stream: str, groups: list[dict[str, Any]]) -> bool:
    recorder = next(group for group in groups if text(group["name"]) == redis_names.RECORDER)
    last = redis.xinfo_stream(stream)["last-generated-id"]
    return not recorder["pending"] and text(recorder["last-delivered-id"]) == text(last)


def _order(entry: bytes | str) -> tuple[int, int]:
    millis, _, counter = text(entry).partition("-")
    return int(millis), int(counter)
