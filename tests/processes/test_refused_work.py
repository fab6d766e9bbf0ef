"""Whoever can write to Redis can make no worker run what the fleet has not signed.

The worker compiles, and needs no child here: work whose model is not in Redis fails at once, and a result says so.
"""

import contextlib
import hashlib
import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, cast

import pytest
import redis
from rq import Queue
from rq.serializers import JSONSerializer

from fractune_core.codec.plain_json import write_json
from fractune_core.fleet.blobs import put_blob
from fractune_core.fleet.messages import IngestWork
from fractune_core.fleet.redis_names import (
    BUILD_QUEUE,
    COMPILE_QUEUE,
    HANDLER,
    SERVER_STREAM,
    WORK_MAX_AGE_S,
    model_blob,
)
from fractune_core.fleet.redis_state import DONE, unmark
from fractune_core.fleet.signed_messages import seal_work
from fractune_server.transport.work_queues import WorkQueues
from tests.support.fleet_messages import ingest_work
from tests.support.processes.redis_process import events_of, running_redis, wait_until
from tests.support.processes.worker_processes import WorkerProcess, worker
from tests.support.secret import SECRET

pytestmark = pytest.mark.timeout(120)

_ATTACK = """
import os, pathlib
def touch(*args, **options):
    pathlib.Path(os.environ["MADE_BY_ATTACK"]).touch()
"""


class Attacked:
    """A worker, and its Redis for whoever writes there."""

    def __init__(self, url: str, process: WorkerProcess, made: Path) -> None:
        self.redis = redis.Redis.from_url(url)
        self.process = process
        self.process.info(self.redis)
        self.made = made
        """what is there once a worker has run the attacker's function"""
        self.queue = Queue(COMPILE_QUEUE, connection=self.redis, serializer=JSONSerializer)

    def write(self, function: str, *args: Any, job_id: str = "", **fields: Any) -> str:
        """Put a job on the worker's queue by RQ's own means, with more fields in its hash; the job's id."""
        job_id = job_id or uuid.uuid4().hex
        with self.redis.pipeline() as pipe:
            self.queue.enqueue_call(function, args=args, job_id=job_id, pipeline=pipe)
            if fields:
                pipe.hset(f"rq:job:{job_id}", mapping=cast(Any, fields))
            pipe.execute()
        return job_id

    def ask(self, job: str, model: str = "0" * 64) -> Any:
        """Put work on the queue as the server does."""
        work = ingest(job, model)
        WorkQueues(self.redis, SECRET).enqueue(COMPILE_QUEUE, work)
        return work

    def errors(self, job: str) -> list[str]:
        """How the work of the job ended, by what was delivered for it."""
        events = [event for event in events_of(self.redis, SERVER_STREAM) if event["job"] == job]
        return [event["error"] for event in events]

    def still_works(self) -> None:
        """All that waits is taken, and work of the fleet is done after it."""
        job = uuid.uuid4().hex
        self.ask(job)
        wait_until(lambda: self.errors(job) == ["NotFound"])
        assert self.process.process.poll() is None

    def log(self) -> str:
        self.process.stop()
        return self.process.log


def ingest(job: str, model: str = "0" * 64) -> IngestWork:
    return ingest_work(model, work_id=uuid.uuid4().hex, job=job, model_name="m.onnx", isa="x")


@pytest.fixture
def attacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Attacked]:
    (tmp_path / "attack.py").write_text(_ATTACK)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("MADE_BY_ATTACK", str(tmp_path / "made"))
    with running_redis() as url, worker("compiler", "compile", url, tmp_path / "gate") as process:
        yield Attacked(url, process, tmp_path / "made")


@pytest.mark.parametrize("function", ["os.mkdir", "pathlib.Path.mkdir", "attack.touch"])
def test_a_function_that_a_job_names_is_not_called(attacked: Attacked, function: str) -> None:
    job_id = attacked.write(function, str(attacked.made))
    attacked.still_works()
    assert not attacked.made.exists()
    assert not attacked.redis.exists(f"rq:job:{job_id}")
    assert f"job {job_id} on the queue {COMPILE_QUEUE} is refused, and nothing of it was done: " in attacked.log()


@pytest.mark.parametrize("torn", [{}, {"timeout": "?", "status": "?"}], ids=["whole", "torn"])
def test_signed_work_calls_nothing_that_is_written_beside_it(attacked: Attacked, torn: dict[str, str]) -> None:
    """Callbacks, another serializer, a retry and a repetition: RQ would do all of it."""
    requests: list[str] = []
    with listening(requests) as address:
        webhooks = [{"url": address, "job_status": status} for status in ("finished", "failed")]
        callbacks = {f"{kind}_callback_name": "attack.touch" for kind in ("success", "failure", "stopped")}
        more = {"retries_left": 3, "repeats_left": 3, "repeat_intervals": "[0]", "serializer": "pickle"}
        work = ingest("beside")
        message = seal_work(SECRET, COMPILE_QUEUE, work)
        hooks = {"webhooks": json.dumps(webhooks)}
        attacked.write("attack.touch", message, job_id=work.work_id, **callbacks, **more, **hooks, **torn)
        attacked.still_works()
    assert attacked.errors("beside") == ["NotFound"]  # the work itself was ours, and is done, once
    assert not attacked.made.exists()
    assert requests == []


