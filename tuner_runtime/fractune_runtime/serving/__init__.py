"""Servers around a bundle, each a module to run: `BUNDLE=model.fractune python -m fractune_runtime.serving.fastapi`.

REPLICAS and THREADS are those of a `ReplicaPool`; without them the limit of the process decides. PORT is 8080 by
default, and HOST is every address of the machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator
from functools import cache
from typing import Any

from fractune_runtime import __version__, errors
from fractune_runtime.endpoint import MODEL_NAME, Busy, Endpoint, tensor_type
from fractune_runtime.loading import interface_of, open_bundle

HOST = os.environ.get("HOST", "0.0.0.0")  # noqa: S104  a container's probes and clients come from outside
JSON = "application/json"
READY = "/v2/health/ready"
MOST_BODY_BYTES = 64 << 20
"""of a request"""
_MOST_HELD_BYTES = _MOST_DROPPED_BYTES = 4 * MOST_BODY_BYTES
_SILENT_S = 30.0
"""of a client in the middle of its request"""
_Message = dict[str, Any]
_Receive = Callable[[], Awaitable[_Message]]
_Send = Callable[[_Message], Awaitable[None]]


@contextlib.contextmanager
def needing(packages: str) -> Iterator[None]:
    """Around the imports of a server: ends the process with a line if one of its packages is not installed."""
    try:
        yield
    except ImportError as error:
        raise _ended(errors.FractuneError(f"this server cannot start ({error}); pip install {packages}")) from error


def port(name: str = "PORT", default: int = 8080) -> int:
    """Of the variable of this name. Ends the process with a line for what is not a port, or is in use."""
    number = _whole(name, default, 65535)
    try:
        socket.create_server((HOST, number), family=socket.AF_INET6 if ":" in HOST else socket.AF_INET).close()
    except OSError as error:
        problem = f"cannot listen on {HOST}:{number}: it is in use, or not an address of this machine"
        raise _ended(errors.BadRequest(f"{problem}; set {name} or HOST to another")) from error
    return number


def settings() -> tuple[str, dict[str, int]]:
    """The path of the bundle, and options for `Endpoint`. Ends the process with a line for a wrong one."""
    path = os.environ.get("BUNDLE", "")
    if not path:
        raise _ended(
            errors.BadRequest("BUNDLE is not set: give it the path of a bundle, such as BUNDLE=model.fractune")
        )
    try:
        metadata(path)
    except (errors.FractuneError, OSError) as error:
        raise _ended(errors.BadBundle(f"BUNDLE: {error}")) from error
    names = ("REPLICAS", "THREADS")
    return path, {name.lower(): _whole(name, 1, 4096) for name in names if os.environ.get(name)}


def endpoint() -> Endpoint:
    """With its metrics. Ends the process with a line for a wrong bundle or option."""
    path, options = settings()
    try:
        made = Endpoint(path, **options)
        made.register()
    except errors.FractuneError as error:
        raise _ended(error) from error
    return made


@cache
def metadata(path: str) -> dict[str, Any]:
    """Of a bundle's model, as the Open Inference Protocol has it. Raises BadBundle and OSError."""
    with contextlib.closing(open_bundle(path)) as bundle:
        inputs, outputs = interface_of(bundle)
    tensors = {"inputs": list(map(tensor_type, inputs)), "outputs": list(map(tensor_type, outputs))}
    return {"name": MODEL_NAME, "platform": "fractune", **tensors}


async def answered(endpoint: Endpoint, request: Any) -> tuple[bytes, int]:
    """As `Endpoint.infer_json`, and its status."""
    try:
        return await endpoint.infer_json(request), 200
    except errors.BadRequest as error:
        return _error(error), 400
    except Busy as error:
        return _error(error), 503


def refuse_briefly(app: Any) -> None:
    """FastAPI's own answer repeats the body that it cannot read, and fails for half a character in it."""
    from fastapi.exceptions import RequestValidationError
    from fastapi.responses import Response

    async def answer(request: Any, error: Any) -> Response:
        del request
        first = error.errors()[0]
        return Response(_error(errors.as_message(f"{'.'.join(map(str, first['loc']))}: {first['msg']}")), 400)

    app.add_exception_handler(RequestValidationError, answer)


class Protocol:
    """Middleware of ASGI: what the Open Inference Protocol asks about a server and its model. The application has a
    route `READY`, and the model is as ready as the server.
    """

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self._app = app

    async def __call__(self, scope: _Message, receive: _Receive, send: _Send) -> None:
        path = scope["path"].rstrip("/") if scope["type"] == "http" and scope["method"] == "GET" else ""
        if path == f"/v2/models/{MODEL_NAME}/ready":
            scope = {**scope, "path": READY, "raw_path": READY.encode()}
        elif path == "/v2":
            return await _send(send, 200, {"name": "fractune", "version": __version__, "extensions": []})
        elif path == "/v2/health/live":
            return await _send(send, 200, {"live": True})
        elif path == f"/v2/models/{MODEL_NAME}":
            return await _send(send, 200, metadata(settings()[0]))
        return await self._app(scope, receive, send)


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
            await _send(send, status, {"error": text}, (b"connection", b"close"))
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


async def _send(send: _Send, status: int, answer: object, *headers: tuple[bytes, bytes]) -> None:
    headers = ((b"content-type", JSON.encode()), *headers)
    await send({"type": "http.response.start", "status": status, "headers": list(headers)})
    await send({"type": "http.response.body", "body": json.dumps(answer).encode()})


def _ended(error: errors.FractuneError) -> SystemExit:
    """With the code of docs/exit-codes.md."""
    sys.stderr.write(f"fractune: {error}\n")
    return SystemExit(error.exit_code)


def _error(error: object) -> bytes:
    return json.dumps({"error": str(error)}).encode()


def _whole(name: str, default: int, most: int) -> int:
    text = os.environ.get(name) or str(default)
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= most):
        raise _ended(errors.BadRequest(f"{name}='{text[:40]}': give a number from 1 to {most}"))
    return int(text)
