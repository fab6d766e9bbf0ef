"""The clocks of a fleet's hosts: each part compares its own with that of Redis, which is the one that all of them see.

Work is dated by whoever hands it out and judged by whoever does it, so their clocks must not differ by more than
`fractune_core.fleet.messages.CLOCK_TOLERANCE_S`. A part that is off by half of that ends, and says by how much.
"""

from __future__ import annotations

import time

from fractune_core.errors import FractuneError
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
