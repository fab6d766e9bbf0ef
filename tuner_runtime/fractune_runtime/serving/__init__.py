"""Servers around a bundle, each a module to run: `BUNDLE=model.fractune python -m fractune_runtime.serving.fastapi`.

REPLICAS and THREADS are those of a `ReplicaPool`; without them the limit of the process decides. PORT is 8080 by
default, and HOST is every address of the machine.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from typing import Any

from fractune_runtime import errors
from fractune_runtime.endpoint import Busy, Endpoint
from fractune_runtime.loading import open_bundle

HOST = os.environ.get("HOST", "0.0.0.0")  # noqa: S104  a container's probes and clients come from outside
JSON = "application/json"
MOST_BODY_BYTES = 64 << 20
"""of a request"""
_MOST_HELD_BYTES = _MOST_DROPPED_BYTES = 4 * MOST_BODY_BYTES
_SILENT_S = 30.0
"""of a client in the middle of its request"""
_Message = dict[str, Any]
_Receive = Callable[[], Awaitable[_Message]]
_Send = Callable[[_Message], Awaitable[None]]


def port(name: str = "PORT", default: int = 8080) -> int:
    """Of the variable of this name. Ends the process with a line for what is not a port."""
    return _whole(name, default, 65535)


def settings() -> tuple[str, dict[str, int]]:
    """The path of the bundle, and options for `Endpoint`. Ends the process with a line for a wrong one."""
    path = os.environ.get("BUNDLE", "")
    if not path:
        raise SystemExit("BUNDLE is not set: give it the path of a bundle, such as BUNDLE=model.fractune")
    try:
        open_bundle(path).close()
    except (errors.FractuneError, OSError) as error:
        raise SystemExit(f"BUNDLE: {errors.one_line(str(error))}") from error
    names = ("REPLICAS", "THREADS")
    return path, {name.lower(): _whole(name, 1, 4096) for name in names if os.environ.get(name)}


def endpoint() -> Endpoint:
    """With its metrics. Ends the process with a line for a wrong bundle or option."""
    path, options = settings()
    try:
        made = Endpoint(path, **options)
    except errors.FractuneError as error:
        raise SystemExit(f"BUNDLE: {errors.one_line(str(error))}") from error
    made.register()
    return made


async def answered(endpoint: Endpoint, request: Any) -> tuple[bytes, int]:
    """As `Endpoint.infer_json`, and its status."""
    try:
        return await endpoint.infer_json(request), 200
    except errors.BadRequest as error:
        return _error(error), 400
    except Busy as error:
        return _error(error), 503


class BodyLimit:
    """Middleware of ASGI. It answers 413 to a body beyond `MOST_BODY_BYTES`, and 408 to a client that stops in the
    middle of one. While other bodies take up the memory for them, it answers 503.
    """

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self._app = app
        self.held_bytes = 0

    async def __call__(self, scope: _Message, receive: _Receive, send: _Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        body = _Body(self, receive)

        async def sent(message: _Message) -> None:
            if body.refusal is None:
                await send(message)

        try:
            await self._app(scope, body.receive, sent)
        except Exception:
            if body.refusal is None:
                raise
        finally:
            self.held_bytes -= body.held_bytes
        if body.refusal is not None:
            status, text = body.refusal
            headers = [(b"content-type", JSON.encode()), (b"connection", b"close")]
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": _error(text)})
        return None


class _Body:
    """Of a request. To the application, a refused one ends as if the client had gone."""

    def __init__(self, limit: BodyLimit, receive: _Receive) -> None:
        self._limit, self._receive = limit, receive
        self._is_whole = False
        self._dropped_bytes = 0
        self.held_bytes = 0
        self.refusal: tuple[int, str] | None = None

    async def receive(self) -> _Message:
        while not self._is_whole and self._dropped_bytes <= _MOST_DROPPED_BYTES:
            try:
                message = await asyncio.wait_for(self._receive(), _SILENT_S)
            except TimeoutError:
                self.refusal = 408, f"the request stopped for {_SILENT_S:.0f} s"
                break
            size, self._is_whole = len(message.get("body", b"")), not message.get("more_body", False)
            if self._keeps(size):
                return message
            self._dropped_bytes += size  # a client that still sends would see no answer
        return await self._receive() if self.refusal is None else {"type": "http.disconnect"}

    def _keeps(self, size: int) -> bool:
        if self.refusal is None:
            if self.held_bytes + size > MOST_BODY_BYTES:
                self.refusal = 413, f"the request has more than {MOST_BODY_BYTES:,} bytes; send fewer rows at once"
            elif self._limit.held_bytes + size > _MOST_HELD_BYTES:
                self.refusal = 503, "other requests are too large together; ask later, or ask another server"
            else:
                self.held_bytes += size
                self._limit.held_bytes += size
        return self.refusal is None


def _error(error: object) -> bytes:
    return json.dumps({"error": str(error)}).encode()


def _whole(name: str, default: int, most: int) -> int:
    text = os.environ.get(name) or str(default)
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= most):
        raise SystemExit(f"{name}='{errors.one_line(text)[:40]}': give a number from 1 to {most}")
    return int(text)
