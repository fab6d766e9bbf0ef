"""The HTTP port for those who watch: /metrics for Prometheus, /healthz and /readyz for whoever starts servers again."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app

from fractune_core.errors import BadRequest
from fractune_core.names import HealthPart
from fractune_server.monitoring.health import Health

_SILENT_CLIENT_S = 10.0

_log = logging.getLogger(__name__)


class Endpoint:
    """Bound with the making; `start` serves until `stop`."""

    def __init__(self, address: str, registry: CollectorRegistry, health: Health) -> None:
        """`address` is HOST:PORT, port 0 = any free one. Raises BadRequest when it cannot be bound."""
        host, _, port = address.rpartition(":")
        host = host.strip("[]")
        server: type[_Server] = _Server6 if ":" in host else _Server
        try:
            self._server = make_server(host, int(port), _app(registry, health), server, _Handler)
        except (OSError, ValueError, OverflowError) as error:
            raise BadRequest(
                f"--metrics {address}: cannot listen there ({error}); write HOST:PORT with a free port of this machine"
            ) from error
        self.address = f"{address.rpartition(':')[0]}:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """May be called without a start."""
        if self._thread.ident is not None:
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002  as the library calls it
        """A client that says nothing for long, or goes away in the middle, is no error of ours."""
        _log.debug("a call of %s at the port for metrics failed", client_address, exc_info=True)


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Handler(WSGIRequestHandler):
    timeout = _SILENT_CLIENT_S

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the library's names
        """A line for each probe is of no use."""


def _app(registry: CollectorRegistry, health: Health) -> Callable[[dict[str, Any], Any], Iterable[bytes]]:
    metrics: Callable[[dict[str, Any], Any], Iterable[bytes]] = make_wsgi_app(registry)

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        failing = health.failing()
        match environ["PATH_INFO"]:
            case "/metrics":
                return metrics(environ, start_response)
            case "/healthz":
                return _answer(start_response, [part for part in failing if part is HealthPart.ENGINE])
            case "/readyz":
                return _answer(start_response, list(failing))
        return _plain(start_response, "404 Not Found", "/metrics, /healthz and /readyz are here\n")

    return app


def _answer(start_response: Any, failing: list[HealthPart]) -> list[bytes]:
    """Names the parts alone: why they fail is in the server's log, for those who may read it."""
    if failing:
        return _plain(start_response, "503 Service Unavailable", f"failing: {', '.join(sorted(failing))}\n")
    return _plain(start_response, "200 OK", "ok\n")


def _plain(start_response: Any, status: str, text: str) -> list[bytes]:
    start_response(status, [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(text)))])
    return [text.encode()]
