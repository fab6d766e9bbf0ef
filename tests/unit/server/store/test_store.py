"""The store's contract. A further database inherits the suite and gives its own factory."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, event, text

from fractune_core.access.tokens import Quotas, Scope
from fractune_core.errors import BadRequest, NotFound, QuotaExceeded, StateUnusable
from fractune_core.implementations import DIRECT, WINOGRAD4, joined_workloads, text_of
from fractune_core.jobs import JobSpec, JobState, OperatorTask
from fractune_core.records import Kind, Status, TuningRecord
from fractune_core.roofs import Arithmetic, Roof
from fractune_server.store.database import database
from fractune_server.store.database.tables import metadata
from fractune_server.store.files.folder import StateFolder
from fractune_server.store.models import IngestedModel, IngestKey, StoredModel
from fractune_server.store.quotas import Usage
from fractune_server.store.records import spaces
from fractune_server.store.records.filters import RecordFilter
from fractune_server.store.records.log import Donor, LogKey, Page
from fractune_server.store.records.validated import ValidatedCache
from fractune_server.store.rounds import Round
from fractune_server.store.store import Store, sqlite_url
from fractune_server.store.stored_job import Progress, StoredJob, StoredOperator
from fractune_server.store.tokens import TokenStore
from tests.support.paths import REPOSITORY
from tests.support.processes.redis_process import wait_until
from tests.support.samples import DEVICE, DISTURBANCE, TARGET_KEY, divided, granted, validation

KEY = LogKey("f" * 16, TARGET_KEY, DEVICE.key)
EVERYTHING = RecordFilter()
WORKLOADS = ["f" * 16, "e" * 16, "d" * 16, "c" * 16]


def trial(trace: str, units: int, secs: float, **changes: Any) -> TuningRecord:
    fields: dict[str, Any] = {"record_id": f"trial {trace}@{units}", "kind": Kind.TRIAL, **changes}
    return replace(validation(trace, units, secs), **fields)


def failed(trace: str, units: int) -> TuningRecord:
    return trial(trace, units, 1.0, status=Status.RUN_FAILED, cause="crashed", run_secs=())


def job(name: str, **changes: Any) -> StoredJob:
    spec = JobSpec(model="a" * 64, model_name="net.onnx", shares=("cpu:2", "cpu:1"))
    made = StoredJob(name, spec, 1.0, DEVICE, {"cpu:2": granted(2), "cpu:1": granted(1)}, "llvm")
    return replace(made, **changes)


@contextmanager
def rows_written(store: Store, table: str) -> Iterator[list[int]]:
    """How many rows each statement that wrote to the table within the block was given."""
    found: list[int] = []

    def note(_c: Any, _r: Any, statement: str, parameters: Any, _x: Any, executemany: bool) -> None:  # noqa: FBT001
        if table in statement and not statement.startswith("SELECT"):
            found.append(len(parameters) if executemany else 1)

    event.listen(store.database.engine, "before_cursor_execute", note)
    try:
        yield found
    finally:
        event.remove(store.database.engine, "before_cursor_execute", note)


@contextmanager
def counts_from(store: Store) -> Iterator[list[int]]:
    """After which record each count within the block began to look."""
    found: list[int] = []

    def note(_c: Any, _r: Any, statement: str, parameters: Any, _x: Any, _many: bool) -> None:  # noqa: FBT001
        if "count(*)" in statement and "seq >" in statement:
            values = list(parameters.values()) if isinstance(parameters, dict) else list(parameters)
            found.append(next(value for value in values if isinstance(value, int)))

    event.listen(store.database.engine, "before_cursor_execute", note)
    try:
        yield found
    finally:
        event.remove(store.database.engine, "before_cursor_execute", note)


def rows_by_group(store: Store) -> dict[tuple[str, str, str], int]:
    """How many rows the log has now, by share, kind and status."""
    query = text("SELECT share, kind, status, count(*) FROM records GROUP BY share, kind, status")
    with store.database.read() as connection:
        return {(share, kind, status): count for share, kind, status, count in connection.execute(query)}


def validated_of(store: Store) -> dict[str, set[str]]:
    """What a match sees, by workload hash: the records as text."""
    return {name: set(map(repr, found.records)) for name, found in store.log.validated_of(WORKLOADS).items()}


def true_finals(store: Store) -> dict[str, set[str]]:
    """The same from the pages of the log, which nothing keeps."""
    found: dict[str, set[str]] = {name: set() for name in WORKLOADS}
    for record in store.log.all(RecordFilter(kind=Kind.VALIDATION)):
        found[record.workload_hash].add(repr(record))
    return found


def change_something(draw: random.Random, store: Store) -> None:
    """Add, import or prune: some records that are there already, some that nothing keeps, some imports that fail."""
    new = [any_record(draw) for _ in range(draw.randint(1, 5))]
    step = draw.choice(["add", "add", "import", "failing import", "prune"])
    if step == "add":
        store.log.add(new)
    elif step == "import":
        store.log.import_all([(name, "[]") for name in WORKLOADS], new)
    elif step == "failing import":
        with pytest.raises(BadRequest):
            store.log.import_all([], [*new, validation("z", 1, 1.0, workload_hash="unknown-workload")])
    else:
        kind = draw.choice([Kind.VALIDATION, Kind.VALIDATION, Kind.TRIAL, None])
        operator = draw.choice(["", *WORKLOADS])
        chosen = RecordFilter(kind=kind, operator=operator)
        store.log.prune(chosen, draw.randint(0, 1), dry_run=draw.random() < 0.2)


def any_record(draw: random.Random) -> TuningRecord:
    workload, trace, units = draw.choice(WORKLOADS), draw.choice("abc"), draw.choice([1, 2])
    identity = {"record_id": f"{workload} {trace}@{units} {draw.randint(0, 1)}", "workload_hash": workload}
    if draw.random() < 0.3:
        return trial(trace, units, draw.random(), **{**identity, "record_id": f"trial {identity['record_id']}"})
    if draw.random() < 0.2:
        return validation(trace, units, 1.0, **identity, status=Status.WRONG_OUTPUT, cause="wrong", run_secs=())
    disturbance = draw.choice([None, DISTURBANCE])
    return validation(
        trace, units, draw.random(), **identity, max_error=draw.choice([None, 1e-6]), disturbance=disturbance
    )


class StoreContract:
    @pytest.fixture
    def make(self) -> Callable[[], Store]:
        raise NotImplementedError

    def plan(self, connection: Connection, query: str) -> str:
        """How the database would find the rows."""
        raise NotImplementedError

    @pytest.fixture
    def store(self, make: Callable[[], Store]) -> Iterator[Store]:
        store = make()
        yield store
        store.close()

    # ---- records ----

    def test_a_record_comes_back_whole_also_after_a_restart(self, make: Callable[[], Store]) -> None:
        records = [validation("a", 1, 0.5, versions={"tvm": "x"}, max_error=1e-6), failed("b", 2)]
        first = make()
        assert first.log.add(records) == 2
        first.close()
        second = make()
        assert list(second.log.all(EVERYTHING)) == records
        second.close()

    def test_possible_donors_are_counted_by_workload_and_share(self, store: Store) -> None:
        other = {"workload_hash": "e" * 16, "operator": "fused_conv2d2_relu"}
        store.log.add([trial(str(n), 1, 1.0 + n) for n in range(3)] + [trial("x", 2, 1.0), failed("y", 1)])
        store.log.add([trial(f"o{n}", 1, 1.0, **other) for n in range(2)])
        store.log.add([trial("m", 1, 1.0, workload_hash="d" * 16, operator="matmul")])
        share = {units: granted(units).key for units in (1, 2)}
        assert sorted(store.log.donors(KEY, "%conv2d%"), key=lambda each: -each.trials) == [
            Donor("f" * 16, share[1], "conv2d", 3),
            Donor("e" * 16, share[1], "fused_conv2d2_relu", 2),
            Donor("f" * 16, share[2], "conv2d", 1),
        ]

    def test_a_record_that_is_there_stays_as_it_is(self, store: Store) -> None:
        assert store.log.add([trial("a", 1, 1.0)]) == 1
        assert store.log.add([trial("a", 1, 9.0), trial("b", 1, 2.0)]) == 1
        assert [record.median_s for record in store.log.all(EVERYTHING)] == [1.0, 2.0]
        ids = ["trial a@1", "trial none@1"]
        assert store.log.existing(ids) == {"trial a@1"}

    def test_an_exact_key_leaves_out_what_rounds_otherwise(self, store: Store) -> None:
        fast, exact = text_of(WINOGRAD4, "[]"), text_of("split", "[]")
        store.log.add([trial(fast, 1, 1.0), trial(exact, 1, 2.0), trial("t", 1, 3.0)])
        own, share = replace(KEY, exact=True), granted(1).key
        assert [record.trace for record in store.log.best_trials(KEY, share, 9)] == [fast, exact, "t"]
        assert [record.trace for record in store.log.best_trials(own, share, 9)] == [exact, "t"]
        assert len(store.log.trials(own)) == 2
        assert [KEY.has(trial(text, 1, 1.0)) for text in (fast, exact)] == [True, True]
        assert [own.has(trial(text, 1, 1.0)) for text in (fast, exact)] == [False, True]

    def test_a_key_reads_its_scope_and_where_that_is_said_one_job_alone(self, store: Store) -> None:
        ours, theirs = replace(KEY, scope="a"), replace(KEY, scope="b")
        own = replace(ours, job="j2")
        store.log.add([trial("t", 1, 1.0), trial("u", 1, 2.0, scope="a"), trial("v", 1, 3.0, scope="a", job="j2")])
        store.log.add([validation("u", 1, 2.0, scope="a"), validation("v", 1, 3.0, scope="a", job="j2")])
        for key, traces in ((KEY, "t"), (ours, "uv"), (own, "v"), (theirs, "")):
            share = granted(1).key
            assert [record.trace for record in store.log.best_trials(key, share, 9)] == list(traces)
            assert len(store.log.trials(key)) == len(traces)
            assert [donor.trials for donor in store.log.donors(key, "%conv2d%")] == ([len(traces)] if traces else [])
            assert store.log.count(RecordFilter(scope=key.scope, kind=Kind.TRIAL)) == len(traces) + (key == own)
        validated = store.log.validated(KEY.workload_hash)
        assert [record.trace for record in validated.of_scope("a").records] == ["u", "v"]
        assert [record.trace for record in validated.of_scope("a").of_job("j2").records] == ["v"]
        assert not validated.of_scope("").records
        assert [record.trace for record in validated.records if own.has(record)] == ["v"]
        store.log.prune(RecordFilter(scope="a"), 0, dry_run=False)
        assert [len(store.log.trials(key)) for key in (KEY, ours)] == [1, 0]

    def test_a_workload_with_more_implementations_takes_the_place_of_one_with_fewer(self, store: Store) -> None:
        one, both = joined_workloads({DIRECT: ["1"]}), joined_workloads({DIRECT: ["1"], WINOGRAD4: ["2"]})
        for written, kept in ((one, one), (both, both), (one, both)):
            store.log.add_workloads([("w", written)])
            assert store.log.workload("w") == kept

    def test_an_imported_workload_with_more_implementations_leaves_the_arithmetic(self, store: Store) -> None:
        one, both = joined_workloads({DIRECT: ["1"]}), joined_workloads({DIRECT: ["1"], WINOGRAD4: ["2"]})
        known = trial("a", 1, 1.0)
        name = known.workload_hash
        store.log.import_all([(name, one)], [known])
        store.log.set_arithmetic({name: Arithmetic(4.0, 8)})
        store.log.import_all([(name, both)], [trial(text_of(WINOGRAD4, "[]"), 1, 0.5)])
        assert store.log.workload(name) == both
        assert store.log.arithmetic([name]) == {name: Arithmetic(4.0, 8)}

    def test_best_trials_one_for_each_candidate_fastest_first(self, store: Store) -> None:
        again = replace(trial("a", 1, 5.0), record_id="again")
        store.log.add([trial("a", 1, 1.0), again, trial("b", 1, 0.5), failed("c", 1), trial("d", 2, 0.1)])
        best = store.log.best_trials(KEY, granted(1).key, 9)
        assert [(record.trace, record.median_s) for record in best] == [("b", 0.5), ("a", 1.0)]
        assert len(store.log.best_trials(KEY, granted(1).key, 1)) == 1

    def test_look_ups_keep_to_their_workload_target_and_device(self, store: Store) -> None:
        other = replace(DEVICE, isa="zen")
        store.log.add([trial("a", 1, 1.0), trial("b", 1, 2.0, device=other), trial("c", 1, 3.0, target_key="{}")])
        store.log.add([trial("d", 1, 4.0, workload_hash="0" * 16), validation("e", 1, 5.0)])
        assert [row.median_s for row in store.log.trials(KEY)] == [1.0]
        assert [record.trace for record in store.log.validated(KEY.workload_hash).records] == ["e"]
        candidate = trial("a", 1, 1.0).candidate_id
        assert store.log.traces(KEY, [candidate, "none"]) == {candidate: "a"}

    def test_look_ups_use_an_index(self, store: Store) -> None:
        queries = [
            "SELECT * FROM records WHERE workload_hash='a' AND kind='trial' AND scope='' AND share_key='s'",
            "SELECT * FROM records WHERE workload_hash='a' AND kind='trial' AND share_key='s' ORDER BY median_s",
            "SELECT * FROM records WHERE workload_hash IN ('a', 'b') AND kind='validation'",
            "SELECT * FROM validation_versions WHERE workload_hash IN ('a', 'b')",
            "SELECT * FROM records WHERE record_id='a'",
            "SELECT * FROM records WHERE job='a'",
            "SELECT * FROM records WHERE share='a' ORDER BY seq DESC LIMIT 1",
            "SELECT * FROM records WHERE scope='' ORDER BY median_s, seq LIMIT 1",
            "SELECT * FROM jobs WHERE state IN ('queued')",
            "SELECT * FROM jobs WHERE id='a'",
            "SELECT * FROM rounds WHERE round_id='a'",
        ]
        with store.database.read() as connection:
            for query in queries:
                plan = self.plan(connection, query).lower()
                assert "index" in plan, query
                assert "temp b-tree" not in plan, query
                assert "sort" not in plan, query

    @pytest.mark.parametrize("fastest_first", [True, False])
    def test_pages_bring_everything_once(self, store: Store, fastest_first: bool) -> None:  # noqa: FBT001
        store.log.add([trial(f"t{i}", 1, 1.0 + i % 3) for i in range(10)] + [failed("x", 1), failed("y", 1)])
        found: list[TuningRecord] = []
        after: Page | None = None
        while True:
            part, after = store.log.page(EVERYTHING, 5, after, fastest_first=fastest_first)
            found += part
            if after is None:
                break
        assert len({record.record_id for record in found}) == len(found) == 12
        if fastest_first:
            assert [r.median_s for r in found] == sorted(r.median_s for r in found)

    def test_filters(self, store: Store) -> None:
        store.log.add([validation("a", 1, 1.0), trial("b", 2, 1.0, operator="dense_3", job="j2")])
        store.jobs.create(job("j"))
        store.jobs.save(store.jobs.get("j"), {0: StoredOperator("f" * 16, "conv2d", 1, selected=True)})

        def count(chosen: RecordFilter) -> int:
            return store.log.count(chosen)

        assert count(RecordFilter(kind=Kind.VALIDATION)) == 1
        assert count(RecordFilter(operator="dense")) == count(RecordFilter(operator="DENSE")) == 1
        assert count(RecordFilter(operator="f" * 16)) == 2
        assert count(RecordFilter(operator="den%3")) == 0
        assert count(RecordFilter(share="cpu:2")) == 1
        assert count(RecordFilter(device="rocket")) == count(RecordFilter(device="Rocket")) == 2
        assert count(RecordFilter(job="j2")) == 1
        assert count(RecordFilter(model="a" * 64)) == count(RecordFilter(model="Net")) == 2
        assert count(RecordFilter(model="other")) == 0

    def test_prune_keeps_the_fastest_and_what_is_published(self, store: Store) -> None:
        store.log.add([trial(f"t{i}", 1, 1.0 + i) for i in range(4)] + [trial("u", 2, 9.0), validation("f", 1, 1.0)])
        assert store.log.prune(EVERYTHING, 2, dry_run=True) == (2, 4)
        assert store.log.count(EVERYTHING) == 6
        assert store.log.prune(EVERYTHING, 2, dry_run=False) == (2, 4)
        assert sorted(record.trace for record in store.log.all(EVERYTHING)) == ["f", "t0", "t1", "u"]
        assert store.log.prune(RecordFilter(kind=Kind.VALIDATION), 0, dry_run=False) == (1, 0)

    def test_what_is_told_of_a_record_neither_orders_nor_keeps_it(self, store: Store) -> None:
        store.log.add([divided("chosen", 1, 1.0, 3.0), divided("other", 1, 2.0, 2.0)])
        page, _ = store.log.page(EVERYTHING, 2, None, fastest_first=True)
        assert [(record.trace, record.median_s) for record in page] == [("chosen", 3.0), ("other", 2.0)]
        assert store.log.prune(RecordFilter(kind=Kind.VALIDATION), 1, dry_run=False) == (1, 1)
        assert [record.trace for record in store.log.all(EVERYTHING)] == ["chosen"]

    def test_import_is_all_or_nothing(self, store: Store) -> None:
        stranger = trial("b", 1, 1.0, workload_hash="0" * 16)
        with pytest.raises(BadRequest, match=f"records/{stranger.record_id}: workload 0000"):
            store.log.import_all([("f" * 16, "[]")], [trial("a", 1, 1.0), stranger])
        assert store.log.count(EVERYTHING) == 0
        with pytest.raises(NotFound):
            store.log.workload("f" * 16)
        assert store.log.import_all([("f" * 16, "[1]")], [trial("a", 1, 1.0)]) == 1
        assert store.log.import_all([], [trial("a", 1, 1.0)]) == 0
        assert store.log.workload("f" * 16) == "[1]"

    def test_newest(self, store: Store) -> None:
        assert store.log.newest("cpu:1") is None
        store.log.add([trial("a", 1, 1.0), trial("b", 1, 1.0), trial("c", 2, 1.0)])
        newest = store.log.newest("cpu:1")
        assert newest is not None
        assert newest.trace == "b"
        assert store.log.newest_of_kind("cpu") is not None
        assert store.log.newest_of_kind("cuda") is None

    # ---- validations, which are kept in memory ----

    @pytest.mark.parametrize("seed", range(6))
    def test_finals_are_the_truth_whatever_happens_and_whoever_does_it(
        self, make: Callable[[], Store], seed: int
    ) -> None:
        stores = [make(), make()]
        draw = random.Random(seed)
        for _ in range(25):
            change_something(draw, draw.choice(stores))
            for store in draw.sample(stores, draw.randint(0, 2)):
                assert validated_of(store) == true_finals(store)
        for store in stores:
            assert validated_of(store) == true_finals(store)
            store.close()

    def test_finals_that_change_while_they_are_read_are_read_again(self, make: Callable[[], Store]) -> None:
        reader, writer = make(), make()
        writer.log.add([validation("a", 1, 1.0)])
        pending = [validation("b", 1, 1.0), validation("c", 1, 1.0)]

        @event.listens_for(reader.database.engine, "before_cursor_execute")
        def _meanwhile(*call: object) -> None:
            if pending and "FROM records" in str(call[2]):
                writer.log.add([pending.pop()])

        for _ in range(4):
            reader.log.validated(KEY.workload_hash)
        assert not pending
        assert {record.trace for record in reader.log.validated(KEY.workload_hash).records} == {"a", "b", "c"}
        reader.close()
        writer.close()

    def test_finals_that_stay_the_same_are_read_once_and_trials_do_not_count(self, store: Store) -> None:
        store.log.add([validation("a", 1, 1.0)])
        first = store.log.validated_of(WORKLOADS)
        reads: list[str] = []

        @event.listens_for(store.database.engine, "before_cursor_execute")
        def _listen(*call: object) -> None:
            reads.append(str(call[2]))

        store.log.add([trial("b", 1, 1.0)])
        second = store.log.validated_of(WORKLOADS)
        assert all(second[name] is first[name] for name in WORKLOADS)
        assert not any("FROM records" in read for read in reads)

    def test_finals_in_memory_are_bounded_those_not_asked_for_go_first(self, store: Store) -> None:
        store.log.add([validation("x" * 5000, 1, 1.0, record_id=name, workload_hash=name) for name in WORKLOADS])
        cache = ValidatedCache(store.database, kept_bytes=20_000)
        first = {name: cache.of([name])[name] for name in WORKLOADS[:3]}
        assert cache.of(WORKLOADS[:1])[WORKLOADS[0]] is first[WORKLOADS[0]]
        cache.of(WORKLOADS[3:4])
        assert 10_000 < cache.kept_bytes <= 20_000
        assert cache.of(WORKLOADS[:1])[WORKLOADS[0]] is first[WORKLOADS[0]]
        assert cache.of(WORKLOADS[1:2])[WORKLOADS[1]] is not first[WORKLOADS[1]]
        assert cache.of(WORKLOADS) == store.log.validated_of(WORKLOADS)
        assert cache.kept_bytes <= 20_000

    # ---- jobs ----

    def test_a_job_comes_back_whole(self, store: Store) -> None:
        made = job("j", notes=["a"], timings={"cpu:1": {"run_secs": {"untuned": [1.0]}}})
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
        store.log.add([trial("new", 1, 1.0), validation("v", 1, 1.0)])
        with counts_from(store) as looked_at:
            assert store.log.count(chosen) == 6
            assert store.log.count(RecordFilter(kind=Kind.TRIAL, share="cpu:2")) == 0
        assert looked_at == [5, 0]
        assert store.log.prune(RecordFilter(kind=Kind.TRIAL), 2, dry_run=False) == (4, 2)
        assert store.log.count(chosen) == 2

    # ---- tokens and their quotas ----

    def test_a_token_is_found_by_its_secret_alone_and_the_secret_is_not_kept(self, store: Store) -> None:
        quotas = Quotas(open_jobs=1, trials_a_day=2, upload_bytes=3)
        made = store.tokens.create("ci", Scope.SUBMIT, 5.0, quotas)
        found = store.tokens.find(made)
        assert found is not None
        assert (found.name, found.scope, found.expires_at, found.quotas) == ("ci", Scope.SUBMIT, 5.0, quotas)
        assert (found.end(4.0), found.end(5.0)) == ("", "expired")
        assert store.tokens.find(replace(made, secret="0" * 64)) is None
        assert store.tokens.find(replace(made, token_id="0" * 12)) is None
        assert store.tokens.all() == [found]
        with store.database.read() as connection:
            (row,) = connection.execute(text("SELECT * FROM tokens")).all()
        assert made.secret not in str(row)

    def test_a_token_is_revoked_once_and_for_ever(self, store: Store) -> None:
        made = store.tokens.create("ci", Scope.ADMIN, None, Quotas())
        assert [store.tokens.revoke(made.token_id) for _ in range(2)] == [True, False]
        found = store.tokens.find(made)
        assert found is not None
        assert found.end(0.0) == "revoked"
        with pytest.raises(NotFound, match="no token 'none'"):
            store.tokens.revoke("none")

    def test_usage_is_that_of_the_token_s_own_jobs_and_models(self, store: Store) -> None:
        now = time.time()
        spec = JobSpec("a" * 64, "net.onnx", ("cpu:2", "cpu:1"), trials=100)
        done = {"state": JobState.DONE, "ended_at": now}
        store.jobs.create(job("open", token="t", spec=spec, created_at=now))
        store.jobs.create(job("ended", token="t", spec=spec, created_at=now, progress=Progress(done=7), **done))
        store.jobs.create(job("old and open", token="t", spec=spec, created_at=now - 90_000))
        store.jobs.create(job("old", token="t", spec=spec, created_at=now - 90_000, **done))
        store.jobs.create(job("another's", token="u", spec=spec, created_at=now))
        store.models.add(StoredModel("s", "net.onnx", 5, "t"))
        store.models.add(StoredModel("s", "net.onnx", 5, "u"))
        store.models.add(StoredModel("x", "net.onnx", 6, "t"))
        assert store.tokens.usage("t") == Usage(open_jobs=2, trials_a_day=107, upload_bytes=11)
        assert store.tokens.usage("u") == Usage(open_jobs=1, trials_a_day=100, upload_bytes=0)
        assert store.tokens.usage("none") == Usage(0, 0, 0)

    @pytest.mark.parametrize(
        ("quotas", "spec", "says"),
        [
            (Quotas(open_jobs=1), {"trials": 1}, "has 1 open jobs of at most 1"),
            (Quotas(trials_a_day=150), {"trials": 51}, "asks for 51 trials, and token t has 50 of 150 in 24 hours"),
            (Quotas(trials_a_day=150), {"trials": 1, "more": 51}, "asks for 51 trials"),
            (Quotas(trials_a_day=100), {"trials": 0}, "asks for 0 trials, and token t has 0 of 100"),
            (Quotas(open_jobs=2, trials_a_day=150), {"trials": 50}, ""),
            (Quotas(trials_a_day=101), {"trials": 0}, ""),
            (Quotas(), {"trials": 1_000_000}, ""),
        ],
    )
    def test_a_job_beyond_a_quota_is_not_made(
        self, store: Store, quotas: Quotas, spec: dict[str, Any], says: str
    ) -> None:
        base = JobSpec("a" * 64, "net.onnx", ("cpu:2", "cpu:1"), trials=100)
        store.jobs.create(job("first", token="t", spec=base, created_at=time.time()))
        second = job("second", token="t", spec=replace(base, **cast(Any, spec)), created_at=time.time())
        if not says:
            store.jobs.create(second, quotas)
            assert store.jobs.open_ids() == {"first", "second"}
            return
        with pytest.raises(QuotaExceeded, match=says):
            store.jobs.create(second, quotas)
        assert store.jobs.open_ids() == {"first"}

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
        first, end = store.jobs.page(2, None, open_only=False)
        second, last = store.jobs.page(2, end, open_only=False)
        assert [found.id for found in first + second] == ["c", "b", "a"]
        assert last is None

    def test_a_bundle_s_times_are_those_of_the_newest_job_that_is_done_on_the_same_device(self, store: Store) -> None:
        def timed(name: str, secs: float, **changes: Any) -> None:
            timings = {share: {"run_secs": {"untuned": [secs]}} for share in ("cpu:1", "cpu:2")}
            made = {"bundle": "b", "state": JobState.DONE, "ended_at": 9.0, "timings": timings, **changes}
            store.jobs.create(job(name, **made))

        both = {"cpu:1": granted(1), "cpu:2": granted(2)}
        assert store.jobs.timings("b", DEVICE, both) == {}
        timed("first", 1.0)
        timed("second", 2.0, timings={"cpu:1": {"run_secs": {"untuned": [2.0]}, "job": "before", "timed_at": 5.0}})
        timed("cut off", 3.0, state=JobState.CANCELLED)
        timed("of another bundle", 4.0, bundle="c")
        timed("elsewhere", 5.0, device=replace(DEVICE, units=64))
        timed("at less", 6.0, granted={"cpu:2": granted(1), "cpu:1": granted(1)})
        assert store.jobs.timings("b", DEVICE, both) == {
            "cpu:1": {"run_secs": {"untuned": [2.0]}, "job": "before", "timed_at": 5.0}
        }
        found = store.jobs.timings("c", DEVICE, both)
        assert found["cpu:2"] == {"run_secs": {"untuned": [4.0]}, "job": "of another bundle", "timed_at": 9.0}

    # ---- roofs ----

    def test_of_a_roof_the_best_of_each_figure_is_kept(self, store: Store) -> None:
        assert store.roofs.of("device") == {}
        store.roofs.add("device", "cpu/1of2core", Roof(100.0, 8.0, 1 << 25))
        store.roofs.add("device", "cpu/1of2core", Roof(90.0, 10.0, 1 << 25))
        store.roofs.add("device", "cpu/2of2core", Roof(180.0, 9.0, 1 << 25))
        store.roofs.add("other", "cpu/1of2core", Roof(1.0, 1.0, 1))
        assert store.roofs.of("device") == {
            "cpu/1of2core": Roof(100.0, 10.0, 1 << 25),
            "cpu/2of2core": Roof(180.0, 9.0, 1 << 25),
        }

    def test_what_workloads_ask_for_is_known_once_it_was_told(self, store: Store) -> None:
        store.log.add_workloads([("w", "[]"), ("v", "[]")])
        assert store.log.arithmetic(["w", "v", "none"]) == {}
        store.log.set_arithmetic({"w": Arithmetic(1e9, 3 << 40), "none": Arithmetic(1.0, 1)})
        assert store.log.arithmetic(["w", "v", "none"]) == {"w": Arithmetic(1e9, 3 << 40)}
        store.log.add_workloads([("w", "[]")])
        assert store.log.arithmetic(["w"]) == {"w": Arithmetic(1e9, 3 << 40)}

    # ---- exhausted spaces ----

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
        monkeypatch.setattr(spaces, "_VERSION", "another")
        assert store.spaces.of(TARGET_KEY, WORKLOADS, exact=False) == {}
        store.spaces.add(KEY, 2)
        assert store.spaces.of(TARGET_KEY, WORKLOADS, exact=False) == {WORKLOADS[0]: 2}

    # ---- models ----

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

    def test_what_disturbed_a_measurement_is_kept(self, store: Store) -> None:
        records = [validation("a", 1, 1.0, disturbance=DISTURBANCE, attempts=2), validation("b", 1, 1.0)]
        store.log.add(records)
        assert set(map(repr, store.log.all(EVERYTHING))) == set(map(repr, records))
        assert set(map(repr, store.log.validated(KEY.workload_hash).records)) == set(map(repr, records))

    def test_what_the_log_took_in_is_counted_once_and_pruning_takes_nothing_away(self, store: Store) -> None:
        store.log.add([trial("a", 1, 1.0), trial("b", 1, 2.0), trial("a", 2, 1.0), failed("c", 1)])
        assert store.log.add([trial("a", 1, 1.0), validation("a", 1, 1.0)]) == 1
        totals = store.log.totals()
        assert totals == rows_by_group(store)
        assert totals == {
            ("cpu:1", "trial", "ok"): 2,
            ("cpu:2", "trial", "ok"): 1,
            ("cpu:1", "trial", "run_failed"): 1,
            ("cpu:1", "validation", "ok"): 1,
        }
        store.log.prune(RecordFilter(kind=Kind.TRIAL), 0, dry_run=False)
        assert store.log.count(EVERYTHING) == 1
        assert store.log.totals() == totals

    def test_jobs_are_counted_by_state(self, store: Store) -> None:
        assert store.jobs.count_by_state() == {}
        for name in ("one", "two", "three"):
            store.jobs.create(job(name))
        store.jobs.end("two", JobState.CANCELLED, "JobCancelled", "")
        assert store.jobs.count_by_state() == {JobState.QUEUED: 2, JobState.CANCELLED: 1}

    def test_a_look_whether_it_takes_writes_changes_nothing(self, store: Store) -> None:
        store.roofs.add("device", "share", Roof(1.0, 2.0, 3))
        store.check_writable()
        assert store.roofs.of("device")

    # ---- migrations ----

    def test_the_migrations_make_the_tables(self, store: Store) -> None:
        with store.database.read() as connection:
            assert compare_metadata(MigrationContext.configure(connection), metadata) == []

    def test_a_log_of_the_first_schema_is_brought_up_to_date(self, make: Callable[[], Store]) -> None:
        old = make()
        old.log.add([validation("a", 1, 1.0)])
        old.log.add_workloads([("f" * 16, "[]")])
        with old.database.write() as connection:
            config = _migrations()
            config.attributes["connection"] = connection
            command.downgrade(config, "0001")
            assert "validation" not in str(connection.execute(text("SELECT kind, policy FROM records")).all())
        old.close()
        store = make()
        (record,) = store.log.validated(KEY.workload_hash).records
        assert (record.trace, record.disturbance, record.attempts, record.scope) == ("a", None, 0, "")
        store.log.add([validation("b", 1, 1.0)])
        assert len(store.log.validated(KEY.workload_hash).records) == 2
        assert store.log.arithmetic(["f" * 16]) == {}
        assert store.roofs.of(DEVICE.key) == {}
        assert store.log.totals() == rows_by_group(store) == {("cpu:1", "validation", "ok"): 2}
        store.close()


class TestSqliteStore(StoreContract):
    @pytest.fixture
    def make(self, tmp_path: Path) -> Callable[[], Store]:
        return lambda: Store(sqlite_url(tmp_path))

    def plan(self, connection: Connection, query: str) -> str:
        return " ".join(str(row) for row in connection.execute(text(f"EXPLAIN QUERY PLAN {query}")))

    def test_the_newest_migration_is_the_one_that_the_store_looks_for(self) -> None:
        assert ScriptDirectory.from_config(_migrations()).get_heads() == [database.SCHEMA]

    def test_another_process_neither_makes_nor_changes_a_database(self, tmp_path: Path) -> None:
        with pytest.raises(StateUnusable, match=r"no database at .*fractune\.db; start the server there once"):
            database.Database(sqlite_url(tmp_path), may_migrate=False)
        assert list(tmp_path.iterdir()) == []
        store = Store(sqlite_url(tmp_path))
        beside = database.Database(sqlite_url(tmp_path), may_migrate=False)
        made = TokenStore(beside).create("ci", Scope.READ, None, Quotas())
        assert store.tokens.find(made) is not None, "the server sees it at once"
        with store.database.write() as connection:
            connection.execute(text("UPDATE alembic_version SET version_num = '0008'"))
        with pytest.raises(StateUnusable, match=f"has schema 0008, and this version needs {database.SCHEMA}"):
            database.Database(sqlite_url(tmp_path), may_migrate=False)
        beside.close()
        store.close()

    def test_a_full_disk_is_said_in_one_line_and_loses_nothing(self, store: Store) -> None:
        store.log.add([trial("a", 1, 1.0)])
        store.close()

        @event.listens_for(store.database.engine, "connect")
        def _small(connection: object, _: object) -> None:
            connection.execute("PRAGMA max_page_count=1")  # type: ignore[attr-defined]

        with pytest.raises(StateUnusable, match=r"fractune\.db: database or disk is full; free some space"):
            store.log.add([trial("x" * 1_000_000, 1, 1.0, record_id="b")])
        assert store.log.count(EVERYTHING) == 1

    def test_a_read_only_database_is_said_in_one_line(self, store: Store) -> None:
        @event.listens_for(store.database.engine, "connect")
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
            "from tests.unit.server.store.test_store import trial\n"
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


class TestStateFolder:
    def test_a_second_server_is_refused_until_the_first_has_gone(self, tmp_path: Path) -> None:
        with (
            StateFolder(tmp_path / "state"),
            pytest.raises(StateUnusable, match=rf"in use by another server \(pid {os.getpid()}\)"),
        ):
            StateFolder(tmp_path / "state")
        StateFolder(tmp_path / "state").close()

    def test_a_killed_server_leaves_no_lock(self, tmp_path: Path) -> None:
        holder = "import sys, pathlib, time\nfrom fractune_server.store.files.folder import StateFolder\n"
        holder += "f = StateFolder(pathlib.Path(sys.argv[1]))\ntime.sleep(600)\n"
        env = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        with subprocess.Popen([sys.executable, "-c", holder, str(tmp_path / "state")], env=env) as process:
            wait_until(lambda: (tmp_path / "state" / "lock").exists() and _is_locked(tmp_path / "state"))
            process.kill()
        StateFolder(tmp_path / "state").close()


def _migrations() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(database.__file__).with_name("migrations")))
    return config


def _is_locked(folder: Path) -> bool:
    try:
        StateFolder(folder).close()
    except StateUnusable:
        return True
    return False
