"""The messages that server and workers send each other through Redis, signed: work, results, and who is there.

Whoever can write to Redis may drop, delay and repeat them, and can neither invent nor alter one.
"""

import hashlib
import hmac
import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypedDict

from fractune_core.codec.plain_json import checked, from_json, read_json, write_json
from fractune_core.errors import BadRequest, FractuneError
from fractune_core.fleet.messages import WORK_BY_KIND, Event, Work, WorkerInfo
from fractune_core.fleet.redis_names import CLOCK_TOLERANCE_S, PROTOCOL, WORK_MAX_AGE_S

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


class StreamedSignature:
    """As `sign` and `open_signed`, of a payload in pieces."""

    def __init__(self, secret: bytes, purpose: str) -> None:
        self._purpose = purpose
        self._hmac = hmac.new(secret, purpose.encode() + b"\0", hashlib.sha256)

    def add(self, piece: bytes) -> None:
        self._hmac.update(piece)

    @property
    def digest(self) -> bytes:
        """What stands in front of the pieces so far."""
        return self._hmac.digest()

    def opened(self, signed: Iterable[bytes]) -> Iterator[bytes]:
        """The payload of a signed message in pieces. Raises Unsigned behind the last piece: use none of them before."""
        head = b""
        for piece in signed:
            missing = _DIGEST_BYTES - len(head)
            head += piece[:missing]
            rest = piece[missing:]
            self.add(rest)
            yield rest
        if not hmac.compare_digest(head, self.digest):
            raise _unsigned(self._purpose)


def sign_json(secret: bytes, purpose: str, value: object) -> str:
    """`value` as JSON, its signature in front in hexadecimal, with a blank between: text to read, and to be carried."""
    text = write_json(value)
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


@dataclass(frozen=True)
class _Dated:
    work: dict[str, Any]
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
        dated = checked(_Dated, open_signed_json(secret, _work_on(queue), message))
        work: Work = from_json(WORK_BY_KIND[dated.work["task"]], dated.work)
    except Unsigned as error:
        raise Refused(str(error)) from error
    except (BadRequest, KeyError, TypeError, ValueError) as error:
        raise Refused(f"no part here can read it ({error}); is a part of the fleet of another version?") from error
    if work.work_id != job_id:
        raise Refused(f"the message is of work {work.work_id} and came in another job; it was copied")
    _check_age(time.time() - dated.issued_at)
    return work, dated.issued_at


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


def open_event(secret: bytes, message: str | bytes) -> dict[str, Any]:
    """An Event as JSON. Raises Unsigned. A part of this fleet has sent it, perhaps of another version."""
    event = open_signed_json(secret, _EVENT, message)
    if not isinstance(event, dict):
        raise Unsigned(f"{_EVENT} is signed by this fleet and is no object")
    return event


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
    if not math.isfinite(age_s):
        raise Unsigned(f"{_REPLAYED} has no time")
    return event, age_s


def seal_worker(secret: bytes, info: WorkerInfo) -> str:
    return sign_json(secret, _entry_of(info.name), info)


def open_worker(secret: bytes, name: str, message: str | bytes) -> WorkerInfo:
    """The entry under `worker_key(name)`. Raises Unsigned, and ValueError for one of another version of fractune."""
    opened = open_signed_json(secret, _entry_of(name), message)
    protocol = checked(dict[str, Any], opened).get("protocol")
    if protocol != PROTOCOL:
        raise ValueError(
            f"it uses protocol {protocol!r}, this server {PROTOCOL}; install the same version of fractune for both"
        )
    return checked(WorkerInfo, opened)


def seal_greeting(secret: bytes) -> str:
    return sign_json(secret, _GREETING, {})


def check_greeting(secret: bytes, message: str | bytes) -> None:
    """Raises Unsigned when it was sealed with another secret."""
    open_signed_json(secret, _GREETING, message)


def _work_on(queue: str) -> str:
    return f"work on the queue {queue}"


def _entry_of(worker: str) -> str:
    return f"the entry of worker {worker}"
