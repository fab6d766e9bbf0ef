"""Rows and quotas of tenants and tokens, and the fence around statements that forget whose rows they choose."""

import ast
import time
from dataclasses import replace
from typing import Any, cast

import pytest
from sqlalchemy import insert, select, text

from fractune_core.access import Quotas, Reach, Scope
from fractune_core.errors import BadRequest, NotFound, QuotaExceeded
from fractune_core.jobs import JobSpec, JobState
from fractune_core.records import WorkCost
from fractune_server.store.database.database import Database
from fractune_server.store.database.sight import SHARED, Sight, pool_of
from fractune_server.store.database.tables import COMMON, OF_JOBS, job_operators, jobs, metadata, models, records
from fractune_server.store.database.tenants import StoredTenant, Usage
from fractune_server.store.jobs import Progress, StoredJob
from fractune_server.store.records.rows import RecordFilter
from fractune_server.store.store import Store, StoredModel, View
from tests.support.paths import REPOSITORY
from tests.support.samples import validation
from tests.support.store_contract import KEY, OnSqlite, StoreContract, job, trial


class TokensContract(StoreContract):
    def test_a_token_is_found_by_its_secret_alone_and_the_secret_is_not_kept(self, store: Store) -> None:
        quotas = Quotas(open_jobs=1, trials_a_day=2, stored_bytes=3)
        made = store.tokens.create("ci", Scope.SUBMIT, 5.0, quotas)
        found = store.tokens.find(made)
        assert found is not None
        assert (found.name, found.scope, found.expires_at, found.quotas) == ("ci", Scope.SUBMIT, 5.0, quotas)
        assert (found.end(4.0), found.end(5.0)) == ("", "expired")
        assert store.tokens.find(replace(made, secret="0" * 64)) is None
        assert store.tokens.find(replace(made, token_id="0" * 12)) is None
        assert store.tokens.all() == [found]
        with store.read() as connection:
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

    def test_usage_is_that_of_the_token_s_own_jobs_models_and_bundles(self, store: Store) -> None:
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
        for token in ("t", "u"):
            store.tokens.add_bundle(token, "b", 7)
        assert store.tokens.usage("t") == Usage(open_jobs=2, trials_a_day=107, stored_bytes=18)
        assert store.tokens.usage("u") == Usage(open_jobs=1, trials_a_day=100, stored_bytes=0)
        assert store.tokens.usage("none") == Usage(0, 0, 0)

    def test_models_and_bundles_of_a_token_share_its_bytes(self, store: Store) -> None:
        token = store.tokens.create("ci", Scope.SUBMIT, None, Quotas(stored_bytes=12)).token_id
        store.models.add(StoredModel("s", "net.onnx", 5, token))
        with pytest.raises(QuotaExceeded, match=f"the bundle has 8 bytes, and token {token} has 7 of 12 left; ask"):
            store.tokens.add_bundle(token, "b", 8)
        assert store.tokens.usage(token).stored_bytes == 5
        for _ in range(2):
            store.tokens.add_bundle(token, "c", 7)
        assert store.tokens.usage(token).stored_bytes == 12
        store.tokens.add_bundle("", "d", 1 << 40)

    @pytest.mark.parametrize(
        ("quotas", "spec", "says"),
        [
            (Quotas(open_jobs=1), {"trials": 1}, "has 1 open jobs of at most 1"),
            (Quotas(trials_a_day=150), {"trials": 51}, "asks for 51 trials, and token t has 50 of 150 in 24 hours"),
            (Quotas(trials_a_day=150), {"trials": 1, "extra_trials": 51}, "asks for 51 trials"),
            (Quotas(trials_a_day=100), {"trials": 0}, "asks for 0 trials, and token t has 0 of 100"),
            (Quotas(open_jobs=2, trials_a_day=150), {"trials": 50}, ""),
            (Quotas(trials_a_day=101), {"trials": 0}, ""),
            (Quotas(), {"trials": 1_000_000}, ""),
            (Quotas(stored_bytes=5), {"trials": 1}, "has stored 5 of 5 bytes, so no bundle has room"),
            (Quotas(stored_bytes=6), {"trials": 1}, ""),
        ],
    )
    def test_a_job_beyond_a_quota_is_not_made(
        self, store: Store, quotas: Quotas, spec: dict[str, Any], says: str
    ) -> None:
        store.models.add(StoredModel("a" * 64, "net.onnx", 5, "t"))
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


