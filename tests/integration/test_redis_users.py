"""The users of a fleet's Redis: each can do its work, and nothing else. On a real Redis; of the two fleets one is
simulated, and one is the real one.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import redis

from fractune_core.fleet import redis_names, redis_state
from fractune_core.fleet.blobs import get_blob, put_blob
from fractune_core.fleet.redis_state import DONE
from fractune_core.fleet.redis_users import ROLES, SERVER, USERS, acl_file
from fractune_core.pb import fractune_pb2 as pb
from fractune_server.transport.work_queues import WorkQueues
from tests.support.fleet_messages import TIME_MODEL
from tests.support.processes.cli_process import events, run_fractune, write_model
from tests.support.processes.fleet_processes import fleet_of_processes
from tests.support.processes.fleet_simulated import SimulatedWorker, simulated_fleet
from tests.support.processes.made_up import DEVICE
from tests.support.processes.redis_process import redis_with_users, wait_until
from tests.support.processes.server_process import model_bytes, running_server
from tests.support.secret import SECRET

Urls = Callable[[str], str]
MODEL, BUNDLE, ARTIFACT = "f" * 64, "b" * 32, redis_names.artifact_blob("round1", "c1")
KERNEL = redis_names.kernel_blob("default", "c1")
MEASURES = redis_names.measure_queue(DEVICE.key, "cpu:1")
MEASURE_JOB = "rq:job:work1"


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Urls]:
    with redis_with_users(tmp_path_factory.mktemp("redis")) as urls:
        yield urls


@pytest.fixture
def server(urls: Urls) -> Iterator[redis.Redis]:
    """Redis as the server sees it, with a model, a bundle, an artifact and a piece of work there."""
    with redis.Redis.from_url(urls(SERVER)) as connection:
        for name in (
            redis_names.model_blob("default", MODEL),
            redis_names.bundle_blob(BUNDLE),
            ARTIFACT,
            KERNEL,
            redis_names.workload_blob("w"),
        ):
            put_blob(connection, name, b"code")
        WorkQueues(connection, SECRET).enqueue(MEASURES, replace(TIME_MODEL, bundle=BUNDLE))
        yield connection


@pytest.fixture
def as_user(urls: Urls) -> Iterator[Callable[[str], redis.Redis]]:
    opened: list[redis.Redis] = []

    def connect(user: str) -> redis.Redis:
        opened.append(redis.Redis.from_url(urls(user), retry=None))
        return opened[-1]

    yield connect
    for each in opened:
        each.close()


def test_a_whole_fleet_works_each_as_its_user(tmp_path: Path) -> None:
    with redis_with_users(tmp_path) as urls, simulated_fleet(urls) as fleet:
        with running_server(urls(SERVER), tmp_path / "state") as server, server.client() as client:
            created = client.create(client.upload(model_bytes(("conv2d", 2), ("dense", 1))), trials=40)
            job = client.finish(created.name)
            assert (job.state, job.message) == (pb.JOB_STATE_DONE, "")
            fleet.remove("tune-1")  # what belongs to it is dropped, and a second one starts
            fleet.add("tune", "tune-2")
            again = client.finish(client.create(created.spec.model, trials=60).name)
            assert again.state == pb.JOB_STATE_DONE
            WorkQueues(redis.Redis.from_url(urls(SERVER)), SECRET).enqueue(redis_names.COMPILE_QUEUE, TIME_MODEL)
            assert len(client.fleet.ListWorkers(pb.ListWorkersRequest()).workers) >= 4  # it looks into every queue
        assert "no permissions" not in server.said()


@pytest.mark.long
def test_a_real_job_is_done_each_part_as_its_user(tmp_path: Path) -> None:
    workers = [
        ("--role", "compile"),
        ("--role", "tune"),
        ("--role", "build"),
        ("--role", "measure", "--share", "cpu:1"),
    ]
    model = write_model(tmp_path / "m.onnx")
    options = ("--shares", "cpu:1", "--trials", "2", "--only", "conv2d", "--out-dir", str(tmp_path), "--json")
    with redis_with_users(tmp_path) as urls, fleet_of_processes(urls, tmp_path, *workers) as address:
        tuned = run_fractune("tune", str(model), "--server", address, *options)
        assert tuned.returncode == 0, tuned.stderr
        assert events(tuned)[-1]["trials"] == {"cpu:1": 2}


@pytest.mark.parametrize("role", ROLES)
def test_a_worker_may_tell_that_its_work_failed(
    urls: Urls, server: redis.Redis, role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As RQ tells it, when something went wrong that the worker itself did not see."""

    def fail(*_: object) -> None:
        raise RuntimeError("made to fail")

    monkeypatch.setattr(SimulatedWorker, "_handle", fail)
    worker = SimulatedWorker(urls(role), role, f"{role}-failing", "cpu:1").start()
    try:
        if role != "measure":  # whose queue has work already
            WorkQueues(server, SECRET).enqueue(worker.queue(), replace(TIME_MODEL, work_id=f"to-fail-{role}"))
        wait_until(lambda: server.zcard(f"rq:failed:{worker.queue()}") == 1)
    finally:
        worker.stop()
        server.delete(f"rq:failed:{worker.queue()}")


