"""Calls of webhooks, to a real HTTP server in this process."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from examples.webhook_receiver import is_genuine
from fractune_core.access.webhooks import WebhookRules
from fractune_core.errors import BadRequest
from fractune_core.jobs import JobSpec, JobState
from fractune_server import webhooks as module
from fractune_server.counts.instruments import Instruments
from fractune_server.store.store import Store, sqlite_url
from fractune_server.store.stored_job import StoredJob
from fractune_server.webhooks import WebhookSender, read_secret
from tests.support.processes.redis_process import wait_until
from tests.support.samples import DEVICE, granted

SECRET = b"0123456789abcdef"
HIDDEN = "word-in-the-path"


class Receiver:
    """Answers with `answers`, the last one for ever, and keeps what came."""

    def __init__(self) -> None:
        self.answers = [204]
        self.came: list[tuple[dict[str, str], bytes]] = []
        self.silent = False
        self.ended = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.came.append((dict(self.headers), body))
                if outer.silent:
                    outer.ended.wait()
                    return
                self.send_response(outer.answers.pop(0) if len(outer.answers) > 1 else outer.answers[0])
                self.send_header("Location", f"http://{self.headers['Host']}/elsewhere")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.host = f"127.0.0.1:{self.server.server_address[1]}"

    @property
    def url(self) -> str:
        return f"http://{self.host}/{HIDDEN}?x=1"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    thread = threading.Thread(target=made.server.serve_forever, args=(0.01,))
    thread.start()
    yield made
    made.ended.set()
    made.server.shutdown()
    made.server.server_close()
    thread.join()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store(sqlite_url(tmp_path))
    yield made
    made.close()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LOOK_EVERY_S", 0.01)


def context_of(store: Store, hosts: str) -> Any:
    return SimpleNamespace(store=store, instruments=Instruments(), webhook_rules=WebhookRules.parse(hosts))


def ended_job(store: Store, url: str, name: str = "j", state: JobState = JobState.DONE) -> None:
    spec = JobSpec(model="a" * 64, model_name="m.onnx", shares=("cpu:1",))
    job = StoredJob(name, spec, 1.0, DEVICE, {"cpu:1": granted(1)}, "llvm")
    store.jobs.create(job, webhook=url)
    timing = {"run_secs": {"untuned": [2.0], "cpu:1": [1.0]}, "max_error": {}, "granted": granted(1).to_json()}
    store.jobs.save(replace(job, state=state, ended_at=9.0, timings={"cpu:1": timing}, bundle="b"))


def outcomes(context: Any) -> dict[str, float]:
    samples = (sample for metric in context.instruments.webhooks.collect() for sample in metric.samples)
    return {sample.labels["outcome"]: sample.value for sample in samples if sample.name.endswith("_total")}


@contextmanager
def running(sender: WebhookSender) -> Iterator[None]:
    sender.start()
    try:
        yield
    finally:
        sender.stop()


def left(store: Store) -> int:
    return len(store.webhooks.due(time.time() + 1e6, 100))


def test_an_open_job_is_told_of_when_it_ends_and_once(store: Store, receiver: Receiver) -> None:
    ended_job(store, receiver.url, state=JobState.TUNING)
    context = context_of(store, receiver.host)
    sender = WebhookSender(context, SECRET)
    with running(sender):
        assert left(store) == 0
        store.jobs.end("j", JobState.CANCELLED, "JobCancelled", "on request")
        wait_until(lambda: outcomes(context)["delivered"])
    ((headers, body),) = receiver.came
    assert is_genuine(SECRET, headers["Fractune-Signature"], body, time.time())
    told = json.loads(body)
    assert (told["job"], told["state"], told["message"], told["model"]) == (
        "jobs/j",
        "cancelled",
        "on request",
        "m.onnx",
    )
    assert told["id"] == headers["Fractune-Delivery"]
    assert left(store) == 0


def test_what_is_not_taken_is_told_again_under_the_same_id(store: Store, receiver: Receiver) -> None:
    receiver.answers = [500, 302, 204]
    ended_job(store, receiver.url)
    context = context_of(store, receiver.host)
    sender = WebhookSender(context, SECRET, delays_s=(0.01,) * 5)
    with running(sender):
        wait_until(lambda: outcomes(context)["delivered"])
    assert outcomes(context) == {"delivered": 1, "failed": 2, "given_up": 0}
    assert len(receiver.came) == 3, "the redirect was not followed"
    assert len({headers["Fractune-Delivery"] for headers, _ in receiver.came}) == 1
    assert json.loads(receiver.came[0][1])["shares"] == [{"share": "cpu:1", "untuned_s": 2.0, "tuned_s": 1.0}]


def test_attempts_go_on_after_a_restart(store: Store, receiver: Receiver) -> None:
    receiver.answers = [500]
    ended_job(store, receiver.url)
    first = WebhookSender(context_of(store, receiver.host), SECRET, delays_s=(0.01, 1000.0))
    with running(first):
        wait_until(lambda: len(receiver.came) == 2)
    (waiting,) = store.webhooks.due(time.time() + 1e6, 100)
    assert waiting.attempts == 2
    store.webhooks.put_off(waiting, 0.0)
    receiver.answers = [200]
    context = context_of(store, receiver.host)
    second = WebhookSender(context, SECRET, delays_s=(0.01,) * 5)
    with running(second):
        wait_until(lambda: outcomes(context)["delivered"])
    assert len({headers["Fractune-Delivery"] for headers, _ in receiver.came}) == 1


def test_a_receiver_that_is_gone_is_given_up_in_one_line(
    store: Store, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.server.socket.close()
    ended_job(store, receiver.url)
    context = context_of(store, receiver.host)
    sender = WebhookSender(context, SECRET, delays_s=(0.01, 0.01))
    with caplog.at_level(logging.INFO), running(sender):
        wait_until(lambda: outcomes(context)["given_up"])
    (line,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert line.getMessage() == "the webhook of job j is given up after 3 attempts: ConnectionRefusedError"
    assert HIDDEN not in caplog.text
    assert SECRET.decode() not in caplog.text
    assert left(store) == 0
    assert store.jobs.get("j").state is JobState.DONE


def test_one_that_never_answers_is_cut_off(store: Store, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TIMEOUT_S", 0.1)
    receiver.silent = True
    ended_job(store, receiver.url)
    context = context_of(store, receiver.host)
    sender = WebhookSender(context, SECRET, delays_s=())
    with running(sender):
        wait_until(lambda: outcomes(context)["given_up"])


def test_a_host_that_is_no_longer_named_is_not_called(
    store: Store, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    ended_job(store, receiver.url)
    context = context_of(store, "other.example.com")
    sender = WebhookSender(context, SECRET)
    with running(sender):
        wait_until(lambda: outcomes(context)["given_up"])
    assert receiver.came == []
    assert HIDDEN not in caplog.text


def test_a_secret_that_is_missing_or_short_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="cannot read --webhook-secret-file"):
        read_secret(tmp_path / "none")
    (tmp_path / "short").write_text("abc\n")
    with pytest.raises(BadRequest, match="shorter than 16 bytes") as refused:
        read_secret(tmp_path / "short")
    assert "abc" not in str(refused.value)
    (tmp_path / "good").write_bytes(SECRET + b"\n")
    assert read_secret(tmp_path / "good") == SECRET
