"""By which index SQLite finds records: it keeps no count of what a column holds, and guesses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import event

from fractune_core.records import Kind
from fractune_server.store.records.log import LogKey
from fractune_server.store.records.rows import RecordFilter
from fractune_server.store.store import Store
from tests.support.store_contract import validations_of

OF_ALL = LogKey("w" * 16, "target", "device")
OF_ONE_JOB = LogKey("w" * 16, "target", "device", exact=True, namespace="some", job="j")


@pytest.fixture
def plans(store: Store) -> list[str]:
    """How each statement that is run from now on finds its records."""
    found: list[str] = []

    @event.listens_for(store.engine, "before_cursor_execute")
    def explain(connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        rows = connection.connection.cursor().execute(f"EXPLAIN QUERY PLAN {statement}", parameters)
        found.extend(row[3] for row in rows if "records" in row[3])

    return found


@pytest.mark.parametrize("key", [OF_ALL, OF_ONE_JOB])
@pytest.mark.parametrize(
    "ask",
    [
        lambda log, key: log.trials(key),
        lambda log, key: log.traces(key, ["a", "b"]),
        lambda log, key: log.best_trials(key, "share", 3),
        lambda log, key: log.share_keys(key, "cpu"),
    ],
)
def test_what_a_scope_knows_of_an_operator_is_found_without_the_rest(
    store: Store, plans: list[str], ask: Callable[[Any, LogKey], object], key: LogKey
) -> None:
    ask(store.log, key)
    (plan,) = plans
    assert "ix_records_lookup (workload_hash=? AND kind=? AND namespace=?" in plan


def test_validations_of_a_scope_are_found_without_those_of_others(store: Store, plans: list[str]) -> None:
    validations_of(store, "w" * 16, "some")
    (plan,) = plans
    assert "ix_records_lookup (workload_hash=? AND kind=? AND namespace=?)" in plan


def test_what_other_operators_of_a_scope_know_is_found_without_other_scopes(store: Store, plans: list[str]) -> None:
    store.log.donors(OF_ALL, "conv")
    (plan,) = plans
    assert "(namespace=?)" in plan


@pytest.mark.parametrize("fastest_first", [False, True])
@pytest.mark.parametrize(
    ("chosen", "by"),
    [
        (RecordFilter(), "(namespace=?)"),
        (RecordFilter(kind=Kind.TRIAL), "(namespace=?)"),
        (RecordFilter(operator="conv", device="cpu", namespace="some"), "(namespace=?)"),
        (RecordFilter(job="j"), "ix_records_job (job=?"),
        (RecordFilter(job="j", kind=Kind.TRIAL), "ix_records_job (job=? AND kind=?)"),
        (RecordFilter(share="cpu:1"), "ix_records_share (share=?)"),
        (RecordFilter(model="net"), "ix_records_lookup (workload_hash=?)"),
    ],
)
def test_a_page_is_found_by_what_is_rarest(
    store: Store, plans: list[str], chosen: RecordFilter, by: str, *, fastest_first: bool
) -> None:
    store.log.page(chosen, 100, None, fastest_first=fastest_first)
    (plan,) = plans
    assert by in plan


def test_the_records_of_a_scope_are_counted_from_where_they_were_counted_last(store: Store, plans: list[str]) -> None:
    store.log.count(RecordFilter())
    assert any("ix_records_newest (namespace=? AND seq>? AND seq<?)" in plan for plan in plans)
