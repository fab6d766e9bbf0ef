"""Validations, which are kept in memory: always what the log holds."""

import random
from collections.abc import Callable

import pytest
from sqlalchemy import event

from fractune_core.errors import BadRequest
from fractune_core.records import Kind, Status, TuningRecord
from fractune_server.store.records.caches import ValidatedCache
from fractune_server.store.records.rows import RecordFilter
from fractune_server.store.store import Store
from tests.support.samples import DISTURBANCE, validation
from tests.support.store_contract import KEY, TEXTS, WORKLOADS, OnSqlite, StoreContract, trial, validations_of

NAMESPACES = ("", "ours")


def validated_of(store: Store) -> dict[tuple[str, str], set[str]]:
    """What a match sees, by namespace and workload hash: the records as text."""
    return {
        (namespace, name): set(map(repr, found.records))
        for namespace in NAMESPACES
        for name, found in store.log.validated_of(WORKLOADS, namespace).items()
    }


def true_finals(store: Store) -> dict[tuple[str, str], set[str]]:
    """The same from the pages of the log, which nothing keeps."""
    found: dict[tuple[str, str], set[str]] = {
        (namespace, name): set() for namespace in NAMESPACES for name in WORKLOADS
    }
    for namespace in NAMESPACES:
        for record in store.log.all(RecordFilter(kind=Kind.VALIDATION, namespace=namespace)):
            found[namespace, record.workload_hash].add(repr(record))
    return found


def change_something(draw: random.Random, store: Store) -> None:
    """Add, import or prune: some records that are there already, some that nothing keeps, some imports that fail."""
    new = [any_record(draw) for _ in range(draw.randint(1, 5))]
    step = draw.choice(["add", "add", "import", "failing import", "prune"])
    if step == "add":
        store.log.add(new)
    elif step == "import":
        store.log.import_all(TEXTS.items(), new)
    elif step == "failing import":
        with pytest.raises(BadRequest):
            store.log.import_all([], [*new, validation("z", 1, 1.0, workload_hash="unknown-workload")])
    else:
        kind = draw.choice([Kind.VALIDATION, Kind.VALIDATION, Kind.TRIAL, None])
        operator = draw.choice(["", *WORKLOADS])
        chosen = RecordFilter(kind=kind, operator=operator, namespace=draw.choice(NAMESPACES))
        store.log.prune(chosen, draw.randint(0, 1), dry_run=draw.random() < 0.2)


def any_record(draw: random.Random) -> TuningRecord:
    workload, trace, units = draw.choice(WORKLOADS), draw.choice("abc"), draw.choice([1, 2])
    namespace = draw.choice(NAMESPACES)
    name = f"{workload[:16]} {trace}@{units} {namespace} {draw.randint(0, 1)}"
    identity = {"record_id": name, "workload_hash": workload, "namespace": namespace}
    if draw.random() < 0.3:
        return trial(trace, units, draw.random(), **{**identity, "record_id": f"trial {identity['record_id']}"})
    if draw.random() < 0.2:
        return validation(trace, units, 1.0, **identity, status=Status.WRONG_OUTPUT, cause="wrong", run_secs=())
    disturbance = draw.choice([None, DISTURBANCE])
    return validation(
        trace, units, draw.random(), **identity, max_error=draw.choice([None, 1e-6]), disturbance=disturbance
    )


class ValidatedContract(StoreContract):
    @pytest.mark.parametrize("seed", range(2))
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

        @event.listens_for(reader.engine, "before_cursor_execute")
        def _meanwhile(*call: object) -> None:
            if pending and "FROM records" in str(call[2]):
                writer.log.add([pending.pop()])

        for _ in range(4):
            validations_of(reader, KEY.workload_hash)
        assert not pending
        assert {record.trace for record in validations_of(reader, KEY.workload_hash).records} == {"a", "b", "c"}
        reader.close()
        writer.close()

    def test_finals_that_stay_the_same_are_read_once_and_trials_do_not_count(self, store: Store) -> None:
        store.log.add([validation("a", 1, 1.0)])
        first = store.log.validated_of(WORKLOADS, "")
        reads: list[str] = []

        @event.listens_for(store.engine, "before_cursor_execute")
        def _listen(*call: object) -> None:
            reads.append(str(call[2]))

        store.log.add([trial("b", 1, 1.0)])
        second = store.log.validated_of(WORKLOADS, "")
        assert all(second[name] is first[name] for name in WORKLOADS)
        assert not any("FROM records" in read for read in reads)

    def test_finals_in_memory_are_bounded_those_not_asked_for_go_first(self, store: Store) -> None:
        store.log.add([validation("x" * 5000, 1, 1.0, record_id=name, workload_hash=name) for name in WORKLOADS])
        cache = ValidatedCache(store, kept_bytes=32_000)
        first = {name: cache.of([name], "")[name] for name in WORKLOADS[:3]}
        assert cache.of(WORKLOADS[:1], "")[WORKLOADS[0]] is first[WORKLOADS[0]]
        cache.of(WORKLOADS[3:4], "")
        assert 15_000 < cache.kept_bytes <= 32_000
        assert cache.of(WORKLOADS[:1], "")[WORKLOADS[0]] is first[WORKLOADS[0]]
        assert cache.of(WORKLOADS[1:2], "")[WORKLOADS[1]] is not first[WORKLOADS[1]]
        assert cache.of(WORKLOADS, "") == store.log.validated_of(WORKLOADS, "")
        assert cache.kept_bytes <= 32_000


class TestSqliteValidated(OnSqlite, ValidatedContract):
    pass
