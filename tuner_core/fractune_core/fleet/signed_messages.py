"""The messages that server and workers send each other through Redis, signed: work, results, and who is there.

Whoever can write to Redis may drop, delay and repeat them, and can neither invent nor alter one.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import time
from typing import Any, TypedDict, cast

from fractune_core.codec.plain_json import check_shape, from_json, read_json
from fractune_core.errors import FractuneError
from fractune_core.fleet.messages import WORK_BY_KIND, Event, Work, WorkerInfo
from fractune_core.fleet.redis_names import CLOCK_TOLERANCE_S, WORK_MAX_AGE_S

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


_EVENT = "a result"
_REPLAYED = "a result that somebody had read once more"
_GREETING = "the greeting of the server"


class _AnyWork(TypedDict):
    task: str


class _Dated(TypedDict):
    work: _AnyWork
    issued_at: float


class _Replayed(TypedDict):
    event: str
    issued_at: float


class Refused(FractuneError):
    """Work that no worker may do; the message says why."""


def seal_work(secret: bytes, queue: str, work: Work) -> str:
    """The work as a message of now, for this queue alone."""
    return sign_json(secret, _work_on(queue), {"work": work, "issued_at": time.time()})


def open_work(secret: bytes, queue: str, job_id: str, message: str | bytes) -> Work:
    """The work inside a message that came over `queue` in RQ's job `job_id`.

    Raises Refused for what was not signed by this fleet for this queue, lacks a field, came in another job, or is too
    old.
    """
    return open_dated_work(secret, queue, job_id, message)[0]


def open_dated_work(secret: bytes, queue: str, job_id: str, message: str | bytes) -> tuple[Work, float]:
    """As `open_work`, and when it was queued: seconds since 1970, by the clock of who queued it."""
    try:
        opened = open_signed_json(secret, _work_on(queue), message)
    except Unsigned as error:
        raise Refused(str(error)) from error
    work = _read_work(opened)
    if work["work_id"] != job_id:
        raise Refused(f"the message is of work {work['work_id']} and came in another job; it was copied")
    _check_age(time.time() - opened["issued_at"])
    return work, opened["issued_at"]


def _read_work(opened: Any) -> Work:
    """Raises Refused for a signed message that is not work of this version."""
    try:
        check_shape(_Dated, opened)
        check_shape(WORK_BY_KIND[opened["work"]["task"]], opened["work"])
    except (KeyError, ValueError) as error:
        raise Refused(f"no part here can read it ({error}); is a part of the fleet of another version?") from error
    return cast(Work, opened["work"])


def _check_age(age_s: float) -> None:
    if not age_s <= WORK_MAX_AGE_S:  # NaN too
        raise Refused(f"it was queued {age_s / 3600:.1f} h ago, and work is good for {WORK_MAX_AGE_S / 3600:g} h")
    if age_s < -CLOCK_TOLERANCE_S:
        raise Refused(
            f"it was queued {-age_s / 3600:.1f} h in the future; set the clocks of all hosts, which may differ by "
            f"{CLOCK_TOLERANCE_S / 3600:g} h"
        )


def seal_event(secret: bytes, event: Event) -> str:
    return sign_json(secret, _EVENT, event)


def open_event(secret: bytes, message: str | bytes) -> Event:
    """Raises Unsigned. What is inside was sent by this fleet; a part of another version may have sent it."""
    event = open_signed_json(secret, _EVENT, message)
    if not isinstance(event, dict):
        raise Unsigned(f"{_EVENT} is signed by this fleet and is no object")
    return cast(Event, event)


def seal_replayed(secret: bytes, message: str) -> str:
    """A result, as a worker sealed it, that an operator has the server read again."""
    return sign_json(secret, _REPLAYED, {"event": message, "issued_at": time.time()})


def open_replayed(secret: bytes, message: str | bytes) -> tuple[bytes, float]:
    """The result as a worker sealed it, and the age of the replay in seconds. Raises Unsigned."""
    opened = open_signed_json(secret, _REPLAYED, message)
    try:
        replayed = from_json(_Replayed, opened)
        event, age_s = replayed["event"].encode(errors="surrogateescape"), time.time() - replayed["issued_at"]
    except (OverflowError, ValueError) as error:
        raise Unsigned(f"{_REPLAYED} is signed by this fleet and cannot be read ({error})") from error
    if math.isnan(age_s):
        raise Unsigned(f"{_REPLAYED} has no time")
    return event, age_s


def seal_worker(secret: bytes, info: WorkerInfo) -> str:
    return sign_json(secret, _entry_of(info["name"]), info)


def open_worker(secret: bytes, name: str, message: str | bytes) -> WorkerInfo:
    """The entry under `worker_key(name)`. Raises Unsigned."""
    return cast(WorkerInfo, open_signed_json(secret, _entry_of(name), message))


def seal_greeting(secret: bytes) -> str:
    return sign_json(secret, _GREETING, {})


def check_greeting(secret: bytes, message: str | bytes) -> None:
    """Raises Unsigned when it was sealed with another secret."""
    open_signed_json(secret, _GREETING, message)


def _work_on(queue: str) -> str:
    return f"work on the queue {queue}"


def _entry_of(worker: str) -> str:
    return f"the entry of worker {worker}"
