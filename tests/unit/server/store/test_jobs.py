"""Jobs, their rounds, revisions and times."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import event, text

from fractune_core.errors import NotFound
from fractune_core.files.compared import Checked
from fractune_core.jobs import JobSpec, JobState
from fractune_core.records import Kind
from fractune_server.store.jobs import Progress, Round, StoredJob, StoredOperator
from fractune_server.store.records.rows import RecordFilter
from fractune_server.store.store import Store
from tests.support.samples import DEVICE, granted, validation
from tests.support.store_contract import OnSqlite, StoreContract, job, trial


@contextmanager
def rows_written(store: Store, table: str) -> Iterator[list[int]]:
    """How many rows each statement that wrote to the table within the block was given."""
    found: list[int] = []

    def note(_c: Any, _r: Any, statement: str, parameters: Any, _x: Any, executemany: bool) -> None:  # noqa: FBT001
        if table in statement and not statement.startswith("SELECT"):
            found.append(len(parameters) if executemany else 1)

    event.listen(store.engine, "before_cursor_execute", note)
    try:
        yield found
    finally:
        event.remove(store.engine, "before_cursor_execute", note)


@contextmanager
def counts_from(store: Store) -> Iterator[list[int]]:
    """After which record each count within the block began to look."""
    found: list[int] = []

    def note(_c: Any, _r: Any, statement: str, parameters: Any, _x: Any, _many: bool) -> None:  # noqa: FBT001
        if "count(*)" in statement and "seq >" in statement:
            values = list(parameters.values()) if isinstance(parameters, dict) else list(parameters)
            found.append(next(value for value in values if isinstance(value, int)))

    event.listen(store.engine, "before_cursor_execute", note)
    try:
        yield found
    finally:
        event.remove(store.engine, "before_cursor_execute", note)


class JobsContract(StoreContract):
    def test_a_job_comes_back_whole(self, store: Store) -> None:
        checked = Checked("ONNX Runtime", {"random": 1e-6}, ranges={"ids": (0, 9)})
        timings = {"cpu:1": {"run_secs": {"untuned": [1.0]}, "max_error": {"cpu:1": sys.float_info.max}}}
        made = job("j", notes=["a"], checked=checked, timings=timings)
        store.jobs.create(made)
        found = store.jobs.get("j")
        assert found == made
        assert list(found.granted) == ["cpu:2", "cpu:1"]
        assert found.cores == 2

    def test_an_end_is_final(self, store: Store) -> None:
        store.jobs.create(job("j"))
        loaded = store.jobs.get("j")
        store.jobs.save_round(shared := Round("l", "j", Kind.TRIAL, "w", "i", 4))
        assert store.jobs.end("j", JobState.CANCELLED, "JobCancelled", "enough")
        assert not store.jobs.end("j", JobState.CANCELLED, "JobCancelled", "again")
        loaded.state = JobState.DONE
        assert not store.jobs.save(loaded)
        found = store.jobs.get("j")
        assert (found.state, found.message, found.revision) == (JobState.CANCELLED, "enough", 2)
        assert store.jobs.open_ids() == set()
        assert store.jobs.rounds() == [shared], "others may wait for it"

    def test_each_save_is_a_revision(self, store: Store) -> None:
        store.jobs.create(job("j"))
        loaded = store.jobs.get("j")
        operators = [StoredOperator("w", "conv", 2, selected=True, best_s={"cpu:1": 1.0})]
        assert store.jobs.save(loaded, dict(enumerate(operators)))
        assert loaded.revision == 2
        assert store.jobs.revisions(["j", "none"]) == {"j": 2}
        assert store.jobs.operators("j") == operators
        with pytest.raises(NotFound, match="no job 'none'"):
            store.jobs.get("none")

    def test_a_save_writes_the_operators_that_it_is_given_and_leaves_the_others(self, store: Store) -> None:
        store.jobs.create(job("j"))
        loaded = store.jobs.get("j")
        operators = [StoredOperator(f"w{place}", "conv", 2, selected=True) for place in range(50)]
        store.jobs.save(loaded, dict(enumerate(operators)))
        operators[7] = replace(operators[7], trials=3, best_s={"cpu:1": 1.0})
        with rows_written(store, "job_operators") as written:
            store.jobs.save(loaded, {7: operators[7]})
        assert written == [1]
        assert store.jobs.operators("j") == operators

    def test_records_that_were_counted_are_not_read_again(self, store: Store) -> None:
        store.log.add([trial(f"t{place}", 1, 1.0) for place in range(5)])
        chosen = RecordFilter(kind=Kind.TRIAL)
        assert store.log.count(chosen) == 5
        with store.read() as connection:
            counted = connection.execute(text("SELECT max(seq) FROM records")).scalar()
        store.log.add([trial("new", 1, 1.0), validation("v", 1, 1.0)])
        with counts_from(store) as looked_at:
            assert store.log.count(chosen) == 6
            assert store.log.count(RecordFilter(kind=Kind.TRIAL, share="cpu:2")) == 0
        assert looked_at == [counted, 0]
        assert store.log.prune(RecordFilter(kind=Kind.TRIAL), 2, dry_run=False) == (4, 2)
        assert store.log.count(chosen) == 2

    def test_rounds(self, store: Store) -> None:
        waiting = Round("l", "j", Kind.TRIAL, "w", "i", 4, granted={"cpu:2": granted(2), "cpu:1": granted(1)})
        store.jobs.save_round(waiting)
        assert store.jobs.rounds() == [waiting]
        proposed = replace(waiting, candidates=["a", "b"])
        store.jobs.save_round(proposed)
        assert store.jobs.rounds() == [proposed]
        store.jobs.drop_round("l")
        assert store.jobs.rounds() == []

    def test_job_pages(self, store: Store) -> None:
        for name in "abc":
            store.jobs.create(job(name))
        first = store.jobs.page(2, None, open_only=False)
        second = store.jobs.page(2, first[-1][0], open_only=False)
        assert [found.id for _, found in first + second] == ["c", "b", "a"]
        assert store.jobs.page(2, second[-1][0], open_only=False) == []

    def test_a_bundle_s_times_are_those_of_the_newest_job_that_is_done_on_the_same_device(self, store: Store) -> None:
        def timed(name: str, secs: float, **changes: Any) -> None:
            timings = {share: {"run_secs": {"untuned": [secs]}, "job": name} for share in ("cpu:1", "cpu:2")}
            made = {"bundle": "b", "state": JobState.DONE, "ended_at": 9.0, "timings": timings, **changes}
            store.jobs.create(job(name, **made))

        both = {"cpu:1": granted(1), "cpu:2": granted(2)}
        assert store.jobs.timings("b", DEVICE, both) == {}
        timed("first", 1.0)
        timed("second", 2.0, timings={"cpu:1": {"run_secs": {"untuned": [2.0]}, "job": "before"}})
        timed("cut off", 3.0, state=JobState.CANCELLED)
        timed("of another bundle", 4.0, bundle="c")
        timed("elsewhere", 5.0, device=replace(DEVICE, units=64))
        timed("at less", 6.0, granted={"cpu:2": granted(1), "cpu:1": granted(1)})
        assert store.jobs.timings("b", DEVICE, both) == {"cpu:1": {"run_secs": {"untuned": [2.0]}, "job": "before"}}
        found = store.jobs.timings("c", DEVICE, both)
        assert found["cpu:2"] == {"run_secs": {"untuned": [4.0]}, "job": "of another bundle"}

    def test_jobs_are_counted_by_state(self, store: Store) -> None:
        assert store.jobs.count_by_state() == {}
        for name in ("one", "two", "three"):
            store.jobs.create(job(name))
        store.jobs.end("two", JobState.CANCELLED, "JobCancelled", "")
        assert store.jobs.count_by_state() == {JobState.QUEUED: 2, JobState.CANCELLED: 1}


class TestSqliteJobs(OnSqlite, JobsContract):
    pass


def a_job(entered_at: dict[str, float], ended_at: float | None = None) -> StoredJob:
    spec = JobSpec(model="a" * 64, model_name="net.onnx", shares=("cpu:1",))
    return StoredJob(
        "j",
        spec,
        10.0,
        DEVICE,
        {"cpu:1": granted(1)},
        "llvm",
        ended_at=ended_at,
        progress=Progress(entered_at=entered_at),
    )


def test_a_phase_lasts_until_the_next_and_all_of_them_make_up_the_age() -> None:
    entered_at = {"tuning": 15.0, "ingesting": 10.5, "failed": 18.0}
    assert a_job(entered_at, ended_at=18.0).phases_s(100.0) == {"queued": 0.5, "ingesting": 4.5, "tuning": 3.0}
    assert a_job({"ingesting": 10.5}).phases_s(12.0) == {"queued": 0.5, "ingesting": 1.5}


def test_an_alternative_is_searched_as_if_the_model_ran_it_once() -> None:
    weights = {weight: StoredOperator("a" * 16, "op", weight, selected=True).search_weight for weight in (0, 1, 12)}
    assert weights == {0: 1, 1: 1, 12: 12}
