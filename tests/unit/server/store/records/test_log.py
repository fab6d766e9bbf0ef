"""The tuning log: what is added, looked up, counted, imported and pruned."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_type_hints

import pytest
from sqlalchemy import event

from fractune_core.analysis.roofline import Arithmetic
from fractune_core.errors import BadRequest, NotFound
from fractune_core.operators import WINOGRAD4, text_of
from fractune_core.records import Kind, Spending, TuningRecord, WorkCost
from fractune_server.store.jobs import StoredOperator
from fractune_server.store.records.log import Donor, LogKey, RecordPlace
from fractune_server.store.records.rows import _OWN, RecordFilter
from fractune_server.store.store import Store
from tests.support.samples import DEVICE, DISTURBANCE, WORKLOAD, WORKLOAD_TEXT, divided, granted, validation
from tests.support.store_contract import (
    EVERYTHING,
    KEY,
    OnSqlite,
    StoreContract,
    failed,
    job,
    rows_by_group,
    trial,
    validations_of,
)


class LogContract(StoreContract):
    def test_a_record_comes_back_whole_also_after_a_restart(self, make: Callable[[], Store]) -> None:
        records = [validation("a", 1, 0.5, versions={"tvm": "x"}, max_error=1e-6), failed("b", 2)]
        records.append(validation("c", 1, 1.0, disturbance=DISTURBANCE, attempts=2))
        first = make()
        assert first.log.add(records) == 3
        first.close()
        second = make()
        assert list(second.log.all(EVERYTHING)) == records
        assert validations_of(second, KEY.workload_hash).records == (records[0], records[2])
        second.close()

    def test_possible_donors_are_counted_by_workload_and_share(self, store: Store) -> None:
        other = {"workload_hash": "e" * 16, "operator": "fused_conv2d2_relu"}
        store.log.add([trial(str(n), 1, 1.0 + n) for n in range(3)] + [trial("x", 2, 1.0), failed("y", 1)])
        store.log.add([trial(f"o{n}", 1, 1.0, **other) for n in range(2)])
        store.log.add([trial("m", 1, 1.0, workload_hash="d" * 16, operator="matmul")])
        share = {units: granted(units).key for units in (1, 2)}
        assert sorted(store.log.donors(KEY, "conv2d"), key=lambda each: -each.trials) == [
            Donor(WORKLOAD, share[1], "conv2d", 3),
            Donor("e" * 16, share[1], "fused_conv2d2_relu", 2),
            Donor(WORKLOAD, share[2], "conv2d", 1),
        ]
        assert store.log.donors(KEY, "conv_d") == store.log.donors(KEY, "conv%d") == []

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
        ours, theirs = replace(KEY, namespace="a"), replace(KEY, namespace="b")
        own = replace(ours, job="j2")
        store.log.add(
            [trial("t", 1, 1.0), trial("u", 1, 2.0, namespace="a"), trial("v", 1, 3.0, namespace="a", job="j2")]
        )
        store.log.add([validation("u", 1, 2.0, namespace="a"), validation("v", 1, 3.0, namespace="a", job="j2")])
        for key, traces in ((KEY, "t"), (ours, "uv"), (own, "v"), (theirs, "")):
            share = granted(1).key
            assert [record.trace for record in store.log.best_trials(key, share, 9)] == list(traces)
            assert len(store.log.trials(key)) == len(traces)
            assert [donor.trials for donor in store.log.donors(key, "conv2d")] == ([len(traces)] if traces else [])
            assert store.log.count(RecordFilter(namespace=key.namespace, kind=Kind.TRIAL)) == len(traces) + (key == own)
        validated = validations_of(store, KEY.workload_hash, "a")
        assert [record.trace for record in validated.records] == ["u", "v"]
        assert [record.trace for record in validated.of_job("j2").records] == ["v"]
        assert not validations_of(store, KEY.workload_hash).records
        assert [record.trace for record in validated.records if own.has(record)] == ["v"]
        store.log.prune(RecordFilter(namespace="a"), 0, dry_run=False)
        assert [len(store.log.trials(key)) for key in (KEY, ours)] == [1, 0]

    def test_a_text_is_kept_under_its_own_name_alone(self, store: Store) -> None:
        """Whoever sends it: a known name is never given another text."""
        store.log.add_workloads([(WORKLOAD, WORKLOAD_TEXT)])
        for name in (WORKLOAD, "0" * 64, "f" * 16):
            with pytest.raises(BadRequest, match=f"workload '?{name}"):
                store.log.add_workloads([(name, "[1]")])
            with pytest.raises(BadRequest, match=f"workload '?{name}"):
                store.log.import_all([(name, "[1]")], [])
        assert store.log.workload(WORKLOAD) == WORKLOAD_TEXT
        for name in ("0" * 64, "f" * 16):
            with pytest.raises(NotFound):
                store.log.workload(name)

    def test_a_workload_that_is_imported_again_keeps_its_arithmetic(self, store: Store) -> None:
        store.log.import_all([(WORKLOAD, WORKLOAD_TEXT)], [trial("a", 1, 1.0)])
        store.log.set_arithmetic({WORKLOAD: Arithmetic(4.0, 8)})
        store.log.import_all([(WORKLOAD, WORKLOAD_TEXT)], [trial("b", 1, 0.5)])
        assert store.log.arithmetic([WORKLOAD]) == {WORKLOAD: Arithmetic(4.0, 8)}

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
        assert [row.ranking_median_s for row in store.log.trials(KEY)] == [1.0]
        assert [record.trace for record in validations_of(store, KEY.workload_hash).records] == ["e"]
        candidate = trial("a", 1, 1.0).candidate_id
        assert store.log.traces(KEY, [candidate, "none"]) == {candidate: "a"}

    @pytest.mark.parametrize("fastest_first", [True, False])
    def test_pages_bring_everything_once(self, store: Store, fastest_first: bool) -> None:  # noqa: FBT001
        store.log.add([trial(f"t{i}", 1, 1.0 + i % 3) for i in range(10)] + [failed("x", 1), failed("y", 1)])
        found: list[TuningRecord] = []
        after: RecordPlace | None = None
        while True:
            part = store.log.page(EVERYTHING, 5, after, fastest_first=fastest_first)
            if not part:
                break
            found += [record for _, record in part]
            after = part[-1][0]
        assert len({record.record_id for record in found}) == len(found) == 12
        if fastest_first:
            assert [r.median_s for r in found] == sorted(r.median_s for r in found)

    def test_filters(self, store: Store) -> None:
        store.log.add([validation("a", 1, 1.0), trial("b", 2, 1.0, operator="dense_3", job="j2")])
        store.jobs.create(job("j"))
        store.jobs.save(store.jobs.get("j"), {0: StoredOperator(WORKLOAD, "conv2d", 1, selected=True)})

        def count(chosen: RecordFilter) -> int:
            return store.log.count(chosen)

        assert count(RecordFilter(kind=Kind.VALIDATION)) == 1
        assert count(RecordFilter(operator="dense")) == count(RecordFilter(operator="DENSE")) == 1
        assert count(RecordFilter(operator=WORKLOAD)) == 2
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
        page = store.log.page(EVERYTHING, 2, None, fastest_first=True)
        assert [(record.trace, record.median_s) for _, record in page] == [("chosen", 3.0), ("other", 2.0)]
        assert store.log.prune(RecordFilter(kind=Kind.VALIDATION), 1, dry_run=False) == (1, 1)
        assert [record.trace for record in store.log.all(EVERYTHING)] == ["chosen"]

    def test_import_is_all_or_nothing(self, store: Store) -> None:
        stranger = trial("b", 1, 1.0, workload_hash="0" * 16)
        with pytest.raises(BadRequest, match=f"records/{stranger.record_id}: workload 0000"):
            store.log.import_all([(WORKLOAD, WORKLOAD_TEXT)], [trial("a", 1, 1.0), stranger])
        assert store.log.count(EVERYTHING) == 0
        with pytest.raises(NotFound):
            store.log.workload(WORKLOAD)
        assert store.log.import_all([(WORKLOAD, WORKLOAD_TEXT)], [trial("a", 1, 1.0)]) == 1
        assert store.log.import_all([], [trial("a", 1, 1.0)]) == 0
        assert store.log.workload(WORKLOAD) == WORKLOAD_TEXT

    def test_newest(self, store: Store) -> None:
        assert store.log.newest("cpu:1") is None
        store.log.add([trial("a", 1, 1.0), trial("b", 1, 1.0), trial("c", 2, 1.0)])
        newest = store.log.newest("cpu:1")
        assert newest is not None
        assert newest.trace == "b"
        assert store.log.newest_of_kind("cpu") is not None
        assert store.log.newest_of_kind("cuda") is None

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


class TestSqliteLog(OnSqlite, LogContract):
    pass


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


def test_the_records_of_a_scope_are_counted_from_where_they_were_counted_last(store: Store, plans: list[str]) -> None:
    store.log.count(RecordFilter())
    assert any("ix_records_newest (namespace=? AND seq>? AND seq<?)" in plan for plan in plans)


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


def test_measured_numbers_are_parsed_for_each_record() -> None:
    """Two records hardly ever have the same time, so its text is not worth keeping."""
    measured = {name for name, kind in get_type_hints(TuningRecord).items() if "float" in str(kind)}
    assert measured - set(_OWN) == set()
