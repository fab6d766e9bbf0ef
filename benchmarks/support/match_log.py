"""A made-up tuning log of any size: models of a thousand operators, many trials, and the validations of each operator.

Nothing in it was measured. The models were tuned one after the other: first the trials of all operators of a model,
mixed, then its validations. Models, operators, job and worker have "made-up" in their names.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from sqlalchemy.engine.interfaces import DBAPICursor

from benchmarks.queue_cost import TRACE
from fractune_core.jobs import OperatorTask
from fractune_core.names import DEFAULT_TENANT
from fractune_core.records import UNTUNED, Kind, TuningRecord, candidate_id, record_id
from fractune_core.shares import Device, GrantedShare
from fractune_server.store.database.tables import records
from fractune_server.store.records.rows import record_to_row
from fractune_server.store.store import IngestedModel, IngestKey, Store, sqlite_url
from tests.support.fleet_messages import measure_work
from tests.support.processes.made_up import TARGET, TARGET_KEY, made_up_record, target_operator, workload_hash

DEVICE = Device("cpu", "made-up", 16, 64, 512, "a made-up processor")
SHARES = ("cpu:4", "cpu:8", "cpu:6", "cpu:12")
"""an operator was measured at the first two, three or four of them"""
MODELS = 4
FINALISTS = 5
"""of an operator's validations, the untuned default among them"""
_PART = 5_000


def model_key(number: int) -> IngestKey:
    """By which the store knows a model of this log."""
    return IngestKey(hashlib.sha256(f"made-up model {number}".encode()).hexdigest(), {}, TARGET)


def fill(store: Store, total: int, operators: int) -> dict[str, int]:
    """Write `total` records of MODELS models with so many operators each; returns the numbers of trials and
    validations.
    """
    finals = {number: list(_validations(number, operators)) for number in range(MODELS)}
    trials = (total - sum(map(len, finals.values()))) // MODELS
    if trials < 0:
        raise SystemExit(f"match: {total} records are fewer than the validations of {MODELS} x {operators} operators")
    for number, found in finals.items():
        _write_trials(store, number, operators, trials)
        store.log.add(found)
        ingested = IngestedModel(TARGET, TARGET_KEY, _tasks(number, operators))
        store.models.save_ingested(model_key(number), ingested)
    return {"trials": trials * MODELS, "finals": sum(map(len, finals.values()))}


def filled_state(state: Path, total: int, operators: int) -> None:
    """Make the folder `state` of a server with such a log."""
    state.mkdir()
    store = Store(sqlite_url(state))
    fill(store, total, operators)
    store.close()


def _write_trials(store: Store, number: int, operators: int, count: int) -> None:
    """Past SQLAlchemy and without waiting for the disk: a million rows in minutes."""
    rows = _trial_rows(number, operators, count)
    connection = store.engine.raw_connection()
    try:
        cursor = connection.cursor()
        for pragma in ("synchronous=OFF", "cache_size=-500000"):
            cursor.execute(f"PRAGMA {pragma}")
        while part := list(islice(rows, _PART)):
            _insert(cursor, part)
            connection.commit()
    finally:
        connection.detach()
        connection.close()


def _insert(cursor: DBAPICursor, rows: list[dict[str, Any]]) -> None:
    names = list(rows[0])
    marks = ", ".join("?" * len(names))
    text = f"INSERT INTO {records.name} ({', '.join(names)}) VALUES ({marks})"  # noqa: S608 - our own column names
    cursor.executemany(text, [tuple(row.values()) for row in rows])


def _trial_rows(number: int, operators: int, count: int) -> Iterator[dict[str, Any]]:
    trials = {share: _record("trial", "", share, "", 1.0) for share in SHARES[:2]}
    samples = {share: _as_sqlite(record_to_row(each, DEFAULT_TENANT, "")) for share, each in trials.items()}
    tasks = _tasks(number, operators)
    for index in range(count):
        task, share = tasks[index % operators], SHARES[index // operators % 2]
        trace = f'["{task.name} {index // operators // 2}{TRACE}"]'
        secs = _secs(trace, share)
        candidate = hashlib.sha256(trace[:40].encode()).hexdigest()[:32]
        yield {
            **samples[share],
            "record_id": hashlib.sha256(f"{candidate}{share}".encode()).hexdigest()[:32],
            "candidate_id": candidate,
            "workload_hash": task.workload_hash,
            "operator": task.name,
            "trace": trace,
            "run_secs": json.dumps([secs] * 3),
            "ranking_median_s": secs,
        }


def _as_sqlite(row: dict[str, Any]) -> dict[str, Any]:
    return {name: json.dumps(value) if isinstance(value, dict | list) else value for name, value in row.items()}


def _validations(number: int, operators: int) -> Iterator[TuningRecord]:
    for place, task in enumerate(_tasks(number, operators)):
        for finalist in range(FINALISTS):
            trace = f'["{task.name} final {finalist}{TRACE}"]' if finalist else UNTUNED
            for share in SHARES[: 2 + place % 3]:
                yield _record("validation", task.name, share, trace, _secs(trace, share))


def _record(kind: str, operator: str, share: str, trace: str, secs: float) -> TuningRecord:
    name, units = workload_hash(operator), int(share.partition(":")[2])
    work = measure_work(target_operator(operator), round_id="made-up", job="made-up job", purpose=Kind(kind))
    candidate = candidate_id(name, TARGET_KEY, trace)
    record = made_up_record(work, candidate, trace, worker="made-up worker")
    return replace(
        record,
        record_id=record_id("made-up", candidate, share),
        device=DEVICE,
        share=share,
        granted=GrantedShare(share, units, DEVICE.units, "core", 1 << 33, reserved=False, ids=tuple(range(units))),
        run_secs=tuple(secs * (1 + repeat / 100) for repeat in range(record.policy.repeats)),
    )


def _tasks(number: int, operators: int) -> list[OperatorTask]:
    names = [f"made-up {number}.{index}" for index in range(operators)]
    return [OperatorTask(workload_hash(name), name, 1) for name in names]


def _secs(trace: str, share: str) -> float:
    """Made up, but always the same: the untuned default is the slowest, and more cores are faster."""
    draw = int(hashlib.sha256(f"{trace[:40]} {share}".encode()).hexdigest()[:8], 16) / 0xFFFFFFFF
    return (4e-3 if trace == UNTUNED else 1e-3 + 2e-3 * draw) / int(share.partition(":")[2])