def test_a_stranger_gets_nothing(urls: Urls) -> None:
    plain = urls(SERVER).partition("@")[2]
    with redis.Redis.from_url(f"unix://{plain}", retry=None) as stranger:
        for command in (("PING",), ("GET", redis_names.PROTOCOL_KEY), ("INFO",), ("CONFIG", "GET", "*")):
            with pytest.raises(redis.AuthenticationError):
                stranger.execute_command(*command)
    for user, password in (("measure", "wrong"), ("nobody", "any"), ("default", "")):
        impostor = redis.Redis.from_url(f"unix://{plain}", username=user, password=password, retry=None)
        with impostor, pytest.raises(redis.AuthenticationError):
            impostor.ping()


FORBIDDEN_TO_ALL = [
    ("KEYS", "*"),
    ("SCAN", "0"),
    ("EVAL", "return 1", "0"),
    ("SCRIPT", "LOAD", "return 1"),
    ("FUNCTION", "LIST"),
    ("CONFIG", "GET", "*"),
    ("CONFIG", "SET", "dir", "/tmp"),
    ("ACL", "LIST"),
    ("ACL", "SETUSER", "measure", "+@all"),
    ("CLIENT", "LIST"),
    ("CLIENT", "KILL", "TYPE", "normal"),
    ("MONITOR",),
    ("LATENCY", "RESET"),
    ("SHUTDOWN", "NOSAVE"),
    ("SAVE",),
    ("BGREWRITEAOF",),
    ("REPLICAOF", "localhost", "1"),
    ("MODULE", "LIST"),
    ("FLUSHALL",),
    ("FLUSHDB",),
    ("SWAPDB", "0", "1"),
    ("MIGRATE", "localhost", "1", MEASURE_JOB, "0", "1"),
    ("PUBLISH", "rq:pubsub:measure-1", "{}"),
    ("SUBSCRIBE", "rq:pubsub:measure-1"),
    ("GET", "other"),
    ("SET", "other", "1"),
    ("RANDOMKEY",),
    ("DUMP", MEASURE_JOB),
    ("RENAME", MEASURE_JOB, "rq:job:other"),
    ("COPY", MEASURE_JOB, "rq:job:other"),
]


@pytest.mark.parametrize("user", USERS)
def test_nobody_administers_looks_at_all_keys_or_runs_scripts(as_user: Callable[[str], redis.Redis], user: str) -> None:
    assert allowed(as_user(user), FORBIDDEN_TO_ALL) == []


