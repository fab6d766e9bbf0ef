"""Who gets a page, and what a page may do in a browser."""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse

from fractune_core.access import is_loopback
from fractune_core.errors import ScopeMissing

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_KEPT = "public, max-age=31536000, immutable"
_NOT_KEPT = "no-store"
_FOUND = (200, 206, 304)
_OWN_SITES = ("same-origin", "none")
"""of Sec-Fetch-Site: a link of these pages, and an address that a person has typed"""
_PORT = re.compile(r":[0-9]*$")


@dataclass(frozen=True)
class GuardOptions:
    is_loopback: bool
    """The page is for this machine alone: a request that names another host comes from a page of another site"""
    token: str = ""
    """the password that a browser asks for; empty for none"""


class Guard:
    """Answers nothing to strangers, and adds the headers of every answer."""

    def __init__(self, app: ASGIApp, options: GuardOptions) -> None:
        self._app = app
        self._options = options

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refusal = self._refusal(Headers(scope=scope))
        is_static = scope["path"].startswith("/static/")

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(_HEADERS)
                headers["Cache-Control"] = _KEPT if is_static and message["status"] in _FOUND else _NOT_KEPT
            await send(message)

        await (refusal or self._app)(scope, receive, guarded)

    def _refusal(self, headers: Headers) -> PlainTextResponse | None:
        host = headers.get("host", "")
        if self._options.is_loopback and not is_loopback(_PORT.sub("", host)):
            port = "".join(_PORT.findall(host))
            return PlainTextResponse(f"this page is for this machine alone; open it as http://127.0.0.1{port}/\n", 421)
        if self._options.token and not _has_token(headers.get("authorization", ""), self._options.token):
            asks = {"WWW-Authenticate": 'Basic realm="fractune"'}
            return PlainTextResponse("a token is needed: give it as the password\n", 401, headers=asks)
        return None


def check_own_page(headers: Headers) -> None:
    """Raises ScopeMissing for a request from a page of another site, which may cost nothing here."""
    origin = headers.get("origin")
    is_strange = headers.get("sec-fetch-site", "none") not in _OWN_SITES
    if is_strange or (origin is not None and urlsplit(origin).netloc != headers.get("host")):
        raise ScopeMissing("a page of another site asks for this; open it from a page of this address")


def given_token(header: str) -> str | None:
    """Of an Authorization header: `Basic` with the token as the password, or `Bearer` with the token."""
    kind, _, value = header.partition(" ")
    if kind.lower() == "basic":
        try:
            return base64.b64decode(value, validate=True).decode().partition(":")[2]
        except (binascii.Error, UnicodeDecodeError):
            return None
    return value if kind.lower() == "bearer" else None


def _has_token(header: str, token: str) -> bool:
    given = given_token(header)
    return given is not None and hmac.compare_digest(given.encode(), token.encode())
