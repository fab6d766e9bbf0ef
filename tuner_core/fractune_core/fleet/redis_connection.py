"""Checks of a connection to Redis: its address, and the clock of this host against that of Redis.

All parts of a fleet see the clock of Redis, so each compares its own with it. Work is dated by one part and judged by
another, so their clocks must not differ by more than `CLOCK_TOLERANCE_S`. A part that is off by half of that ends, and
names the difference.
"""

import time

from fractune_core.access.addresses import without_password
from fractune_core.errors import BadRequest, FractuneError, RedisGone
from fractune_core.fleet.redis_names import CLOCK_TOLERANCE_S

CLOCK_LIMIT_S = CLOCK_TOLERANCE_S / 2
"""from Redis's clock; two that are within it are within the tolerance of each other"""


class ClockWrong(FractuneError):
    """The clock of this host, or that of Redis's, is wrong."""


def redis_time_s(answer: tuple[int, int]) -> float:
    """Seconds since 1970 by Redis's clock, from its answer to TIME."""
    secs, micros = answer
    return secs + micros / 1e6


def check_clock(who: str, redis_now_s: float) -> None:
    """Raises ClockWrong when the clock of this process differs from Redis's by more than CLOCK_LIMIT_S."""
    ahead_s = time.time() - redis_now_s
    if abs(ahead_s) > CLOCK_LIMIT_S:
        raise ClockWrong(
            f"the clock of {who} is {abs(ahead_s) / 3600:.2f} h {'ahead of' if ahead_s > 0 else 'behind'} that of "
            f"Redis, and {CLOCK_LIMIT_S / 3600:g} h are allowed; set the clocks of both hosts, then start it again"
        )


def no_redis(url: str, error: Exception) -> FractuneError:
    """The error for a Redis that does not answer at `url`, or not to this user, or for a wrong address."""
    shown = without_password(url)
    if isinstance(error, ValueError):  # whose text may quote a part of the password
        return BadRequest(
            f"--redis {shown}: not an address of a Redis; write redis://USER@HOST:PORT/DB or unix:///PATH"
        )
    return RedisGone(
        f"no Redis at {shown} ({error}); start it, name another by --redis, or check its user and the password file"
    )
