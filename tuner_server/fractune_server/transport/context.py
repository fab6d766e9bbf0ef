"""What the parts of the server share."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from redis import Redis

from fractune_core.access.webhooks import WebhookRules
from fractune_core.fleet.server_options import MODEL_LIMIT_BYTES
from fractune_server.counts.instruments import Instruments
from fractune_server.store.files.blob_files import BlobStore
from fractune_server.store.store import Store
from fractune_server.transport.model_ingests import ModelIngests


class JobNotifier:
    """Wakes those who watch jobs. Any thread may call."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._count = 0

    @property
    def count(self) -> int:
        """How many changes there were; to be read before looking, so that none is missed."""
        return self._count

    def announce(self) -> None:
        with self._condition:
            self._count += 1
            self._condition.notify_all()

    def wait(self, since: int, timeout_s: float) -> None:
        """Until there is a change after `since`, or the time is over."""
        with self._condition:
            self._condition.wait_for(lambda: self._count > since, timeout_s)


@dataclass(frozen=True)
class ServerContext:
    store: Store
    redis: Redis
    files: BlobStore
    secret: bytes
    """the fleet's: bundles that travel through Redis are signed with it"""
    upload_limit_bytes: int = MODEL_LIMIT_BYTES
    webhook_rules: WebhookRules = field(default_factory=WebhookRules)
    notifier: JobNotifier = field(default_factory=JobNotifier)
    model_ingests: ModelIngests = field(default_factory=ModelIngests)
    instruments: Instruments = field(default_factory=Instruments)
