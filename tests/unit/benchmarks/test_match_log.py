"""The made-up log that matching is measured on holds records as workers write them today."""

from __future__ import annotations

from pathlib import Path

from benchmarks.support.match_log import fill
from fractune_core.records import VALIDATION_POLICY, Kind
from fractune_server.store.records.rows import RecordFilter
from fractune_server.store.store import Store, sqlite_url


def test_a_log_of_the_asked_size_with_finals_as_they_are_measured_today(tmp_path: Path) -> None:
    store = Store(sqlite_url(tmp_path))
    try:
        told = fill(store, 2_000, operators=3)
        assert store.log.count(RecordFilter()) == told["trials"] + told["finals"] == 2_000
        finals = list(store.log.all(RecordFilter(kind=Kind.VALIDATION)))
    finally:
        store.close()
    assert len(finals) == told["finals"] > 0
    assert {(each.policy, len(each.run_secs)) for each in finals} == {(VALIDATION_POLICY, VALIDATION_POLICY.repeats)}
