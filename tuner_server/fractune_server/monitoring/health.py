"""Whether the server is healthy: its engine ticks, its store accepts writes, its Redis answers.

gRPC's health service reports each part by its name. It reports all parts together under the empty name, and under the
name of every service of fractune. A server without its engine must be restarted; other problems end by themselves.
"""

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
"""an engine tick, or a check of the store or Redis, that takes longer than this hangs"""

_log = logging.getLogger(__name__)


class Health:
    """Checks all parts every LOOK_EVERY_S in its own thread; callers get the last result. `start` it once.

    `engine_silent_s` returns the seconds since the engine's tick began, None if the engine does not run.
    """

    def __init__(self, context: ServerContext, engine_silent_s: Callable[[], float | None]) -> None:
        self._context = context
        self._engine_silent_s = engine_silent_s
        self._failing: dict[HealthPart, str] = {}
        self._looked_at = time.monotonic()
        self._logged: set[HealthPart] = set()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="health", daemon=True)
        self.servicer = HealthServicer(self)

    def start(self) -> None:
        self.look()
        self._thread.start()

    def stop(self) -> None:
        """End the checks, unless one hangs."""
        self._stopping.set()
        self._thread.join(_GRACE_S)

    def failing(self) -> dict[HealthPart, str]:
        """The reasons of the failing parts; empty if all parts are well."""
        found = dict(self._failing)
        if time.monotonic() - self._looked_at > SILENCE_S:
            found[HealthPart.STORE] = found[HealthPart.REDIS] = "it neither answers nor refuses"
        silent_s = self._engine_silent_s()
        if silent_s is None:
            found[HealthPart.ENGINE] = "it has ended"
        elif silent_s > SILENCE_S:
            found[HealthPart.ENGINE] = f"its tick has not ended for {silent_s:.0f} s"
        return found

    def look(self) -> None:
        """Check now, and report changes to the watchers of the gRPC service and in the log."""
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
        self._log_changes(self.failing())
        self.servicer.refresh()

    def _log_changes(self, failing: dict[HealthPart, str]) -> None:
        for part in failing.keys() - self._logged:
            _log.warning("not ready: %s: %s", part, failing[part])
        for part in self._logged - failing.keys():
            _log.info("ready again: %s", part)
        self._logged = set(failing)

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
        """From now on these services and the empty name are ready if all parts are."""
        self._ready_names = "", *services
        self.refresh()

    def expect(self, services: Sequence[str]) -> None:
        """Report these services as not serving, until `serve`."""
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
        self.refresh()  # a check that hangs would not report itself
        return super().Check(request, context)

    def _set(self, name: str, *, serving: bool) -> None:
        answer = health_pb2.HealthCheckResponse
        self.set(name, answer.SERVING if serving else answer.NOT_SERVING)
