"""Webhooks: the addresses that a server may call when a job has ended, and the signature of a call."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from urllib.parse import urlsplit

from fractune_core.errors import BadRequest

SIGNATURE = "Fractune-Signature"
"""header: `t=SECONDS,v1=HEX`: the time of the call, and the HMAC-SHA256 of `SECONDS.BODY`"""
DELIVERY = "Fractune-Delivery"
"""header: an id that repeated calls for one event share"""

_PORTS = {"http": 80, "https": 443}
_LONGEST = 2048


@dataclass(frozen=True)
class WebhookRules:
    """The only addresses that a server calls."""

    hosts: frozenset[str] = frozenset()
    """HOST (at the default port of the scheme) or HOST:PORT; in lower case"""

    @classmethod
    def parse(cls, text: str) -> WebhookRules:
        """`HOST[:PORT],...`. Raises BadRequest."""
        hosts = frozenset(part.strip().lower() for part in text.split(",") if part.strip())
        for host in hosts:
            found = urlsplit(f"//{host}")
            is_plain = found.netloc == host and found.hostname and "@" not in host and "[" not in host
            if not is_plain or not _has_port(host):
                raise BadRequest(f"webhook host '{host}': write HOST or HOST:PORT, such as ci.example.com")
        return cls(hosts)

    def check(self, url: str) -> None:
        """Raises BadRequest for an address that must not be called. The message shows only the host, because the rest
        may be a secret.
        """
        if not self.hosts:
            raise BadRequest(
                "this server calls no webhooks; its operator starts it with --webhook-hosts and --webhook-secret-file"
            )
        scheme, host, port = _parts(url)
        names = {f"{host}:{port}"} | ({host} if port == _PORTS[scheme] else set())
        if names.isdisjoint(self.hosts):
            raise BadRequest(
                f"webhook: this server does not call {host}:{port}; its operator names the hosts, by --webhook-hosts"
            )


def signature(secret: bytes, at: int, body: bytes) -> str:
    """The value of the header SIGNATURE for a call made `at` seconds since 1970."""
    mac = hmac.new(secret, f"{at}.".encode() + body, hashlib.sha256)
    return f"t={at},v1={mac.hexdigest()}"


def _parts(url: str) -> tuple[str, str, int]:
    """Scheme, host and port. Raises BadRequest."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port, parts = None, None, urlsplit("")
    plain = url.isascii() and url.isprintable() and " " not in url and "\\" not in url and len(url) <= _LONGEST
    if not plain or parts.scheme not in _PORTS or not host or "@" in parts.netloc or "#" in url:
        raise BadRequest("webhook: write http://HOST[:PORT]/PATH or https://..., without a user and a fragment")
    return parts.scheme, host, _PORTS[parts.scheme] if port is None else port


def _has_port(host: str) -> bool:
    """Whether the text after the colon is a port; True without a colon."""
    _, colon, port = host.partition(":")
    return not colon or (port.isdecimal() and 0 < int(port) < 1 << 16)