class TestSqliteTokens(OnSqlite, TokensContract):
    pass


W = KEY.workload_hash


def view(store: Store, tenant: str) -> View:
    return View(store.of(Sight(tenant, tenant)), store.log)


def add_job(store: Store, name: str, tenant: str, **changes: Any) -> StoredJob:
    made = job(name, tenant=tenant, **changes)
    store.jobs.create(made)
    return made


def measured(store: Store, made: StoredJob, trace: str) -> None:
    """A trial and a validation of the job, as workers send them."""
    named: dict[str, Any] = {
        "job": made.id,
        "namespace": made.pool,
        "operator": f"conv_of_{made.tenant}",
        "worker": "w",
    }
    records_ = [trial(trace, 1, 1.0), validation(trace, 1, 1.0)]
    store.log.add([replace(each, record_id=f"{made.id} {each.record_id}", **named) for each in records_])


@pytest.mark.parametrize("room", ["services", "selection"])
def test_what_answers_calls_cannot_reach_what_is_not_of_its_caller(room: str) -> None:
    for path in (REPOSITORY / "tuner_server" / "fractune_server" / room).glob("*.py"):
        names = {getattr(node, field, "") for node in ast.walk(ast.parse(path.read_text())) for field in ("id", "name")}
        assert not names & {"ServerContext", "BlobStore", "Store", "ALL_TENANTS", "Sight"}, path


