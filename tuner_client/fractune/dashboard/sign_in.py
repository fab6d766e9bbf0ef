"""Pages for readers with tokens of the server: each reads with the rights of its own token, and nothing else.

The process has no token. So it cannot show anything to a reader that the server would not tell this reader.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse

from fractune.dashboard.app import Site
from fractune.dashboard.guard import given_token
from fractune.features.client import Client
from fractune.server.credentials import Credentials
from fractune_core.access import TokenText
from fractune_core.errors import AccessRefused, BadRequest, FractuneError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

_MOST_READERS = 64
"""whose pages are kept; the one that was away the longest goes first"""
_CHECK_EVERY_S = 5.0
"""as often the server is asked whether the token of a reader still holds"""
_PAUSE_S = 1.1
"""after a wrong token: the server counts the wrong tokens of this address, and forgets one a second"""
_MOST_WAITING = 16
"""readers that are new at the same time"""


class Entrance:
    """Connects to one server with the token of each reader."""

    def __init__(
        self,
        address: str,
        *,
        credentials: Credentials,
        reconnect_s: float,
        skipped_shares: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Raises BadRequest for a server that tokens cannot be sent to."""
        if credentials.ca is None:
            raise BadRequest("--sign-in sends each reader's token to the server, which takes TLS; pass --ca")
        self.address = address
        self._credentials = replace(credentials, token_file=None)
        self._options = {"reconnect_s": reconnect_s}
        self._skipped = skipped_shares

    def client(self, token: TokenText) -> Client:
        credentials = replace(self._credentials, token=token)
        return Client(self.address, credentials=credentials, skipped_shares=self._skipped, **self._options)

    def close(self) -> None:
        """Nothing is open: each reader's client is closed with its pages."""


@dataclass
class _Reader:
    site: Site
    app: ASGIApp
    following: asyncio.Task[None]
    checked_at: float = field(default_factory=time.monotonic)

    async def end(self) -> None:
        self.following.cancel()
        await self.site.end()


class SignedInPages:
    """The pages of all readers, each by its own token. `make` makes those of one client. For one event loop."""

    def __init__(self, entrance: Entrance, make: Callable[[Client], Site]) -> None:
        self._entrance = entrance
        self._make = make
        self._readers: OrderedDict[str, _Reader] = OrderedDict()
        """by the digest of the token; the last one to ask at the end"""
        self._entering = asyncio.Lock()
        self._waiting = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _live(receive, send)
            return
        answer: ASGIApp = await self._app_for(Headers(scope=scope))
        await answer(scope, receive, send)

    async def end(self) -> None:
        """As that of a Site, for all readers."""
        while self._readers:
            await self._readers.popitem()[1].end()

    async def _app_for(self, headers: Headers) -> ASGIApp:
        token = TokenText.parse(given_token(headers.get("authorization", "")) or "")
        if token is None:
            return _refusal("give a token of the server as the password")
        name = hashlib.sha256(token.text.encode()).hexdigest()
        reader = self._readers.get(name)
        try:
            if reader is None:
                reader = await self._enter(name, token)
            elif time.monotonic() - reader.checked_at > _CHECK_EVERY_S:
                await self._check(reader)
        except AccessRefused as error:
            await self._forget(name)
            return _refusal(str(error))
        except FractuneError as error:
            return PlainTextResponse(f"{error}\n", 503)
        self._readers.move_to_end(name)
        return reader.app

    async def _enter(self, name: str, token: TokenText) -> _Reader:
        """Raises AccessRefused for a token that the server refuses. One after the other, and slowly after a wrong one:
        the server would refuse this whole address.
        """
        if self._waiting >= _MOST_WAITING:
            raise FractuneError("too many readers come at the same time; try again in some seconds")
        self._waiting += 1
        try:
            async with self._entering:
                if name not in self._readers:
                    self._readers[name] = await self._made(token)
        finally:
            self._waiting -= 1
        if len(self._readers) > _MOST_READERS:
            await self._readers.popitem(last=False)[1].end()
        return self._readers[name]

    async def _made(self, token: TokenText) -> _Reader:
        client = self._entrance.client(token)
        try:
            await asyncio.to_thread(client.jobs, limit=1)
        except BaseException as error:
            client.close()
            if isinstance(error, AccessRefused):
                await asyncio.sleep(_PAUSE_S)
            raise
        site = self._make(client)
        return _Reader(site, site.app(), asyncio.create_task(site.follow()))

    async def _check(self, reader: _Reader) -> None:
        """Raises AccessRefused. A server that does not answer has refused nothing: the pages say that it is away."""
        reader.checked_at = time.monotonic()
        try:
            await asyncio.to_thread(reader.site.ask_server)
        except AccessRefused:
            raise
        except FractuneError:
            return

    async def _forget(self, name: str) -> None:
        if (reader := self._readers.pop(name, None)) is not None:
            await reader.end()


async def _live(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


def _refusal(text: str) -> PlainTextResponse:
    asks = {"WWW-Authenticate": 'Basic realm="fractune"', "Cache-Control": "no-store"}
    return PlainTextResponse(f"{text}\n", 401, headers=asks)
