"""Jobs, their rounds and times, and what the store keeps beside; SQLite that is full, read-only or killed."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, text

from fractune_core.analysis.roofline import Arithmetic, Roof
from fractune_core.errors import NotFound, StateUnusable
from fractune_core.files.compared import Checked
from fractune_core.jobs import JobSpec, JobState, OperatorTask
from fractune_core.records import Kind
from fractune_server.store.jobs import Progress, Round, StoredJob, StoredOperator
from fractune_server.store.records.rows import RecordFilter
from fractune_server.store.store import IngestedModel, IngestKey, Store, StoredModel, sqlite_url
from tests.support.measured_pairs import measured_pair, runtime_time
from tests.support.paths import REPOSITORY
from tests.support.samples import DEVICE, TARGET_KEY, granted, validation
from tests.support.store_contract import EVERYTHING, KEY, TEXTS, WORKLOADS, OnSqlite, StoreContract, job, trial


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


class KeptContract(StoreContract):
    def test_look_ups_use_an_index(self, store: Store) -> None:
        of_operator = "SELECT * FROM records WHERE workload_hash='a' AND kind='trial' AND namespace=''"
        queries = [
            f"{of_operator} AND share_key='s'",
            f"{of_operator} AND share_key='s' ORDER BY ranking_median_s",
            "SELECT * FROM records WHERE workload_hash IN ('a', 'b') AND kind='validation' AND namespace=''",
            "SELECT * FROM validation_versions WHERE workload_hash IN ('a', 'b')",
            "SELECT * FROM records WHERE record_id='a'",
            "SELECT * FROM records WHERE job='a'",
            "SELECT * FROM records WHERE share='a' ORDER BY seq DESC LIMIT 1",
            "SELECT * FROM records WHERE namespace='' ORDER BY ranking_median_s, seq LIMIT 1",
            "SELECT * FROM records WHERE namespace='' ORDER BY seq DESC LIMIT 1",
            "SELECT count(*) FROM records WHERE namespace='' AND seq > 5 AND seq <= 10",
            "SELECT * FROM jobs WHERE state IN ('queued')",
            "SELECT * FROM jobs WHERE id='a'",
            "SELECT * FROM rounds WHERE round_id='a'",
        ]
        with store.read() as connection:
            for query in queries:
                plan = self.plan(connection, query).lower()
                assert "index" in plan, query
                assert "temp b-tree" not in plan, query
                assert "sort" not in plan, query

    def test_of_a_roof_the_best_of_each_figure_is_kept(self, store: Store) -> None:
        assert store.roofs.of("device") == {}
        store.roofs.add("device", "cpu/1of2core", Roof(100.0, 8.0, 1 << 25))
        store.roofs.add("device", "cpu/1of2core", Roof(90.0, 10.0, 1 << 25, read_gb_per_s=12.0))
        store.roofs.add("device", "cpu/2of2core", Roof(180.0, 9.0, 1 << 25))
        store.roofs.add("other", "cpu/1of2core", Roof(1.0, 1.0, 1))
        store.check_writable()  # each health check does so, and changes nothing
        assert store.roofs.of("device") == {
            "cpu/1of2core": Roof(100.0, 10.0, 1 << 25, read_gb_per_s=12.0),
            "cpu/2of2core": Roof(180.0, 9.0, 1 << 25),
        }

    def test_of_launch_floors_the_smallest_known_one_of_each_share_is_kept(self, store: Store) -> None:
        for launch_s in (0.0, 4e-6, 3e-6, 0.0, 5e-6):
            store.roofs.add("gpu", "mps/32of132sm", Roof(0.0, 0.0, 0, launch_s))
        store.roofs.add("gpu", "full/132of132sm", Roof(0.0, 0.0, 0, 3.5e-6))
        assert store.roofs.of("gpu") == {
            "mps/32of132sm": Roof(0.0, 0.0, 0, 3e-6),
            "full/132of132sm": Roof(0.0, 0.0, 0, 3.5e-6),
        }

    def test_what_workloads_ask_for_is_known_once_it_was_told(self, store: Store) -> None:
        w, v = WORKLOADS[:2]
        store.log.add_workloads([(w, TEXTS[w]), (v, TEXTS[v])])
        assert store.log.arithmetic([w, v, "none"]) == {}
        store.log.set_arithmetic({w: Arithmetic(1e9, 3 << 40), "none": Arithmetic(1.0, 1)})
        assert store.log.arithmetic([w, v, "none"]) == {w: Arithmetic(1e9, 3 << 40)}
        store.log.add_workloads([(w, TEXTS[w])])
        assert store.log.arithmetic([w]) == {w: Arithmetic(1e9, 3 << 40)}

    def test_an_exhausted_space_is_known_by_workload_target_exactness_and_version(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert store.spaces.of(TARGET_KEY, WORKLOADS, exact=False) == {}
        for candidates in (3, 5, 4):
            store.spaces.add(KEY, candidates)
        store.spaces.add(replace(KEY, workload_hash=WORKLOADS[1], exact=True), 1)
        assert store.spaces.of(TARGET_KEY, WORKLOADS, exact=False) == {WORKLOADS[0]: 5}
        assert store.spaces.of(TARGET_KEY, WORKLOADS, exact=True) == {WORKLOADS[1]: 1}
        assert store.spaces.of(TARGET_KEY, WORKLOADS[1:], exact=False) == {}
        assert store.spaces.of("cuda", WORKLOADS, exact=False) == {}
        monkeypatch.setattr("fractune_server.store.store._VERSION", "another")
        assert store.spaces.of(TARGET_KEY, WORKLOADS, exact=False) == {}
        store.spaces.add(KEY, 2)
        assert store.spaces.of(TARGET_KEY, WORKLOADS, exact=False) == {WORKLOADS[0]: 2}

    def test_pairs_come_newest_first_and_each_is_kept_once(self, store: Store) -> None:
        assert store.pairs.newest(10) == []
        first, second = measured_pair("a" * 32), measured_pair("b" * 32, first="c")
        assert [store.pairs.add(each) for each in (first, second)] == [True, True]
        assert not store.pairs.add(measured_pair("a" * 32, host="another"))
        assert store.pairs.newest(10) == [second, first]
        assert store.pairs.newest(1) == [second]
        assert store.pairs.newest(10, "a") == [first]
        assert store.pairs.newest(10, "b") == [second, first]
        assert store.pairs.newest(10, "none") == []

    def test_times_of_runtimes_come_newest_first_and_each_is_kept_once(self, store: Store) -> None:
        assert store.runtime_times.add([]) == 0
        first, second = runtime_time("a" * 32), runtime_time("b" * 32, model="c" * 64)
        assert store.runtime_times.add([first]) == 1
        assert store.runtime_times.add([replace(first, host="another"), second]) == 1
        assert store.runtime_times.newest(10) == [second, first]
        assert store.runtime_times.newest(1) == [second]
        assert store.runtime_times.newest(10, first.model) == [first]
        assert store.runtime_times.newest(10, "d" * 64) == []

    def test_models_and_what_ingest_found(self, store: Store) -> None:
        store.models.add(StoredModel("s", "net.onnx", 5))
        store.models.add(StoredModel("s", "other name", 5))
        assert store.models.get("s").display_name == "net.onnx"
        with pytest.raises(NotFound, match="upload it first"):
            store.models.get("none")
        key = IngestKey("s", {"x": [1, 3]}, "llvm")
        assert store.models.find_ingested(key) is None
        found = IngestedModel("t", "k", [OperatorTask("w", "conv", 2)])
        store.models.save_ingested(key, found)
        assert store.models.find_ingested(key) == found
        assert store.models.find_ingested(replace(key, inputs={"x": [1, 4]})) is None


class TestSqliteStore(OnSqlite, KeptContract):
    def test_a_full_disk_is_said_in_one_line_and_loses_nothing(self, store: Store) -> None:
        store.log.add([trial("a", 1, 1.0)])
        store.close()

        @event.listens_for(store.engine, "connect")
        def _small(connection: object, _: object) -> None:
            connection.execute("PRAGMA max_page_count=1")  # type: ignore[attr-defined]

        with pytest.raises(StateUnusable, match=r"fractune\.db: database or disk is full; free some space"):
            store.log.add([trial("x" * 1_000_000, 1, 1.0, record_id="b")])
        assert store.log.count(EVERYTHING) == 1

    def test_a_read_only_database_is_said_in_one_line(self, store: Store) -> None:
        @event.listens_for(store.engine, "connect")
        def _read_only(connection: object, _: object) -> None:
            connection.execute("PRAGMA query_only=1")  # type: ignore[attr-defined]

        store.close()
        with pytest.raises(StateUnusable, match="readonly database; make the folder writable"):
            store.log.add([trial("a", 1, 1.0)])
        with pytest.raises(StateUnusable, match="readonly database; make the folder writable"):
            store.check_writable()

    def test_what_was_committed_survives_a_kill(self, tmp_path: Path) -> None:
        writer = (
            "import sys, pathlib\n"
            "from tests.support.store_contract import trial\n"
            "from fractune_server.store.store import Store, sqlite_url\n"
            "store = Store(sqlite_url(pathlib.Path(sys.argv[1])))\n"
            "for i in range(10**6):\n"
            "    store.log.add([trial(f't{i}', 1, 1.0)])\n"
            "    print(i, flush=True)\n"
        )
        with subprocess.Popen(
            [sys.executable, "-c", writer, str(tmp_path)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        ) as process:
            assert process.stdout is not None
            said = [process.stdout.readline() for _ in range(20)]
            process.send_signal(signal.SIGKILL)
            said += process.stdout.readlines()
        committed = int(said[-1]) + 1
        store = Store(sqlite_url(tmp_path))
        assert store.log.count(EVERYTHING) in (committed, committed + 1)
        store.close()
