"""The variant that serves a model at a share, by measurements of the whole model."""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, repeat
from typing import Any, Literal

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
