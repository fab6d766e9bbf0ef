"""The HTTP port for monitoring: /metrics for Prometheus, /healthz and /readyz for Kubernetes and the like."""

import logging
import socket
import ssl
import threading
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import make_wsgi_app

from fractune_core.access import Scope
from fractune_core.errors import AccessRefused, BadRequest, FractuneError, ScopeMissing, StateUnusable, TooManyAttempts
from fractune_core.names import HealthPart
from fractune_server.access.authenticator import ANYBODY, Authenticator, Caller
from fractune_server.monitoring.collector import Metrics
from fractune_server.monitoring.health import Health

_SILENT_CLIENT_S = 10.0
_STATUS: dict[type[FractuneError], str] = {ScopeMissing: "403 Forbidden", TooManyAttempts: "429 Too Many Requests"}
"""HTTP's status lines"""

_log = logging.getLogger(__name__)


class Endpoint:
    """The constructor binds the address; `start` serves until `stop`."""

    def __init__(
        self,
        address: str,
        metrics: Metrics,
        health: Health,
        tls: ssl.SSLContext | None = None,
        authenticator: Authenticator | None = None,
    ) -> None:
        """`address` is HOST:PORT, port 0 = any free one. Raises BadRequest when it cannot be bound.

        With `tls` it is HTTPS. With `authenticator` metrics need a token with the scope `read`. Health needs none.
        """
        host, _, port = address.rpartition(":")
        host = host.strip("[]")
        server: type[_Server] = _Server6 if ":" in host else _Server
        try:
            self._server = make_server(host, int(port), _app(metrics, health, authenticator), server, _Handler)
        except (OSError, ValueError, OverflowError) as error:
            raise BadRequest(
                f"--metrics {address}: cannot listen there ({error}); write HOST:PORT with a free port of this machine"
            ) from error
        if tls is not None:
            # The handshake happens at the first read, not at accept, where one silent caller would block all others.
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self.address = f"{address.rpartition(':')[0]}:{self._server.server_port}"
        self.url = f"http{'' if tls is None else 's'}://{self.address}"
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
        """A client that is silent for long, or leaves early, is not an error of the server."""
        _log.debug("a call of %s at the port for metrics failed", client_address, exc_info=True)


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Handler(WSGIRequestHandler):
    timeout = _SILENT_CLIENT_S

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the library's names
        """Log no line for each probe."""


def _app(
    metrics: Metrics, health: Health, authenticator: Authenticator | None
) -> Callable[[dict[str, Any], Any], Iterable[bytes]]:
    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        failing = health.failing()
        match environ["PATH_INFO"]:
            case "/metrics":
                try:
                    caller = ANYBODY if authenticator is None else _admitted(authenticator, environ)
                    found = metrics.of(caller.tenant_seen)
                except AccessRefused as error:
                    return _plain(start_response, _STATUS.get(type(error), "401 Unauthorized"), f"{error}\n")
                except StateUnusable:
                    return _answer(start_response, [HealthPart.STORE])
                answer: Iterable[bytes] = make_wsgi_app(found)(environ, start_response)
                return answer
            case "/healthz":
                return _answer(start_response, [part for part in failing if part is HealthPart.ENGINE])
            case "/readyz":
                return _answer(start_response, list(failing))
        return _plain(start_response, "404 Not Found", "/metrics, /healthz and /readyz are here\n")

    return app


def _admitted(authenticator: Authenticator, environ: dict[str, Any]) -> Caller:
    """Raises AccessRefused for a caller who may not read metrics."""
    metadata = {"authorization": environ.get("HTTP_AUTHORIZATION", "")}
    host = environ["REMOTE_ADDR"]
    peer = f"ipv6:[{host}]:0" if ":" in host else f"ipv4:{host}:0"  # as gRPC names it: one count of wrong tokens
    return authenticator.admit("/metrics", Scope.READ, peer, metadata)


def _answer(start_response: Any, failing: list[HealthPart]) -> list[bytes]:
    """The names of the failing parts; the reasons are only in the server's log."""
    if failing:
        return _plain(start_response, "503 Service Unavailable", f"failing: {', '.join(sorted(failing))}\n")
    return _plain(start_response, "200 OK", "ok\n")


def _plain(start_response: Any, status: str, text: str) -> list[bytes]:
    start_response(status, [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(text)))])
    return [text.encode()]