class TenantsContract(StoreContract):
    def test_tenants_that_share_searches_know_times_and_no_names(self, store: Store) -> None:
        for name, shares in (("a", True), ("b", True), ("c", False)):
            store.tenants.create(StoredTenant(name, shares_searches=shares))
        made = {name: add_job(store, f"job-{name}", name) for name in "abc"}
        assert [made[name].pool for name in "abc"] == [SHARED, SHARED, "c/"]
        own = add_job(store, "named", "a", spec=replace(made["a"].spec, namespace="mine"))
        assert own.pool == "a/mine", "namespaces stay within a tenant"
        for name in "abc":
            measured(store, made[name], f'["{name}"]')
        shared = replace(KEY, namespace=SHARED)
        assert {row.candidate_id for row in store.log.trials(shared)} == {
            trial(f'["{name}"]', 1, 1.0).candidate_id for name in "ab"
        }
        seen = store.log.validated_of([W], SHARED, "a")[W].records
        assert {(each.trace, each.job, each.operator, each.worker) for each in seen} == {
            ('["a"]', "job-a", "conv_of_a", "w"),
            ('["b"]', "", "", ""),
        }
        assert {each.job for each in store.log.validated_of([W], SHARED, "b")[W].records} == {"job-b", ""}
        assert [donor.trials for donor in store.log.donors(shared, "conv", "a")] == [1], "only of equal operators"
        listed = {name: [each.job for each in view(store, name).log.all(RecordFilter())] for name in "abc"}
        assert listed == {name: [f"job-{name}"] * 2 for name in "abc"}
        assert view(store, "a").log.count(RecordFilter()) == 2
        assert store.log.count(RecordFilter()) == 6

    def test_consent_is_withdrawn_when_no_job_relies_on_it(self, store: Store) -> None:
        for name in "ab":
            store.tenants.create(StoredTenant(name, shares_searches=True))
        measured(store, add_job(store, "job-a", "a"), '["a"]')
        assert store.log.validated_of([W], SHARED, "b")[W].records
        with pytest.raises(BadRequest, match="tenant 'a' has 1 open jobs; change --share-searches when they have"):
            store.tenants.save(StoredTenant("a"))
        store.jobs.end("job-a", JobState.DONE, "", "")
        store.tenants.save(StoredTenant("a"))
        assert not store.log.validated_of([W], SHARED, "b")[W].records
        assert store.log.trials(replace(KEY, namespace=SHARED)) == []
        assert len(store.log.validated_of([W], "a/", "a")[W].records) == 1
        assert view(store, "a").log.count(RecordFilter()) == 2
        late = trial('["late"]', 1, 1.0, job="job-a", namespace=SHARED)
        store.log.add([late])
        assert store.log.trials(replace(KEY, namespace=SHARED)) == [], "a worker that still names the shared pool"

    def test_a_statement_that_forgets_the_tenant_is_refused(self, store: Store) -> None:
        database = store.of(Sight("a", "a"))
        forgetful = (
            select(jobs),
            select(records.c.seq),
            select(jobs).where(jobs.c.tenant == "b"),
            select(job_operators),
            jobs.delete(),
            models.update().values(display_name="x"),
            insert(models).values(sha256="s", display_name="x", size_bytes=1, tenant="b"),
            select(jobs.c.id).where(jobs.c.tenant == "a").where(jobs.c.model.in_(select(models.c.sha256))),
            select(metadata.tables["rounds"]),
        )
        for statement in forgetful:
            with database.write() as connection, pytest.raises((RuntimeError, AttributeError)):
                connection.execute(statement)
        with database.read() as connection:
            assert connection.execute(select(jobs).where(jobs.c.tenant == "a")).all() == []

    def test_each_table_has_an_owner_or_is_common(self) -> None:
        engine = {"rounds", "spaces"}
        owned = {name for name, table in metadata.tables.items() if "tenant" in table.c}
        common = {table.name for table in COMMON | OF_JOBS}
        assert owned | common | engine | {"tenants"} == set(metadata.tables), "whose rows are those of the new table?"

    def test_rows_of_one_tenant_are_not_there_for_another(self, store: Store) -> None:
        for name in "ab":
            store.tenants.create(StoredTenant(name))
        for name in "ab":
            view(store, name).models.add(StoredModel("s", f"{name}.onnx", 5, "t", name))
            assert view(store, name).models.get("s").display_name == f"{name}.onnx"
        mine, other = view(store, "a"), view(store, "b")
        measured(store, add_job(store, "j", "a"), '["a"]')
        store.tokens.add_bundle("t", "bundle", 7, "a")
        mine.models.check_bundle("bundle")
        for ask in (
            lambda: other.jobs.get("j"),
            lambda: other.models.check_bundle("bundle"),
            lambda: view(store, "c").models.get("s"),
        ):
            with pytest.raises(NotFound):
                ask()
        assert not other.jobs.end("j", JobState.CANCELLED, "", "")
        assert other.jobs.page(10, None, open_only=False) == []
        assert other.jobs.operators("j") == []
        assert (other.log.newest("cpu:1"), other.log.totals(), list(other.log.all(RecordFilter()))) == (None, {}, [])
        assert other.log.prune(RecordFilter(), 0, dry_run=False) == (0, 0)
        assert mine.log.count(RecordFilter()) == 2
        assert mine.log.pool("x") == "a/x" == pool_of("a", "x", shares_searches=False)


