"""The servers of `examples/serving` as processes, each in its own environment."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import threading
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from tests.support.paths import REPOSITORY
from tests.support.processes.server_environments import server_environment

COMMANDS = {
    "fastapi": (
        "litserve",
        "-m uvicorn fastapi_server:app --port {port} --no-access-log --timeout-graceful-shutdown 30",
    ),
    "litserve": ("litserve", "litserve_server.py"),
    "ray": ("ray", "ray_server.py"),
    "kserve": ("kserve", "kserve_server.py --http_port {port} --grpc_port {other}"),
}
"""by server: its environment, and what Python runs"""
_READY_WITHIN_S = 120
_IDLE_S = 2.0
"""servers close connections that were idle for a few seconds"""
_TYPES = {"int64": "INT64", "int32": "INT32", "float32": "FP32", "bool": "BOOL"}


class Server:
    """A server that may still start; `other` is its port for gRPC, or for metrics."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, other: int, log: Path) -> None:
        self.process, self.port, self.other, self.log = process, port, other, log
        self._connections = threading.local()
        self._all: list[http.client.HTTPConnection] = []

    def get(self, path: str, port: int | None = None) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port or self.port}{path}", timeout=30) as answer:
            text: str = answer.read().decode()
        return text

    def post(self, body: bytes) -> tuple[int, bytes]:
        """The status and the answer to a request. Each thread keeps its connection, while it is in use."""
        if monotonic() - getattr(self._connections, "used", -_IDLE_S) >= _IDLE_S:
            self._connections.own = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
            self._all.append(self._connections.own)
        own: http.client.HTTPConnection = self._connections.own
        self._connections.used = monotonic()
        own.request("POST", "/v2/models/model/infer", body, {"Content-Type": "application/json"})
        answer = own.getresponse()
        return answer.status, answer.read()

    def wait(self) -> None:
        """Until it is ready."""
        until = monotonic() + _READY_WITHIN_S
        while True:
            assert self.process.poll() is None, self.log.read_text()
            try:
                self.get("/v2/health/ready")
            except OSError:
                assert monotonic() < until, self.log.read_text()
                sleep(0.1)
            else:
                return

    def close(self) -> None:
        for each in self._all:
            each.close()

    def end(self) -> int:
        """Send SIGTERM; its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


def request_of(inputs: Mapping[str, Any]) -> bytes:
    """Arrays as a request of the Open Inference Protocol."""
    tensors = [
        {"name": name, "shape": list(array.shape), "datatype": _TYPES[array.dtype.name], "data": array.ravel().tolist()}
        for name, array in inputs.items()
    ]
    return json.dumps({"inputs": tensors}).encode()


@contextmanager
def serving(
    name: str,
    wheel: Path,
    bundle: Path,
    log: Path,
    *,
    env: Mapping[str, str] | None = None,
    confine: Callable[[], None] | None = None,
) -> Iterator[Server]:
    """The server of this name. `confine` is called in its process before it starts."""
    environment, command = COMMANDS[name]
    python = server_environment(environment, wheel).python
    port, other = _free_port(), _free_port()
    own = {"BUNDLE": str(bundle), "PORT": str(port), "METRICS_PORT": str(other)}
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    args = [str(python), *command.format(port=port, other=other).split()]
    with log.open("wb") as out:
        process = subprocess.Popen(
            args,
            cwd=REPOSITORY / "examples" / "serving",
            env={**inherited, "PYTHONDONTWRITEBYTECODE": "1", **own, **(env or {})},
            stdout=out,
            stderr=out,
            start_new_session=True,
            preexec_fn=confine,  # noqa: PLW1509  it writes a file at most
        )
    server = Server(process, port, other, log)
    try:
        yield server
    finally:
        server.close()
        with contextlib.suppress(ProcessLookupError):  # LitServe's worker outlives the program that began it
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
    return port
