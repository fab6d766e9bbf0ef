"""The data of RQ's jobs in Redis, unpacked within a limit of memory."""

from __future__ import annotations

import zlib

_MOST_BYTES = 64 << 20
"""Data in Redis is unsigned and compressed: a few bytes may claim any memory."""


def unpack(data: bytes) -> bytes:
    """The JSON text in the `data` of a job. Raises zlib.error, also for more than `_MOST_BYTES`."""
    stream = zlib.decompressobj()
    text = stream.decompress(data, _MOST_BYTES)
    if not stream.eof:
        raise zlib.error("it is incomplete or too long")
    return text
