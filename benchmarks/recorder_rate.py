"""The rate of results from a stream into the log: a real Redis, the real Recorder, a real SQLite on this disk."""

import tempfile
import time
import uuid
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import redis

from benchmarks.queue_cost import TRACE
from fractune_core.fleet.messages import Measured
from fractune_core.fleet.redis_names import EVENT_FIELD, STREAMS, tuner_stream
from fractune_core.fleet.signed_messages import seal_event
from fractune_core.records import candidate_id
from fractune_server.store.records.rows import RecordFilter
from fractune_server.store.store import Store, sqlite_url
from fractune_server.transport.recorder import Recorder
from tests.support.fleet_messages import measure_work
from tests.support.processes.made_up import TARGET_KEY, made_up_record, target_operator, workload_hash
from tests.support.processes.redis_process import running_redis
from tests.support.secret import SECRET

_OPERATORS = 20
_PART = 500


def records_per_s(records: int) -> float:
    """From the first look into the stream until the last record is committed and acknowledged."""
    with running_redis() as url, tempfile.TemporaryDirectory(prefix="fractune-bench-") as folder:
        connection = redis.Redis.from_url(url, socket_timeout=None)
        _fill(connection, records)
        store = Store(sqlite_url(Path(folder)))
        recorder, seen = Recorder(connection, store.log, SECRET, list), 0
        start = time.perf_counter()
        while seen < records:
            batch = recorder.poll(block_ms=1000)
            recorder.acknowledge(batch)
            seen += len(batch.arrivals)
        spent_s = time.perf_counter() - start
        kept = store.log.count(RecordFilter())
        store.close()
        connection.close()
    if kept != records:
        raise SystemExit(f"overhead: {kept} of {records} records are in the log")
    return records / spent_s


def _fill(connection: redis.Redis, records: int) -> None:
    stream = tuner_stream("bench")
    connection.sadd(STREAMS, stream)
    for start in range(0, records, _PART):
        with connection.pipeline(transaction=False) as pipe:
            for index in range(start, min(start + _PART, records)):
                pipe.xadd(stream, {EVENT_FIELD: seal_event(SECRET, _event(index))})
            pipe.execute()


def measured_events() -> Iterator[Measured]:
    """Without an end, each of another candidate."""
    return map(_event, count())


def _event(index: int) -> Measured:
    """One `measured` event, with a trace as long as that of a convolution."""
    operator = f"operator{index % _OPERATORS}"
    name, trace = workload_hash(operator), f'["{index}{TRACE}"]'
    work = measure_work(target_operator(operator), round_id=uuid.uuid4().hex, job="j")
    record = made_up_record(work, candidate_id(name, TARGET_KEY, trace), trace)
    return Measured(job="j", round_id=work.round.id, record=record)
