"""A collector of traces: takes what OTLP's exporters send over HTTP, and decodes it."""

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as otlp


@dataclass(frozen=True)
class Span:
    """One span as it came. Ids in hexadecimal, times in seconds since 1970."""

    service: str
    name: str
    trace: str
    own: str
    parent: str
    """empty = none"""
    began: float
    ended: float
    attributes: dict[str, Any]


class OtlpReceiver:
    """Use `otlp_receiver`."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.bodies.append(body if self.path == "/v1/traces" else b"")
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the library's names
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, name="collector")
        self._thread.start()

    @property
    def environ(self) -> dict[str, str]:
        """What has processes send their traces here, soon."""
        address = f"http://127.0.0.1:{self._server.server_port}"
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": address, "OTEL_BSP_SCHEDULE_DELAY": "100"}

    def spans(self) -> list[Span]:
        return [each for body in list(self.bodies) for each in _decode(body)]

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@contextlib.contextmanager
def otlp_receiver() -> Iterator[OtlpReceiver]:
    receiver = OtlpReceiver()
    try:
        yield receiver
    finally:
        receiver.stop()


def _decode(body: bytes) -> Iterator[Span]:
    for resource in otlp.ExportTraceServiceRequest.FromString(body).resource_spans:
        service = _plain(resource.resource.attributes)["service.name"]
        for scope in resource.scope_spans:
            for span in scope.spans:
                ids = (span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex())
                times = (span.start_time_unix_nano / 1e9, span.end_time_unix_nano / 1e9)
                yield Span(service, span.name, *ids, *times, _plain(span.attributes))


def _plain(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}