def allowed(connection: redis.Redis, commands: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Those that Redis does not refuse to the user."""
    found = []
    for command in commands:
        try:
            connection.execute_command(*command)  # type: ignore[no-untyped-call]
        except redis.exceptions.NoPermissionError:
            continue
        except redis.RedisError:  # it was let in, and something else is wrong with it
            pass
        found.append(command)
    return found


BLOBS = {
    "model": redis_names.model_blob("default", MODEL),
    "bundle": redis_names.bundle_blob(BUNDLE),
    "artifact": ARTIFACT,
    "kernel": KERNEL,
    "workload": redis_names.workload_blob("w"),
}
READS = {
    "compile": {"model", "kernel"},
    "tune": {"workload"},
    "build": {"workload", "artifact"},
    "measure": {"artifact", "bundle"},
}
WRITES = {"compile": {"bundle"}, "tune": set[str](), "build": {"artifact", "kernel"}, "measure": set[str]()}
ENQUEUES = {"compile": None, "tune": redis_names.BUILD_QUEUE, "build": MEASURES, "measure": None}


@pytest.mark.parametrize("kind", BLOBS)
@pytest.mark.parametrize("user", ROLES)
def test_a_worker_reads_and_writes_the_files_of_its_role_alone(
    server: redis.Redis, as_user: Callable[[str], redis.Redis], user: str, kind: str
) -> None:
    assert get_blob(server, BLOBS[kind]) == b"code"
    worker = as_user(user)
    if kind in READS[user]:
        assert get_blob(worker, BLOBS[kind]) == b"code"
    else:
        with pytest.raises(redis.exceptions.NoPermissionError):
            get_blob(worker, BLOBS[kind])
        for command in ("LRANGE", "GETRANGE", "SORT"):
            with pytest.raises(redis.exceptions.NoPermissionError):
                worker.execute_command(command, redis_names.blob_key(BLOBS[kind]), "0", "-1")  # type: ignore[no-untyped-call]
    if kind in WRITES[user]:
        put_blob(worker, BLOBS[kind], b"code")
    else:
        with pytest.raises(redis.exceptions.NoPermissionError):
            put_blob(worker, BLOBS[kind], b"other")
        for forbidden in (("DEL",), ("RPUSH", "x"), ("EXPIRE", "1"), ("SET", "x")):
            with pytest.raises(redis.exceptions.NoPermissionError):
                worker.execute_command(forbidden[0], redis_names.blob_key(BLOBS[kind]), *forbidden[1:])  # type: ignore[no-untyped-call]
    assert get_blob(server, BLOBS[kind]) == b"code"


@pytest.mark.parametrize(
    "queue", [redis_names.COMPILE_QUEUE, redis_names.BUILD_QUEUE, redis_names.tune_queue("tune-1"), MEASURES]
)
@pytest.mark.parametrize("user", ROLES)
def test_a_worker_enqueues_only_for_the_next_role(
    server: redis.Redis, as_user: Callable[[str], redis.Redis], user: str, queue: str
) -> None:
    worker = as_user(user)
    before = server.lrange(f"rq:queue:{queue}", 0, -1)

    def enqueue() -> None:
        WorkQueues(worker, SECRET).enqueue(queue, replace(TIME_MODEL, work_id="by-user"))

    if queue == ENQUEUES[user]:
        enqueue()
        assert len(server.lrange(f"rq:queue:{queue}", 0, -1)) == len(before) + 1
        server.lrem(f"rq:queue:{queue}", 1, "by-user")
        return
    with pytest.raises(redis.exceptions.NoPermissionError):
        enqueue()
    for command in ("RPUSH", "LPUSH", "RPUSHX", "LPUSHX"):
        with pytest.raises(redis.exceptions.NoPermissionError):
            worker.execute_command(command, f"rq:queue:{queue}", "work1")  # type: ignore[no-untyped-call]
    assert server.lrange(f"rq:queue:{queue}", 0, -1) == before


FORBIDDEN_TO_A_MEASURER = [
    ("LRANGE", f"rq:queue:{redis_names.BUILD_QUEUE}", "0", "-1"),
    ("LMOVE", f"rq:queue:{redis_names.BUILD_QUEUE}", f"rq:queue:{MEASURES}", "LEFT", "RIGHT"),
    ("LMOVE", f"rq:queue:{MEASURES}", f"rq:queue:{redis_names.BUILD_QUEUE}", "LEFT", "RIGHT"),
    ("BLMOVE", f"rq:queue:{redis_names.COMPILE_QUEUE}", f"rq:queue:{MEASURES}", "LEFT", "RIGHT", "1"),
    ("LPOP", f"rq:queue:{redis_names.BUILD_QUEUE}"),
    ("DEL", f"rq:queue:{MEASURES}"),
    ("SADD", "rq:queues", "rq:queue:other"),
    ("SMEMBERS", "rq:queues"),
    ("SMEMBERS", "rq:workers"),
    ("SMEMBERS", redis_names.WORKERS),
    ("SET", "rq:suspended", "1"),
    ("SET", redis_names.PROTOCOL_KEY, "1"),
    ("SET", redis_names.GREETING_KEY, "1"),
    ("SET", redis_state.worker_key("build-1"), "1"),
    ("GET", redis_state.worker_key("build-1")),
    ("DEL", redis_state.worker_key("tune-1")),
    ("HSET", "rq:worker:build-1", "state", "idle"),
    ("HGETALL", "rq:worker:build-1"),
    ("ZADD", f"rq:wip:{redis_names.BUILD_QUEUE}", "1", "work1:x"),
    ("ZADD", f"rq:failed:{redis_names.BUILD_QUEUE}", "1", "work1"),
    ("ZRANGE", f"rq:wip:{MEASURES}", "0", "-1"),
    ("ZRANGE", DONE, "0", "-1"),
    ("ZREM", DONE, "work1"),
    ("DEL", DONE),
    ("XRANGE", redis_names.SERVER_STREAM, "-", "+"),
    ("XREADGROUP", "GROUP", redis_names.RECORDER, "x", "STREAMS", redis_names.SERVER_STREAM, ">"),
    ("XACK", redis_names.SERVER_STREAM, redis_names.RECORDER, "1-1"),
    ("XTRIM", redis_names.SERVER_STREAM, "MAXLEN", "0"),
    ("XDEL", redis_names.SERVER_STREAM, "1-1"),
    ("DEL", redis_names.SERVER_STREAM),
    ("XGROUP", "DESTROY", redis_names.SERVER_STREAM, redis_names.RECORDER),
    ("SADD", redis_names.STREAMS, "other"),
    ("XRANGE", redis_names.UNREADABLE, "-", "+"),
]


def test_what_a_measurer_may_not_do(as_user: Callable[[str], redis.Redis]) -> None:
    assert allowed(as_user("measure"), FORBIDDEN_TO_A_MEASURER) == []


def test_the_file_has_no_password() -> None:
    passwords = {user: f"secret of {user}" for user in USERS}
    text = acl_file(passwords)
    assert "secret" not in text
    for user in USERS:
        assert f"user {user} on #{hashlib.sha256(passwords[user].encode()).hexdigest()} " in text
    assert text.startswith("user default off resetpass ")
