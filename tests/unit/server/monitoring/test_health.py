"""Whether the server says that it is healthy when it is, and only then; and the HTTP port that says so."""

import contextlib
import logging
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from grpc_health.v1 import health_pb2
from sqlalchemy import event

from fractune_core.errors import BadRequest
from fractune_core.names import HealthPart
from fractune_server.monitoring.health import SILENCE_S, Health
from fractune_server.monitoring.metrics import Endpoint, Metrics
from fractune_server.store.blob_files import BlobStore
from fractune_server.store.store import Store
from fractune_server.transport.context import ServerContext
from tests.support.processes.redis_process import running_redis
from tests.support.secret import SECRET
from tests.support.store_contract import make_tables

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
OURS = "fractune.v1.JobService"


class Parts:
    """A store, a Redis and an engine that can be made to fail."""

    def __init__(self, context: ServerContext) -> None:
        self.context = context
        self.engine_silent_s: float | None = 0.1
        self.health = Health(context, lambda: self.engine_silent_s)
        self.health.servicer.expect([OURS])

    def says(self, service: str) -> Any:
        return self.health.servicer.Check(health_pb2.HealthCheckRequest(service=service), None).status

    def break_store(self) -> None:
        engine = self.context.store.engine

        @event.listens_for(engine, "connect")
        def _read_only(connection: Any, _: object) -> None:
            connection.execute("PRAGMA query_only=1")

        self.context.store.close()


@contextlib.contextmanager
def running_parts(url: str, folder: Path) -> Iterator[Parts]:
    store = Store(make_tables(folder))
    with redis.Redis.from_url(url, retry=None) as connection:
        yield Parts(ServerContext(store, connection, BlobStore(folder), SECRET))
    store.close()


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Parts]:
    with running_redis() as url, running_parts(url, tmp_path) as parts:
        yield parts


def test_before_it_serves_it_says_no(parts: Parts) -> None:
    parts.health.look()
    assert parts.says("") == parts.says(OURS) == NOT_SERVING
    parts.health.servicer.serve([OURS])
    assert {parts.says(name) for name in ("", OURS, *HealthPart)} == {SERVING}


def test_a_store_that_takes_no_writes_is_named_alone(parts: Parts, caplog: pytest.LogCaptureFixture) -> None:
    parts.health.servicer.serve([OURS])
    parts.break_store()
    with caplog.at_level(logging.WARNING):
        parts.health.look()
        parts.health.look()
    assert set(parts.health.failing()) == {HealthPart.STORE}
    assert parts.says("") == parts.says(OURS) == parts.says("store") == NOT_SERVING
    assert parts.says("engine") == parts.says("redis") == SERVING
    assert caplog.text.count("not ready: store: database") == 1


def test_redis_goes_and_comes_back(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with contextlib.ExitStack() as held:
        with running_redis() as url:
            parts = held.enter_context(running_parts(url, tmp_path))
            parts.health.servicer.serve([OURS])
            assert parts.says("") == SERVING
        parts.health.look()
        assert set(parts.health.failing()) == {HealthPart.REDIS}
        assert parts.says("") == parts.says("redis") == NOT_SERVING
        with running_redis() as again, redis.Redis.from_url(again) as connection, caplog.at_level(logging.INFO):
            parts.context.redis.connection_pool = connection.connection_pool
            parts.health.look()
            assert parts.says("") == SERVING
            assert "ready again: redis" in caplog.text


@pytest.mark.parametrize("silent_s", [None, SILENCE_S + 1])
def test_an_engine_that_has_ended_or_hangs_is_seen_without_a_look(parts: Parts, silent_s: float | None) -> None:
    parts.health.look()
    parts.health.servicer.serve([OURS])
    assert parts.says("engine") == SERVING
    parts.engine_silent_s = silent_s
    assert parts.says("engine") == parts.says("") == NOT_SERVING


def test_a_look_that_hangs_is_no_health(parts: Parts) -> None:
    parts.health.look()
    parts.health._looked_at -= SILENCE_S + 1
    assert set(parts.health.failing()) == {HealthPart.STORE, HealthPart.REDIS}


# ---- over HTTP


def get(address: str, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.fixture
def endpoint(parts: Parts) -> Iterator[Endpoint]:
    parts.health.look()
    endpoint = Endpoint("127.0.0.1:0", Metrics(parts.context.instruments.registry, parts.context), parts.health)
    endpoint.start()
    yield endpoint
    endpoint.stop()


def test_the_paths(parts: Parts, endpoint: Endpoint) -> None:
    assert get(endpoint.address, "/healthz") == (200, "ok\n")
    assert get(endpoint.address, "/readyz") == (200, "ok\n")
    code, text = get(endpoint.address, "/metrics")
    assert code == 200
    assert "# TYPE fractune_engine_turn_seconds histogram" in text
    assert get(endpoint.address, "/")[0] == 404
    parts.break_store()
    parts.health.look()
    assert get(endpoint.address, "/healthz") == (200, "ok\n")
    assert get(endpoint.address, "/readyz") == (503, "failing: store\n")  # why: in the log, not for strangers
    parts.engine_silent_s = None
    assert get(endpoint.address, "/healthz") == (503, "failing: engine\n")


def test_an_address_that_is_none_and_a_port_in_use(parts: Parts, endpoint: Endpoint) -> None:
    none = ("127.0.0.1", "127.0.0.1:x", "127.0.0.1:99999", "unix:/tmp/x", "nowhere.invalid:0")
    for address in (*none, endpoint.address):
        with pytest.raises(BadRequest, match=f"--metrics {address}: cannot listen there"):
            Endpoint(address, Metrics(parts.context.instruments.registry, parts.context), parts.health)


def test_an_endpoint_that_never_started_stops(parts: Parts) -> None:
    Endpoint("127.0.0.1:0", Metrics(parts.context.instruments.registry, parts.context), parts.health).stop()
