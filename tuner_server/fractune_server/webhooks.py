"""Calls the webhooks of ended jobs: signed HTTP POSTs, repeated until one is accepted or the webhook is given up."""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import socket
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fractune_core.access.webhooks import DELIVERY, SIGNATURE, signature
from fractune_core.errors import BadRequest, FractuneError
from fractune_core.log_fields import log_fields
from fractune_core.names import Collection
from fractune_server.services.job_view import job_to_proto
from fractune_server.store.stored_job import StoredJob
from fractune_server.store.webhooks import Webhook
from fractune_server.transport.context import ServerContext

DELAYS_S = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, *(60.0,) * 6)
"""delays before the further attempts; about seven minutes in all"""
TIMEOUT_S = 10.0
"""for one attempt, from connecting to the headers of the answer"""
SHORTEST_SECRET = 16
_LOOK_EVERY_S = 0.5
_AT_ONCE = 4

_log = logging.getLogger(__name__)


class WebhookSender:
    """Sends webhooks in its own thread; failures harm no job. `start` it once."""

    def __init__(self, context: ServerContext, secret: bytes, delays_s: Sequence[float] = DELAYS_S) -> None:
        self._context = context
        self._secret = secret
        self._delays_s = delays_s
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="webhooks")
        for outcome in ("delivered", "failed", "given_up"):
            context.instruments.webhooks.labels(outcome)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End after the attempts in progress; the next server calls the remaining webhooks."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="webhook") as pool:
            while not self._stopping.wait(_LOOK_EVERY_S):
                try:
                    list(pool.map(self._call, self._context.store.webhooks.due(time.time(), _AT_ONCE)))
                except FractuneError as error:  # of the store; the engine ends the server if necessary
                    _log.warning("webhooks wait: %s", error)

    def _call(self, webhook: Webhook) -> None:
        with log_fields(job=webhook.job):
            try:
                self._context.webhook_rules.check(webhook.url)
                problem = self._post(webhook)
            except BadRequest as error:  # the operator has removed the host from the list
                self._give_up(webhook, str(error))
                return
            if not problem:
                self._context.instruments.webhooks.labels("delivered").inc()
                self._context.store.webhooks.drop(webhook)
            elif webhook.attempts < len(self._delays_s):
                self._context.instruments.webhooks.labels("failed").inc()
                _log.info("the webhook of job %s failed (%s); trying again later", webhook.job, problem)
                self._context.store.webhooks.put_off(webhook, time.time() + self._delays_s[webhook.attempts])
            else:
                self._give_up(webhook, problem)

    def _give_up(self, webhook: Webhook, problem: str) -> None:
        self._context.instruments.webhooks.labels("given_up").inc()
        attempts = webhook.attempts + 1
        _log.warning("the webhook of job %s is given up after %d attempts: %s", webhook.job, attempts, problem)
        self._context.store.webhooks.drop(webhook)

    def _post(self, webhook: Webhook) -> str:
        """The problem; empty if the call was accepted. Redirects are not followed."""
        body = json.dumps(summary(self._context.store.jobs.get(webhook.job), webhook.id)).encode()
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "fractune",
            DELIVERY: webhook.id,
            SIGNATURE: signature(self._secret, int(time.time()), body),
        }
        url = urlsplit(webhook.url)
        kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
        connection = kind(str(url.hostname), url.port, timeout=TIMEOUT_S)
        # The timeout above is for each step; a slow receiver must not make many steps.
        watchdog = threading.Timer(TIMEOUT_S, _cut, [connection])
        watchdog.start()
        try:
            connection.request("POST", (url.path or "/") + (f"?{url.query}" if url.query else ""), body, headers)
            status = connection.getresponse().status
        except (OSError, http.client.HTTPException) as error:
            return type(error).__name__
        finally:
            watchdog.cancel()
            connection.close()
        return "" if 200 <= status < 300 else f"status {status}"


def _cut(connection: http.client.HTTPConnection) -> None:
    held = connection.sock
    if isinstance(held, socket.socket):
        with contextlib.suppress(OSError):  # the connection was closed meanwhile
            held.shutdown(socket.SHUT_RDWR)


def summary(job: StoredJob, delivery: str) -> dict[str, Any]:
    """The JSON about an ended job. Times in seconds, times of day since 1970."""
    shares = job_to_proto(job).result.shares
    return {
        "id": delivery,
        "event": "job_ended",
        "job": Collection.JOBS.of(job.id),
        "state": job.state.value,
        "model": job.spec.model_name,
        "created_at": job.created_at,
        "ended_at": job.ended_at,
        "error": job.error,
        "message": job.message,
        "trials": dict(job.progress.by_share),
        "shares": [{"share": each.share, "untuned_s": each.untuned_s, "tuned_s": each.tuned_s} for each in shares],
        "bundle": Collection.BUNDLES.of(job.bundle) if job.bundle else "",
    }


def read_secret(file: Path) -> bytes:
    """The secret in a file, without surrounding white space. Raises BadRequest, which does not quote the file."""
    try:
        secret = file.read_bytes().strip()
    except OSError as error:
        raise BadRequest(f"cannot read --webhook-secret-file {file}: {error.strerror}") from error
    if len(secret) < SHORTEST_SECRET:
        raise BadRequest(
            f"--webhook-secret-file {file}: the secret is shorter than {SHORTEST_SECRET} bytes; "
            "write one by 'openssl rand -hex 32'"
        )
    return secret
