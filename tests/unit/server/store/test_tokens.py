"""Tokens, what their holders use, and their quotas."""

import time
from dataclasses import replace
from typing import Any, cast

import pytest
from sqlalchemy import text

from fractune_core.access import Quotas, Scope
from fractune_core.errors import NotFound, QuotaExceeded
from fractune_core.jobs import JobSpec, JobState
from fractune_server.store.database.tenants import Usage
from fractune_server.store.jobs import Progress
from fractune_server.store.store import Store, StoredModel
from tests.support.store_contract import OnSqlite, StoreContract, job


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
