"""Times of whole models: at the load of a service, of the variant that serves, and where other programs disturbed."""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, repeat
from typing import Any, Literal, TypeVar

from fractune_core.codec.plain_json import JsonObject

LOAD = 0.3
"""of the requests a second that a service answers in a loop: latencies of requests are reported and compared there"""
LOAD_TEXT = f"{100 * LOAD:g} % load"


def poisson(rate_per_s: float, count: int, draws: random.Random) -> list[float]:
    """Arrivals of a Poisson process, in seconds."""
    return list(accumulate(map(draws.expovariate, repeat(rate_per_s, count))))


def latencies(call: Callable[[], Any], arrivals_s: Sequence[float]) -> list[float]:
    """Seconds from the arrival of each request to its answer by `call`, the wait for requests before it included.

    `arrivals_s` are seconds from now, ascending. A request for which the service waits arrives when the timer wakes
    the thread: the timer's delay is not the model's.
    """
    found, began_s = list[float](), time.perf_counter()
    for arrival_s in arrivals_s:
        arrived_s, now_s = began_s + arrival_s, time.perf_counter()
        if now_s < arrived_s:
            time.sleep(arrived_s - now_s)
            arrived_s = time.perf_counter()
        call()
        found.append(time.perf_counter() - arrived_s)
    return found


ServiceGoal = Literal["latency", "throughput"]
"""of a model in a service: the least latency of requests that arrive at random, at 30 % load, or the most requests in a
loop"""


@dataclass(frozen=True)
class Served(JsonObject):
    """The best variant at a share for one goal, and its times in seconds."""

    variant: str
    threads: int
    loop_s: float
    """of one inference in a loop"""
    p50_s: float
    """of a request at 30 % load, from its arrival to its answer"""
    p99_s: float | None
    """None with fewer than 100 requests"""


# Times of whole models on a CPU that other programs disturbed. Other programs make a model slower and never faster. So
# a disturbed time is the most that the model takes. If the model lost nothing but cores, it takes that time times the
# part of its cores that others left. Bounds reach down to there.

_MOST_CORES = 0.2
"""that other programs may have, on average: a stack on the same machine uses some of it"""
_LEAST_KEPT = 0.01
"""CPU time is counted in steps of 10 ms, so others may seem to have had every core"""
TRIES, MOST_WAIT_S = 3, 60.0
"""of one timing"""
_LOOK_S = 0.5

_T = TypeVar("_T")


def is_disturbed(others_cores: float) -> bool:
    """Whether times may be too long that were taken while other programs had `others_cores` cores of the share, on
    average. Such times choose nothing.
    """
    return others_cores > _MOST_CORES


def kept_part(others_cores: float, cores: int) -> float:
    """The part of a share's `cores` that a model kept while it was timed; 1.0 if it was not disturbed."""
    return max(_LEAST_KEPT, 1 - others_cores / cores) if is_disturbed(others_cores) else 1.0


def widened(low: float, high: float, kept: float, other_kept: float) -> tuple[float, float]:
    """The interval of a ratio of two times, for times that were measured with these parts of the cores."""
    return low * kept, high / other_kept


def timed_quietly(timed: Callable[[], tuple[_T, float]], others_cores: Callable[[float], float]) -> tuple[_T, float]:
    """The least disturbed of at most three results of `timed`, and the cores that others had meanwhile.

    `others_cores` looks for that many seconds how many cores others have. After a disturbed result it looks until they
    have few: as long as the first timing took, and 60 s at most. Then the result is taken again.
    """
    began_s = time.monotonic()
    best = timed()
    took_s = time.monotonic() - began_s
    until_s = time.monotonic() + min(took_s, MOST_WAIT_S)
    for _ in range(TRIES - 1):
        if not is_disturbed(best[1]) or not _gets_quiet(others_cores, until_s):
            break
        best = min(best, timed(), key=lambda found: found[1])
    return best


def _gets_quiet(others_cores: Callable[[float], float], until_s: float) -> bool:
    """Look at least once, and until a monotonic time."""
    while is_disturbed(others_cores(_LOOK_S)):
        if time.monotonic() >= until_s:
            return False
    return True