def _altered(work: Any) -> str:
    return seal_work(SECRET, COMPILE_QUEUE, work).replace('"llvm"', '"cuda"')


def _old(work: Any) -> str:
    with pytest.MonkeyPatch.context() as patch:
        long_ago_s = time.time() - WORK_MAX_AGE_S - 60
        patch.setattr("time.time", lambda: long_ago_s)
        return seal_work(SECRET, COMPILE_QUEUE, work)


@pytest.mark.parametrize(
    ("forge", "reason"),
    [
        (write_json, "does not carry this fleet's signature"),
        (_altered, "does not carry this fleet's signature"),
        (lambda work: seal_work(b"another secret", COMPILE_QUEUE, work), "does not carry this fleet's signature"),
        (lambda work: seal_work(SECRET, BUILD_QUEUE, work), "does not carry this fleet's signature"),
        (_old, "it was queued 24.0 h ago, and work is good for 24 h"),
        (lambda work: seal_work(SECRET, COMPILE_QUEUE, replace(work, work_id="other")), "came in another job"),
    ],
    ids=["unsigned", "altered", "other-secret", "other-queue", "old", "other-job"],
)
def test_work_that_is_not_the_fleets_is_refused(attacked: Attacked, forge: Callable[[Any], str], reason: str) -> None:
    work = ingest("forged")
    attacked.write(HANDLER, forge(work), job_id=work.work_id)
    attacked.still_works()
    assert attacked.errors("forged") == []
    refused = [line for line in attacked.log().splitlines() if "is refused" in line]
    assert len(refused) == 1
    assert work.work_id in refused[0]
    assert reason in refused[0]


def test_work_that_was_done_is_not_done_again(attacked: Attacked) -> None:
    work = ingest("replayed")
    message = seal_work(SECRET, COMPILE_QUEUE, work)
    for _ in range(2):
        attacked.write(HANDLER, message, job_id=work.work_id)
        attacked.still_works()
    assert attacked.errors("replayed") == ["NotFound"]
    assert f"ingest {work.work_id} is refused: it was delivered before, or withdrawn" in attacked.log()


def test_the_server_may_give_lost_work_again(attacked: Attacked) -> None:
    """The same message comes twice; nobody has delivered the work."""
    work = attacked.ask("lost")
    wait_until(lambda: attacked.errors("lost") == ["NotFound"] and not attacked.redis.exists(f"rq:job:{work.work_id}"))
    unmark(attacked.redis, DONE, work.work_id)  # as if its worker had died before it delivered
    attacked.write(HANDLER, seal_work(SECRET, COMPILE_QUEUE, work), job_id=work.work_id)
    wait_until(lambda: attacked.errors("lost") == ["NotFound"] * 2)


@pytest.mark.parametrize("torn", [{"other": "1"}, {"data": b"\x80"}, {"data": "[]"}, {b"\x80": "1", "data": "null"}])
def test_a_job_that_cannot_be_read_is_passed_over(attacked: Attacked, torn: dict[Any, Any]) -> None:
    attacked.redis.hset("rq:job:torn", mapping=torn)
    attacked.redis.set("rq:job:no-hash", "text")
    attacked.redis.rpush(attacked.queue.key, "torn", "no-hash", "no id!", "nowhere")
    attacked.still_works()


def test_a_worker_takes_no_commands(attacked: Attacked) -> None:
    assert (attacked.redis.pubsub_channels(), attacked.redis.pubsub_numpat()) == ([], 0)
    attacked.still_works()


def test_another_model_file_under_the_name_of_an_uploaded_one_is_not_read(attacked: Attacked) -> None:
    digest = hashlib.sha256(b"the user's model").hexdigest()
    put_blob(attacked.redis, model_blob("default", digest), b"another model")
    attacked.ask("swapped", digest)
    wait_until(lambda: attacked.errors("swapped") == ["Unsigned"])


class _Listener(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.server.requests.append(self.path)  # type: ignore[attr-defined]
        self.send_response(200)
        self.end_headers()


@contextlib.contextmanager
def listening(requests: list[str]) -> Iterator[str]:
    """The address of an HTTP server that writes down what is asked of it."""
    server = HTTPServer(("127.0.0.1", 0), _Listener)
    server.requests = requests  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
