"""Requests at 30 % load for a bundle and its peers: the same arrivals for all, in interleaved blocks."""

import random
import statistics
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from fractune_core.served import LOAD, poisson

_MOST_S = 3.0
"""of the requests to all sides together; a slow model needs longer"""
_FEWEST_BLOCKS, _MOST_BLOCKS = 2, 10
_FEWEST_REQUESTS, _REQUESTS, _MOST_REQUESTS = 3, 10, 100
"""of a block. A block with few requests has hardly any that wait, so a slow model gets fewer blocks"""


def blocks_at_load(loop_s: Sequence[float]) -> list[list[float]]:
    """Arrivals in seconds from the beginning of each block, at 30 % of the rate of the faster side.

    `loop_s` are seconds of one inference in a loop, by side.
    """
    rate_per_s = LOAD / min(loop_s)
    requests = int(_MOST_S / sum(max(1 / rate_per_s, side_s) for side_s in loop_s))
    blocks = _within(_FEWEST_BLOCKS, requests // _REQUESTS, _MOST_BLOCKS)
    size = _within(_FEWEST_REQUESTS, requests // blocks, _MOST_REQUESTS)
    draws = random.Random(0)
    return [poisson(rate_per_s, size, draws) for _ in range(blocks)]


def at_load_json(loop_s: Mapping[str, float], latency_secs: Mapping[str, Sequence[Sequence[float]]]) -> dict[str, Any]:
    """The rate, the number of requests to each side, and p50 in seconds by side.

    `loop_s` as for `blocks_at_load`; `latency_secs` are seconds from arrival to answer, by side and block.
    """
    return {
        "rate_per_s": LOAD / min(loop_s.values()),
        "requests": min(sum(map(len, blocks)) for blocks in latency_secs.values()),
        "p50_s": {side: statistics.median(chain(*blocks)) for side, blocks in latency_secs.items()},
    }


def _within(least: int, number: int, most: int) -> int:
    return max(least, min(number, most))
