"""Streams of requests: a slow or silent sender is cut off, because it holds a thread."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, TypeVar

from fractune_core.access.connections import transfer_s
from fractune_core.errors import QuotaExceeded
from fractune_server.access.interceptor import ended_after

Request = TypeVar("Request")
_SILENCE_S = 5.0


def arriving(requests: Iterator[Request], context: Any, size_bytes: int) -> Iterator[Request]:
    """The requests, within the time that `size_bytes` may take. Then it raises QuotaExceeded; silence ends the call."""
    allowed_s = transfer_s(size_bytes)
    deadline = time.monotonic() + allowed_s
    with ended_after(allowed_s + _SILENCE_S, context):
        for request in requests:
            if time.monotonic() > deadline:
                raise QuotaExceeded(
                    f"{size_bytes} bytes may take {allowed_s:.0f} s, and they took longer; send them again"
                )
            yield request
