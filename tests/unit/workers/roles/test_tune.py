"""What a tuner instance learns from: a real Redis, and no child."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis

from fractune_core.fleet.redis_names import EVENT_FIELD, tuner_stream
from fractune_core.fleet.signed_messages import seal_event
from fractune_workers.context import WorkerContext
from fractune_workers.locks.core_locks import CoreLocks
from fractune_workers.roles import tune
from fractune_workers.roles.tune import Tuner
from tests.support.fleet_messages import measure_work
from tests.support.processes.made_up import made_up_record, target_operator
from tests.support.processes.redis_process import running_redis
from tests.support.secret import SECRET


@pytest.fixture
def connection() -> Iterator[redis.Redis]:
    with running_redis() as url, redis.Redis.from_url(url) as connection:
        yield connection


def measured(candidate: str, scope: str = "") -> Any:
    work = measure_work(target_operator("conv2d"), job="j")
    record = replace(made_up_record(work, candidate, f'["{candidate}"]'), namespace=scope)
    return {"event": "measured", "job": "j", "round_id": "r", "record": record.to_json()}


def test_a_tuner_learns_from_results_that_the_fleet_signed(
    connection: redis.Redis, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    context = WorkerContext("tune-1", connection, SECRET, CoreLocks(tmp_path / "gate", 8), [0], tmp_path)
    tuner = Tuner(context)
    tuner.start()
    forged = (json.dumps(measured("unsigned")), seal_event(b"another secret", measured("of another fleet")))
    for text in (*forged, seal_event(SECRET, measured("ours"))):
        connection.xadd(tuner_stream("tune-1"), {EVENT_FIELD: text})
    with caplog.at_level(logging.WARNING):
        tuner._read_results()
    (learned,) = tuner._results.values()
    assert [candidate for candidate, _, _ in learned] == ["ours"]
    assert caplog.text.count("does not carry this fleet's signature") == len(forged)


def test_results_of_searches_that_do_not_come_back_are_kept_for_a_while_only(
    connection: redis.Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tune, "_UNLEARNED_KEPT", 2)
    tuner = Tuner(WorkerContext("tune-1", connection, SECRET, CoreLocks(tmp_path / "gate", 8), [0], tmp_path))
    tuner.start()
    for scope in ("first", "second", "third", "third"):
        event = measured(f"of {scope}", scope)
        connection.xadd(tuner_stream("tune-1"), {EVENT_FIELD: seal_event(SECRET, event)})
    tuner._read_results()
    kept = {search.of: [candidate for candidate, _, _ in found] for search, found in tuner._results.items()}
    assert kept == {"second/": ["of second"], "third/": ["of third"] * 2}
