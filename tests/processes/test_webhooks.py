"""A webhook of a real server that is killed before the receiver takes it; the fleet is simulated."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc
import pytest

from examples.webhook_receiver import is_genuine
from fractune_core.pb import fractune_pb2 as pb
from tests.support.processes.fleet_simulated import simulated_fleet
from tests.support.processes.redis_process import running_redis, wait_until
from tests.support.processes.server_process import as_call, model_bytes, running_server

SECRET = b"0123456789abcdef0123456789abcdef"
HIDDEN = "word-in-the-path"


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        receiver: Any = self.server
        body = self.rfile.read(int(self.headers["Content-Length"]))
        receiver.came.append((dict(self.headers), body))
        self.send_response(receiver.answer)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def receiver() -> Iterator[Any]:
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.came, server.answer = [], 500
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def fresh() -> bytes:
    return model_bytes((f"conv_{uuid.uuid4().hex[:6]}", 1))


@pytest.mark.long
def test_a_webhook_outlives_the_server(tmp_path: Path, receiver: Any) -> None:
    (tmp_path / "webhook.secret").write_bytes(SECRET + b"\n")
    host = f"127.0.0.1:{receiver.server_address[1]}"
    options = {"webhook_hosts": host, "webhook_secret_file": str(tmp_path / "webhook.secret")}
    with running_redis() as url, simulated_fleet(url):
        with running_server(url, tmp_path / "state", **options) as server, server.client() as client:
            created = client.create(client.upload(fresh()), trials=8, webhook=f"http://{host}/{HIDDEN}")
            assert created.spec.webhook == "", "nobody who may read jobs is told the address"
            assert client.finish(created.name).spec.webhook == ""
            wait_until(lambda: len(receiver.came) >= 2)
            with pytest.raises(grpc.RpcError) as refused:
                client.create(client.upload(fresh()), trials=8, webhook="http://169.254.169.254/")
            assert as_call(refused.value).code() is grpc.StatusCode.INVALID_ARGUMENT
            server.kill()
        said = server.said()
        before, receiver.answer = len(receiver.came), 200
        with running_server(url, tmp_path / "state", **options) as server, server.client() as client:
            wait_until(lambda: len(receiver.came) > before)
            headers, body = receiver.came[-1]
            assert is_genuine(SECRET, headers["Fractune-Signature"], body, time.time())
            told = json.loads(body)
            assert (told["job"], told["state"]) == (created.name, "done")
            assert [each["share"] for each in told["shares"]] == ["cpu:1", "cpu:2"]
            assert client.job(created.name).state == pb.JOB_STATE_DONE
            assert server.stop() == 0
        said += server.said()
    assert len({headers["Fractune-Delivery"] for headers, _ in receiver.came}) == 1
    assert HIDDEN not in said
    assert SECRET.decode() not in said


def test_a_server_without_hosts_calls_nobody(tmp_path: Path) -> None:
    with (
        running_redis() as url,
        simulated_fleet(url),
        running_server(url, tmp_path / "state") as server,
        server.client() as client,
        pytest.raises(grpc.RpcError, match="this server calls no webhooks"),
    ):
        client.create(client.upload(fresh()), trials=8, webhook="https://ci.example.com/")
