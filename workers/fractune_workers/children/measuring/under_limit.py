"""Whole models under the CPU limit of this process: each variant with as many threads as the cores it was tuned at.

A limit stops a model for a part of each period. So a loop lasts for several periods, and so do the requests of a round.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from functools import partial

from fractune_core.analysis.at_load import AtLoad
from fractune_core.arrivals import LOAD, poisson
from fractune_workers.children.measuring.at_load import ROUNDS, Finalist, here, interleaved
from fractune_workers.children.measuring.loops import Call
from fractune_workers.children.tvm_api.serving_thread import serving_thread

_LOOP_PERIODS, _PACED_PERIODS = 5, 10
"""of a round"""
_FEWEST_REQUESTS, _MOST_REQUESTS = 10, 200
"""of a round: with 100 in all there is a p99"""
_MOST_S = 120.0
"""of the requests to all finalists together"""
_FEWEST_ROUNDS = 6
"""an interval needs six"""


def time_under_limit(
    calls: Mapping[str, Call], threads: Mapping[str, int], cpus: Collection[int], period_s: float
) -> list[AtLoad]:
    """The variants `threads`, with their numbers of threads on `cpus`, interleaved: in a loop, then at 30 % of the rate
    of the fastest. All answer requests with the same arrivals. A slow model has fewer requests.
    """
    with ExitStack() as held:
        finalists = []
        for name, count in threads.items():
            run = held.enter_context(serving_thread(count, cpus))
            # A model with a pool is called from another thread, as in a service.
            placed = (run, calls[name]) if count == 1 else (here, partial(run, calls[name]))
            # The next one begins with the whole limit.
            finalists.append(Finalist(name, count, *placed, rest_s=period_s))
        for each, _ in interleaved(finalists, ROUNDS):
            each.loop_secs.append(each.time_loop(_LOOP_PERIODS * period_s))
        rate_per_s = LOAD / min(statistics.median(each.loop_secs) for each in finalists)
        rounds, draws = ROUNDS, random.Random(0)
        requests = min(_MOST_REQUESTS, max(_FEWEST_REQUESTS, round(rate_per_s * _PACED_PERIODS * period_s)))
        affordable = int(rate_per_s * _MOST_S / len(finalists))
        if requests * rounds > affordable:
            rounds, requests = _FEWEST_ROUNDS, max(1, affordable // _FEWEST_ROUNDS)
        arrivals_s = [poisson(rate_per_s, requests, draws) for _ in range(rounds)]
        for each, number in interleaved(finalists, rounds):
            each.answer(arrivals_s[number])
        for each in finalists:
            del each.loop_secs[rounds:]
    return [each.found for each in finalists]
