"""Jobs of tokens on a real server with TLS; the fleet is simulated."""

import uuid
from collections.abc import Iterator

import grpc
import pytest

from fractune_core.access import Quotas, Scope, TokenText
from fractune_core.pb import fractune_pb2 as pb
from fractune_server.admin import Admin
from tests.processes.test_access import Place, client_credentials, running_place
from tests.support.processes.fleet_simulated import simulated_fleet
from tests.support.processes.server_process import Client, as_call, model_bytes


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with running_place(tmp_path_factory.mktemp("quotas")) as made, simulated_fleet(made.redis_url) as fleet:
        assert fleet.workers
        yield made


def client_of(place: Place, token: TokenText) -> Client:
    return Client(place.server.address, client_credentials(place.authority, token))


def fresh() -> bytes:
    return model_bytes((f"conv_{uuid.uuid4().hex[:6]}", 1))


def test_jobs_beyond_a_quota_are_refused_and_what_ended_counts_with_what_it_did(place: Place) -> None:
    made = Admin(place.state).create_token("ci", Scope.SUBMIT, None, Quotas(open_jobs=1, trials_a_day=40))
    with client_of(place, made) as client:
        model = client.upload(fresh())
        done = client.finish(client.create(model, trials=16, round_size=8).name)
        assert done.progress.candidates_done == 16
        with pytest.raises(grpc.RpcError) as refused:
            client.create(model, more=25)
        assert as_call(refused.value).code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "asks for 25 trials" in (as_call(refused.value).details() or "")
        assert client.finish(client.create(model, trials=16).name).progress.candidates_done == 0
        running = client.create(model, more=24, round_size=1)
        with pytest.raises(grpc.RpcError, match="has 1 open jobs of at most 1"):
            client.create(model, trials=0)
        client.jobs.CancelJob(pb.CancelJobRequest(name=running.name))
    (used,) = (each["used"] for each in Admin(place.state).list_tokens() if each["token"] == made.token_id)
    assert used["open_jobs"] == 0
    assert 16 <= used["trials_a_day"] <= 40


def test_a_job_of_another_token_is_cancelled_by_operators_alone(place: Place) -> None:
    owner, other, operator = (
        Admin(place.state).create_token("x", scope, None, Quotas())
        for scope in (Scope.SUBMIT, Scope.SUBMIT, Scope.OPERATE)
    )
    with client_of(place, owner) as mine, client_of(place, other) as theirs, client_of(place, operator) as ours:
        model = mine.upload(fresh())
        first, second = (mine.create(model, trials=400, round_size=1) for _ in range(2))
        with pytest.raises(grpc.RpcError) as refused:
            theirs.jobs.CancelJob(pb.CancelJobRequest(name=first.name))
        assert as_call(refused.value).code() is grpc.StatusCode.PERMISSION_DENIED
        assert mine.jobs.CancelJob(pb.CancelJobRequest(name=first.name)).state == pb.JOB_STATE_CANCELLED
        assert ours.jobs.CancelJob(pb.CancelJobRequest(name=second.name)).state == pb.JOB_STATE_CANCELLED


def test_a_bundle_beyond_the_bytes_of_its_token_fails_its_job_alone(place: Place) -> None:
    payload = fresh()
    made = Admin(place.state).create_token("small", Scope.SUBMIT, None, Quotas(stored_bytes=len(payload) + 10))
    other = Admin(place.state).create_token("large", Scope.SUBMIT, None, Quotas(stored_bytes=1 << 20))
    known = set((place.state / "bundles").iterdir())
    with client_of(place, made) as client, client_of(place, other) as large:
        model = client.upload(payload)
        failed = client.finish(client.create(model, trials=1).name)
        assert (failed.state, failed.error) == (pb.JOB_STATE_FAILED, "QuotaExceeded")
        assert f"token {made.token_id} has 10 of {len(payload) + 10} left; ask" in failed.message
        assert set((place.state / "bundles").iterdir()) == known
        assert large.finish(large.create(model, trials=1).name).state == pb.JOB_STATE_DONE
    used = {each["token"]: each["used"]["stored_bytes"] for each in Admin(place.state).list_tokens()}
    (stored,) = set((place.state / "bundles").iterdir()) - known
    assert used[made.token_id] == len(payload)
    assert 0 < used[other.token_id] <= stored.stat().st_size
