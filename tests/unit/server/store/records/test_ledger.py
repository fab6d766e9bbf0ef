"""The ledger: each piece of work once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fractune_core.spending import Spending, WorkCost
from fractune_server.store.records.rows import RecordFilter
from fractune_server.store.store import Store
from tests.support.samples import validation

BUILD = WorkCost("b1", "j", "build", "", 2.0, 1.5, 100.0)
MEASURE = WorkCost("m1", "j", "measure", "cpu:1", 4.0, 3.0, 200.0)


def test_a_piece_counts_once_and_a_job_is_the_sum_of_its_pieces(store: Store) -> None:
    for _ in range(2):
        store.log.add([], [BUILD, MEASURE])
    store.log.add([], [BUILD, replace(MEASURE, work_id="m2"), replace(MEASURE, work_id="m3", share="cpu:2")])
    assert store.ledger.spent(["j"]) == {
        "j": [
            Spending("build", "", 1, 2.0, 1.5),
            Spending("measure", "cpu:1", 2, 8.0, 6.0),
            Spending("measure", "cpu:2", 1, 4.0, 3.0),
        ]
    }
    assert store.ledger.worked_s("j") == {"build": 2.0, "measure": 12.0}


def test_other_jobs_and_earlier_work_are_left_out(store: Store) -> None:
    store.log.add([], [BUILD, MEASURE, replace(BUILD, work_id="b2", job="k")])
    assert store.ledger.spent(["j"], since=150.0) == {"j": [Spending("measure", "cpu:1", 1, 4.0, 3.0)]}
    assert set(store.ledger.spent(["j", "k", "none"])) == {"j", "k"}
    assert store.ledger.spent([]) == {}
    assert store.ledger.worked_s("none") == {}


def test_records_and_pieces_come_together_or_not_at_all(store: Store) -> None:
    broken = replace(MEASURE, job=None)  # type: ignore[arg-type]
    with pytest.raises(Exception, match="NOT NULL"):
        store.log.add([validation("a", 1, 1.0)], [BUILD, broken])
    assert store.log.count(RecordFilter()) == 0
    assert store.ledger.spent(["j"]) == {}
