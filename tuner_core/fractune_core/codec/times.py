"""Times of day: seconds since 1970, protobuf's timestamps, and what people read."""

from __future__ import annotations

from datetime import UTC, datetime

from google.protobuf.timestamp_pb2 import Timestamp

from fractune_core.errors import BadRequest

END_OF_TIME_S = 253_402_300_800
"""since 1970: no timestamp is of the year 10000"""


def timestamp(seconds: float) -> Timestamp:
    """Seconds since 1970 as protobuf's timestamp. Raises BadRequest outside the years 1 to 9999."""
    stamp = Timestamp()
    try:
        stamp.FromNanoseconds(round(seconds * 1e9))
    except (ValueError, OverflowError):
        raise _no_time(f"{seconds:g} s") from None
    return stamp


def seconds(stamp: Timestamp) -> float:
    """Seconds since 1970. Raises BadRequest outside the years 1 to 9999."""
    try:
        return stamp.ToNanoseconds() / 1e9
    except ValueError:
        raise _no_time(f"{stamp.seconds} s and {stamp.nanos} ns") from None


def _no_time(what: str) -> BadRequest:
    return BadRequest(f"{what} after 1970 began is no time of the years 1 to 9999")


def when(stamp: Timestamp) -> datetime:
    """For people: a time in UTC."""
    return datetime.fromtimestamp(seconds(stamp), UTC)
