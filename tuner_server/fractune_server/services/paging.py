"""Page sizes and page tokens."""

import base64
import hmac
import json
import math
import secrets
from collections.abc import Sequence
from typing import TypeVar

from google.protobuf.message import Message

from fractune_core.codec.plain_json import checked, read_json
from fractune_core.errors import BadRequest
from fractune_server.authenticator import caller

MAX_PAGE = 1000
PAGE_BYTES = 2 << 20
"""gRPC's clients accept messages of up to 4 MiB; the rest is for what comes with the page"""

_NONCE_BYTES, _SEAL_BYTES = 16, 32

Place = TypeVar("Place")
Item = TypeVar("Item", bound=Message)


def page_size(asked: int, default: int) -> int:
    """Raises BadRequest for a negative size; a size above MAX_PAGE becomes MAX_PAGE."""
    if asked < 0:
        raise BadRequest(f"page_size is {asked}; it must be 0 or more")
    return min(asked or default, MAX_PAGE)


def first_page(rows: Sequence[tuple[Place, Item]], size: int) -> tuple[list[Item], Place | None]:
    """The first messages of `rows`, at most `size` and at most PAGE_BYTES of them but at least one.

    Also returns the place of the last one; None if there is no further row.
    """
    left = PAGE_BYTES
    page: list[Item] = []
    for _, item in rows[:size]:
        left -= item.ByteSize()
        if page and left < 0:
            break
        page.append(item)
    return page, rows[len(page) - 1][0] if len(page) < len(rows) else None


class PageTokens:
    """Places in listings, sealed: a place counts rows of all tenants, and its number would tell how many these add."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def write(self, place: Sequence[float] | None) -> str:
        """Empty if there is no further page."""
        if place is None:
            return ""
        nonce, text = secrets.token_bytes(_NONCE_BYTES), json.dumps(list(place)).encode()
        hidden = self._hide(nonce, text)
        return base64.urlsafe_b64encode(nonce + hidden + self._digest("seal", nonce + hidden)).decode()

    def read(self, token: str, length: int) -> list[float] | None:
        """None for the first page. Raises BadRequest for a token that no listing of this caller's tenant gave out."""
        if not token:
            return None
        place: list[float] | None
        try:
            place = read_json(self._opened(base64.urlsafe_b64decode(token)))
            checked(list[float], place)
        except ValueError:
            place = None
        # The last number counts rows. One before it may be a time, which is infinite for a failure.
        if place is None or len(place) != length or not _is_row(place[-1]) or any(map(math.isnan, place)):
            raise BadRequest(f"page_token '{token}' is not from this server; leave it empty to begin again")
        return place

    def _opened(self, sealed: bytes) -> bytes:
        """Raises ValueError."""
        nonce, hidden, seal = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:-_SEAL_BYTES], sealed[-_SEAL_BYTES:]
        if not hmac.compare_digest(seal, self._digest("seal", nonce + hidden)):
            raise ValueError("it is not sealed here")
        return self._hide(nonce, hidden)

    def _hide(self, nonce: bytes, text: bytes) -> bytes:
        """`text` with a one-time pad; the same again shows it."""
        pad = b"".join(self._digest(f"pad {part}", nonce) for part in range(-(-len(text) // _SEAL_BYTES)))
        return bytes(one ^ other for one, other in zip(text, pad, strict=False))

    def _digest(self, purpose: str, text: bytes) -> bytes:
        key = f"page {caller().tenant} {purpose} ".encode()
        return hmac.digest(self._secret, key + text, "sha256")


def _is_row(number: float) -> bool:
    return isinstance(number, int) and 0 <= number < 1 << 63
