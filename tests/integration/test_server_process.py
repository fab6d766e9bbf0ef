"""The server as a process: how it starts, what it refuses, how it ends."""

import re
import subprocess
from pathlib import Path
from typing import Any

import grpc
import redis
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from fractune_core.fleet.redis_names import PROTOCOL, PROTOCOL_KEY
from fractune_server.main import announce
from tests.support.processes.cli_process import error_line, run_fractune
from tests.support.processes.redis_process import running_redis
from tests.support.processes.server_process import ServerProcess, running_server
from tests.support.secret import SECRET


def refused(redis_url: str, state: Path, **options: Any) -> tuple[int, str]:
    """Exit code and the line on standard error of a server that does not come up."""
    server = ServerProcess(redis_url, state, **options)
    assert server.address == ""
    # gRPC's own C++ log goes to the same place, one line each, marked by level and date.
    lines = [line for line in server.said().splitlines() if not re.match(r"INFO:|E[0-9]{4} ", line)]
    assert len(lines) == 1
    return server.process.wait(), lines[0]


def test_health_and_an_orderly_end(redis_url: str, tmp_path: Path) -> None:
    with running_server(redis_url, tmp_path / "state") as server:
        with grpc.insecure_channel(server.address) as channel:
            health: Any = health_pb2_grpc.HealthStub(channel)
            for service in ("", "fractune.v1.JobService"):
                answer = health.Check(health_pb2.HealthCheckRequest(service=service))
                assert answer.status == health_pb2.HealthCheckResponse.SERVING
        assert server.stop() == 0


def test_a_signal_that_does_not_wake_the_main_thread_ends_it_too(redis_url: str, tmp_path: Path) -> None:
    with running_server(redis_url, tmp_path / "state") as server:
        server.terminate_aside()
        assert server.process.wait(20) == 0


def test_the_address_appears_whole(tmp_path: Path) -> None:
    ready, seen = tmp_path / "ready", tmp_path / "seen"
    ready.write_text("127.0.0.1:1")
    seen.hardlink_to(ready)  # what a reader has open
    announce("127.0.0.1:22222", ready)
    assert (seen.read_text(), ready.read_text()) == ("127.0.0.1:1", "127.0.0.1:22222")
    assert sorted(tmp_path.iterdir()) == [ready, seen]


def test_reflection_names_the_services_and_lets_a_generic_client_call(redis_url: str, tmp_path: Path) -> None:
    with (
        running_server(redis_url, tmp_path / "state", listen=f"unix:{tmp_path / 's'}") as server,
        grpc.insecure_channel(server.address) as channel,
    ):
        database = ProtoReflectionDescriptorDatabase(channel)
        assert {"fractune.v1.JobService", "fractune.v1.LogService"} <= set(database.get_services())
        method = DescriptorPool(database).FindServiceByName("fractune.v1.JobService").FindMethodByName("ListJobs")
        call: Any = channel.unary_unary(
            "/fractune.v1.JobService/ListJobs",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=GetMessageClass(method.output_type).FromString,
        )
        assert not call(GetMessageClass(method.input_type)(page_size=3)).jobs


def test_a_state_folder_in_use_is_refused_by_pid(redis_url: str, tmp_path: Path) -> None:
    with running_server(redis_url, tmp_path / "state") as server:
        code, line = refused(redis_url, tmp_path / "state")
        assert code == 7
        assert f"is in use by another server (pid {server.process.pid})" in line


def test_a_state_folder_that_cannot_be_made(redis_url: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    code, line = refused(redis_url, tmp_path / "file" / "state")
    assert code == 7
    assert "state folder" in line


def test_an_address_that_others_reach_needs_a_word_for_it(redis_url: str, tmp_path: Path) -> None:
    code, line = refused(redis_url, tmp_path / "state", listen="0.0.0.0:0")
    assert code == 2
    assert "--insecure" in line
    with running_server(redis_url, tmp_path / "state", listen="0.0.0.0:0", insecure=True) as server:
        assert server.address.startswith("0.0.0.0:")


def test_an_address_in_use_is_refused(redis_url: str, tmp_path: Path) -> None:
    with running_server(redis_url, tmp_path / "state") as server:
        code, line = refused(redis_url, tmp_path / "other", listen=server.address)
        assert code == 2
        assert f"cannot listen on {server.address}" in line


def test_no_redis_is_refused(tmp_path: Path) -> None:
    code, line = refused(f"unix://{tmp_path / 'none.sock'}", tmp_path / "state")
    assert code == 5
    assert "no Redis at" in line


def test_a_redis_out_of_memory_is_told_in_one_line(tmp_path: Path) -> None:
    with running_redis() as url, redis.Redis.from_url(url) as connection:
        connection.config_set("maxmemory", 1)
        code, line = refused(url, tmp_path / "state")
    assert code == 5
    assert line.startswith("fractune: Redis rejects commands (command not allowed when used memory > 'maxmemory'")


def test_a_worker_of_another_protocol_refuses_to_start_beside_the_server(redis_url: str, tmp_path: Path) -> None:
    with running_server(redis_url, tmp_path / "state"), redis.Redis.from_url(redis_url) as connection:
        assert connection.get(PROTOCOL_KEY) == str(PROTOCOL).encode()
        connection.set(PROTOCOL_KEY, PROTOCOL + 1)
        ended = run_worker_with(tmp_path, redis_url, SECRET)
    assert ended.returncode == 2
    assert f"speaks protocol {PROTOCOL}, its server {PROTOCOL + 1}; install the same version" in error_line(ended)


def test_a_worker_of_another_secret_refuses_to_start_beside_the_server(redis_url: str, tmp_path: Path) -> None:
    with running_server(redis_url, tmp_path / "state"):
        ended = run_worker_with(tmp_path, redis_url, b"another secret")
    assert ended.returncode == 2
    assert "this worker's secret is not its server's; give both the same" in error_line(ended)


def run_worker_with(folder: Path, redis_url: str, secret: bytes) -> subprocess.CompletedProcess[str]:
    file = folder / "secret"
    file.write_bytes(secret)
    return run_fractune(*("worker", "--role", "build", "--redis", redis_url, "--secret-file", str(file)), timeout_s=60)
