"""Whether the server is healthy: its engine ticks, its store takes writes, its Redis answers.

gRPC's health service tells it for each of them by name, and for all together without a name, and under the name of
every service of ours. A server without its engine is to be started again; one that lacks something else gets well by
itself.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import redis
from grpc_health.v1 import health, health_pb2

from fractune_core.errors import FractuneError
from fractune_core.names import HealthPart
from fractune_server.transport.context import ServerContext

LOOK_EVERY_S = 2.0
_GRACE_S = 5.0
SILENCE_S = 60.0
"""an engine whose tick takes longer than this hangs, and so does a look at the store or at Redis"""

_log = logging.getLogger(__name__)


class Health:
    """`start` it once. Looks at all parts every LOOK_EVERY_S in a thread of its own; whoever asks gets the last look.

    `engine_silent_s` says for how many seconds the engine is in its tick, and None when it does not run.
    """

    def __init__(self, context: ServerContext, engine_silent_s: Callable[[], float | None]) -> None:
        self._context = context
        self._engine_silent_s = engine_silent_s
        self._failing: dict[HealthPart, str] = {}
        self._looked_at = time.monotonic()
        self._told: set[HealthPart] = set()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="health", daemon=True)
        self.servicer = HealthServicer(self)

    def start(self) -> None:
        self.look()
        self._thread.start()

    def stop(self) -> None:
        """Nothing is looked at any more, unless a look hangs."""
        self._stopping.set()
        self._thread.join(_GRACE_S)

    def failing(self) -> dict[HealthPart, str]:
        """Why each part fails that does; empty when all is well."""
        found = dict(self._failing)
        if time.monotonic() - self._looked_at > SILENCE_S:
            found[HealthPart.STORE] = found[HealthPart.REDIS] = "it does not answer, nor does it refuse"
        silent_s = self._engine_silent_s()
        if silent_s is None:
            found[HealthPart.ENGINE] = "it has ended"
        elif silent_s > SILENCE_S:
            found[HealthPart.ENGINE] = f"its tick has not ended for {silent_s:.0f} s"
        return found

    def look(self) -> None:
        """Look now, and tell the gRPC service's watchers, and the log, what has changed."""
        found: dict[HealthPart, str] = {}
        try:
            self._context.redis.ping()
        except redis.RedisError as error:
            found[HealthPart.REDIS] = str(error)
        try:
            self._context.store.check_writable()
        except FractuneError as error:
            found[HealthPart.STORE] = str(error)
        self._failing, self._looked_at = found, time.monotonic()
        self._tell(self.failing())
        self.servicer.refresh()

    def _tell(self, failing: dict[HealthPart, str]) -> None:
        for part in failing.keys() - self._told:
            _log.warning("not ready: %s: %s", part, failing[part])
        for part in self._told - failing.keys():
            _log.info("well again: %s", part)
        self._told = set(failing)

    def _run(self) -> None:
        while not self._stopping.wait(LOOK_EVERY_S):
            self.look()


class HealthServicer(health.HealthServicer):
    """gRPC's health service. Everything is NOT_SERVING until `serve`."""

    def __init__(self, of: Health) -> None:
        super().__init__()
        self._health = of
        self._ready_names: Sequence[str] = ()

    def serve(self, services: Sequence[str]) -> None:
        """From now on these services, and the empty name, are as ready as all parts together."""
        self._ready_names = "", *services
        self.refresh()

    def expect(self, services: Sequence[str]) -> None:
        """These will be served."""
        for name in ("", *services, *HealthPart):
            self.set(name, health_pb2.HealthCheckResponse.NOT_SERVING)

    def refresh(self) -> None:
        failing = self._health.failing()
        for name in self._ready_names:
            self._set(name, serving=not failing)
        if self._ready_names:
            for part in HealthPart:
                self._set(part.value, serving=part not in failing)

    def Check(self, request: Any, context: Any) -> Any:  # noqa: N802  gRPC's name
        self.refresh()  # a look that hangs changes nothing by itself
        return super().Check(request, context)

    def _set(self, name: str, *, serving: bool) -> None:
        answer = health_pb2.HealthCheckResponse
        self.set(name, answer.SERVING if serving else answer.NOT_SERVING)
