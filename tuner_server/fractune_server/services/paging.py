"""Page sizes and page tokens."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Sequence

from fractune_core.errors import BadRequest
from fractune_core.json_shapes import check_shape, read_json

MAX_PAGE = 1000


def page_size(asked: int, default: int) -> int:
    """Raises BadRequest for a negative size; what is over the limit is cut to it."""
    if asked < 0:
        raise BadRequest(f"page_size is {asked}; it must be 0 or more")
    return min(asked or default, MAX_PAGE)


def write_token(place: Sequence[float] | None) -> str:
    """Empty when there is no further page."""
    return "" if place is None else base64.urlsafe_b64encode(json.dumps(list(place)).encode()).decode()


def read_token(token: str, length: int) -> list[float] | None:
    """None for the first page. Raises BadRequest for a token that no listing gave out."""
    if not token:
        return None
    place: list[float] | None
    try:
        place = read_json(base64.urlsafe_b64decode(token))
        check_shape(list[float], place)
    except ValueError:
        place = None
    # The last number counts rows; one before it may be a time, of a failure an infinite one.
    if place is None or len(place) != length or not _is_row(place[-1]) or any(map(math.isnan, place)):
        raise BadRequest(f"page_token '{token}' is none of ours; leave it empty to begin again")
    return place


def _is_row(number: float) -> bool:
    return isinstance(number, int) and 0 <= number < 1 << 63
