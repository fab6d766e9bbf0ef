"""A database of before the names of docs/decisions/0021-names-in-storage.md is read in those of today."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fractune_core.jobs import JobState
from fractune_core.records import FIRST_POLICY, TRIAL_POLICY, VALIDATION_POLICY, Kind, TimingPolicy, TuningRecord
from fractune_server.store.records.filters import RecordFilter
from fractune_server.store.store import Store, sqlite_url
from fractune_server.store.stored_job import Round
from tests.support.first_names import (
    JOB,
    ROUND,
    SCHEMA_0013,
    back_to_validation,
    query,
    waiting_records,
    write_state,
)
from tests.support.store_contract import validations_of


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_state(tmp_path)
    return tmp_path


@pytest.fixture
def store(folder: Path) -> Iterator[Store]:
    store = Store(sqlite_url(folder))
    yield store
    store.close()


def test_records_are_read_and_found_by_their_kind_of_today(store: Store) -> None:
    records = list(store.log.all(RecordFilter()))
    assert Counter(record.kind for record in records) == {Kind.TRIAL: 16, Kind.VALIDATION: 20}
    assert {record.policy for record in records if record.kind is Kind.VALIDATION} == {
        replace(VALIDATION_POLICY, repeats=7, choosing=0)
    }
    assert {record.policy for record in records if record.kind is Kind.TRIAL} == {FIRST_POLICY, TRIAL_POLICY}
    assert store.log.count(RecordFilter(kind=Kind.VALIDATION)) == 20
    for operator in store.jobs.operators(JOB):
        validated = validations_of(store, operator.workload_hash)
        assert validated.published == validated.records != ()


def test_no_first_name_is_left_in_the_database(folder: Path, store: Store) -> None:
    assert store.jobs.get(JOB).state is JobState.DONE
    assert query(folder, "SELECT DISTINCT kind FROM records ORDER BY kind") == [("trial",), ("validation",)]
    assert not query(folder, "SELECT policy FROM records WHERE policy LIKE '%final%'")
    assert not query(folder, "SELECT sql FROM sqlite_master WHERE sql LIKE '%lease%' OR name LIKE '%final%'")


def test_changes_of_validations_are_counted_on(store: Store) -> None:
    first = next(store.log.all(RecordFilter(kind=Kind.VALIDATION)))
    before = validations_of(store, first.workload_hash)
    store.log.add([replace(first, record_id="another")])
    assert len(validations_of(store, first.workload_hash).records) == len(before.records) + 1


def test_a_job_that_was_finishing_is_validating(folder: Path) -> None:
    back_to_validation(folder)
    store = Store(sqlite_url(folder))
    assert store.jobs.open_ids() == {JOB}
    assert store.jobs.get(JOB).state is JobState.VALIDATING
    candidates = sorted({str(record["candidate_id"]) for record in waiting_records()})
    workload = str(next(waiting_records())["workload_hash"])
    assert store.jobs.rounds() == [Round(ROUND, JOB, Kind.VALIDATION, workload, "", 2, candidates)]
    store.close()


def test_what_a_model_file_held_is_not_looked_for_again(folder: Path, store: Store) -> None:
    assert query(folder, "SELECT count(*) FROM ingested") == [(1,)]
    assert len(store.jobs.operators(JOB)) == 4


def test_records_and_policies_outside_the_database_are_read_too() -> None:
    for data in waiting_records():
        assert data["kind"] == "final"
        record = TuningRecord.from_json(data)
        assert (record.kind, record.policy.name) == (Kind.VALIDATION, "validation")
        assert record.to_json()["kind"] == "validation"
    assert TimingPolicy.from_json({**TRIAL_POLICY.to_json()}) == TRIAL_POLICY
    with pytest.raises(ValueError, match="finals"):
        Kind("finals")


def test_a_database_of_schema_0013_is_read(tmp_path: Path) -> None:
    write_state(tmp_path, SCHEMA_0013)
    store = Store(sqlite_url(tmp_path))
    job = store.jobs.get("d8379832aca0")
    records = list(store.log.all(RecordFilter()))
    operators = store.jobs.operators(job.id)
    store.close()
    assert (job.state, job.spec.target, job.spec.trials) == (JobState.DONE, "llvm -mcpu=x86-64-v3", 8)
    assert Counter(record.kind for record in records) == {Kind.TRIAL: 8, Kind.VALIDATION: 11}
    assert {record.namespace for record in records} == {""}
    assert len(operators) == 5
