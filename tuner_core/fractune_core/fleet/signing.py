"""The fleet's signature: HMAC-SHA256 with the secret that the server and all its workers share.

A signature is for one purpose, which both sides know and which is not sent: what was signed for one place is worth
nothing in another. No purpose contains a NUL.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from typing import Any

from fractune_core.codec.plain_json import read_json
from fractune_core.errors import FractuneError

_DIGEST_BYTES = 32


class Unsigned(FractuneError):
    """Not a message of this fleet for its purpose: unsigned, altered, of another fleet, misplaced, or not JSON."""


def sign(secret: bytes, purpose: str, payload: bytes) -> bytes:
    """`payload` with its signature in front."""
    return _digest(secret, purpose, payload) + payload


def open_signed(secret: bytes, purpose: str, signed: bytes) -> bytes:
    """The payload inside `signed`. Raises Unsigned."""
    digest, payload = signed[:_DIGEST_BYTES], signed[_DIGEST_BYTES:]
    if not hmac.compare_digest(digest, _digest(secret, purpose, payload)):
        raise _unsigned(purpose)
    return payload


def sign_json(secret: bytes, purpose: str, value: object) -> str:
    """`value` as JSON, its signature in front in hexadecimal, with a blank between: text to read, and to be carried."""
    text = json.dumps(value)
    return f"{_digest(secret, purpose, text.encode()).hex()} {text}"


def open_signed_json(secret: bytes, purpose: str, signed: str | bytes) -> Any:
    """The value given to `sign_json`. Raises Unsigned."""
    encoded = signed if isinstance(signed, bytes) else signed.encode(errors="surrogatepass")
    digest, _, text = encoded.partition(b" ")
    if not hmac.compare_digest(digest, _digest(secret, purpose, text).hex().encode()):
        raise _unsigned(purpose)
    try:
        return read_json(text)
    except ValueError as error:
        raise Unsigned(f"{purpose} is signed by this fleet and cannot be read ({error})") from error


def _digest(secret: bytes, purpose: str, payload: bytes) -> bytes:
    return hmac.digest(secret, purpose.encode() + b"\0" + payload, hashlib.sha256)


def _unsigned(purpose: str) -> Unsigned:
    return Unsigned(
        f"{purpose} does not carry this fleet's signature; give the server and every worker the same secret, and the "
        "same version of fractune"
    )