class LimitsContract(StoreContract):
    @pytest.mark.parametrize(
        ("quotas", "says"),
        [
            (Quotas(open_jobs=1), "tenant a has 1 open jobs of at most 1; wait until one ends, or cancel one"),
            (
                Quotas(trials_a_day=150),
                r"asks for 100 trials, and tenant a has 50 of 150 in 24 hours left; .*enough frees up in 23 h 0 min",
            ),
            (Quotas(trials_a_day=50), "tenant a has 0 of 50 in 24 hours left; .*the whole quota is less"),
            (Quotas(stored_bytes=5), "tenant a has stored 5 of 5 bytes"),
            (
                Quotas(share_seconds_a_day=60),
                "tenant a has used 70 of 60 share-seconds in 24 hours; enough frees up in 22 h 0 min",
            ),
            (Quotas(2, 201, 6, 71), ""),
        ],
    )
    def test_a_job_beyond_a_limit_of_its_tenant_says_when_there_is_room(
        self, store: Store, quotas: Quotas, says: str
    ) -> None:
        now = time.time()
        store.tenants.create(StoredTenant("a", quotas))
        spec = JobSpec("a" * 64, "net.onnx", ("cpu:2", "cpu:1"), trials=100)
        store.models.add(StoredModel("a" * 64, "net.onnx", 5, "t", "a"))
        store.models.add(StoredModel("b" * 64, "net.onnx", 1 << 40, "t", "b"))
        add_job(store, "first", "a", token="t", spec=spec, created_at=now - 3600)
        add_job(store, "of another", "b", token="t", spec=spec, created_at=now)
        ended = {"worked_s": 40.0, "cpu_s": 1.0, "ended_at": now - 7200}
        pieces = [
            WorkCost("w1", "first", "measure", "cpu:1", **ended),
            WorkCost("w2", "first", "time_model", "cpu:1", **{**ended, "worked_s": 30.0, "ended_at": now - 60}),
            WorkCost("w3", "first", "build", "", **ended),
            WorkCost("w4", "first", "measure", "cpu:1", **{**ended, "ended_at": now - 100_000}),
            WorkCost("w5", "of another", "measure", "cpu:1", **ended),
        ]
        store.log.add([], pieces)
        second = job("second", tenant="a", token="u", spec=spec, created_at=now)
        if says:
            with pytest.raises(QuotaExceeded, match=says):
                store.jobs.create(second, Quotas())
        else:
            store.jobs.create(second, Quotas())

    def test_a_bundle_counts_for_its_tenant(self, store: Store) -> None:
        store.tenants.create(StoredTenant("a", Quotas(stored_bytes=10)))
        store.tokens.add_bundle("t", "one", 7, "a")
        with pytest.raises(QuotaExceeded, match="the bundle has 4 bytes, and tenant a has 3 of 10 left"):
            store.tokens.add_bundle("u", "two", 4, "a")
        store.tokens.add_bundle("u", "three", 1 << 40, "b")

    def test_tenants_are_made_changed_and_removed(self, store: Store) -> None:
        store.tenants.create(StoredTenant("a", weight=2))
        with pytest.raises(BadRequest, match="tenant 'a' exists"):
            store.tenants.create(StoredTenant("a"))
        for wrong in ("", "A", "*", "a/b", "-a", "a" * 33, "a\n", "ä"):
            with pytest.raises(BadRequest, match="write at most 32 lower-case letters"):
                store.tenants.create(StoredTenant(wrong))
        assert store.tenants.weights() == {"a": 2}
        store.tenants.save(StoredTenant("a", Quotas(open_jobs=3), 5))
        assert store.tenants.all() == [StoredTenant("a", Quotas(open_jobs=3), 5)]
        token = store.tokens.create("ci", Scope.READ, None, Quotas(), reach=Reach("a"))
        with pytest.raises(BadRequest, match="tenant 'a' has 1 valid tokens"):
            store.tenants.remove("a")
        store.tokens.revoke(token.token_id)
        store.tenants.remove("a")
        with pytest.raises(NotFound, match="no tenant 'a'"):
            store.tenants.remove("a")
        with pytest.raises(NotFound, match="no tenant 'a'"):
            store.tenants.save(StoredTenant("a"))


class TestSqliteTenants(OnSqlite, TenantsContract):
    def test_a_view_of_all_tenants_has_no_fence(self, store: Store) -> None:
        with store.read() as connection:
            assert isinstance(store, Database)
            assert connection.execute(text("SELECT count(*) FROM jobs")).scalar() == 0


class TestSqliteLimits(OnSqlite, LimitsContract):
    pass
