"""Artifacts are machine code: a worker runs none that does not carry the fleet's signature."""

from __future__ import annotations

import hashlib
import hmac

from fractune_core.errors import FractuneError

_DIGEST_BYTES = 32


class Unsigned(FractuneError):
    """The bytes were not signed with this fleet's secret."""


def sign(secret: bytes, payload: bytes) -> bytes:
    """`payload` with its HMAC-SHA256 in front."""
    return hmac.digest(secret, payload, hashlib.sha256) + payload


def open_signed(secret: bytes, signed: bytes) -> bytes:
    """The payload inside `signed`. Raises Unsigned when the signature is not this fleet's."""
    digest, payload = signed[:_DIGEST_BYTES], signed[_DIGEST_BYTES:]
    if not hmac.compare_digest(digest, hmac.digest(secret, payload, hashlib.sha256)):
        raise Unsigned("an artifact does not carry this fleet's signature; give every worker the same secret")
    return payload
