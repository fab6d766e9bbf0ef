"""What the store keeps beside records, jobs and tokens; SQLite that is full, read-only or killed."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import event

from fractune_core.analysis.roofline import Arithmetic, Roof
from fractune_core.errors import NotFound, StateUnusable
from fractune_core.jobs import OperatorTask
from fractune_server.store.store import IngestedModel, IngestKey, Store, StoredModel, sqlite_url
from tests.support.measured_pairs import measured_pair, runtime_time
from tests.support.paths import REPOSITORY
from tests.support.samples import TARGET_KEY
from tests.support.store_contract import EVERYTHING, KEY, TEXTS, WORKLOADS, OnSqlite, StoreContract, trial


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
