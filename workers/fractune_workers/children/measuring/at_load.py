"""Whole models at 30 % load: the fastest variants of a bundle, with one thread too, answer requests at random moments.

They run as a service runs them. With several threads, each request is handed over to the first thread of a pool. With
one thread, the caller runs the model itself.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from fractune_core.analysis.at_load import AtLoad, are_decided
from fractune_core.names import UNTUNED_VARIANT
from fractune_core.served import LOAD, latencies, poisson
from fractune_workers.children.measuring.loops import MIN_REPEAT_S, Call, secs_of_one
from fractune_workers.children.tvm_api.serving_thread import Run, serving_thread

_FINALISTS = 3
_CLOSE = 1.5
"""times in a loop of the fastest variant: a variant that takes longer is not timed at load"""
ROUNDS, _FEWEST_ROUNDS = 11, 6
"""an interval needs six"""
_REQUESTS, _P99_REQUESTS = 10, 100
"""of a round at most, and in all for a p99"""
_MOST_S = 5.0
"""of the requests to all finalists together"""
_REST_S = 0.005
"""in which the threads of another pool fall asleep"""


@dataclass
class Finalist:
    """A variant with a number of threads, and its times so far."""

    variant: str
    threads: int
    run: Run
    """the result of a function, on the thread where requests arrive"""
    call: Call
    rest_s: float = _REST_S
    """pause before it is timed"""
    first_s: float = math.inf
    """of one inference in a loop, before the rounds; infinite = not known"""
    loop_secs: list[float] = field(default_factory=list)
    latency_secs: list[float] = field(default_factory=list)

    @property
    def found(self) -> AtLoad:
        return AtLoad(self.variant, self.threads, tuple(self.loop_secs), tuple(self.latency_secs))

    def time_loop(self, at_least_s: float = MIN_REPEAT_S) -> float:
        secs: float = self._rested(partial(secs_of_one, self.call, at_least_s))
        return secs

    def answer(self, arrivals_s: Sequence[float]) -> None:
        self.latency_secs += self._rested(partial(latencies, self.call, arrivals_s))

    def take_round(self, arrivals_s: Sequence[float]) -> None:
        """A loop, then the requests."""
        self.loop_secs.append(self.time_loop())
        self.latency_secs += self.run(partial(latencies, self.call, arrivals_s))

    def _rested(self, timed: Callable[[], Any]) -> Any:
        time.sleep(self.rest_s)
        self.run(self.call)
        return self.run(timed)


def time_at_load(
    calls: Mapping[str, Call], loop_s: Mapping[str, float], own: str, cpus: Collection[int]
) -> list[AtLoad]:
    """The fastest of the variants `calls`, which take `loop_s` seconds in a loop. The variant `own` of the share comes
    first. All answer requests with the same arrivals, at 30 % of the rate of the fastest in a loop. Empty for a model
    that is too slow for six requests in the time.

    In a round each runs in a loop, then answers some requests. With too few requests for a p99, the rounds end as soon
    as no further one can change a choice.

    `cpus` are those of the share, empty for a GPU: there all run on this thread, which launches on the share's stream.
    """
    with ExitStack() as threads:
        finalists = _finalists(calls, loop_s, own, cpus, threads)
        rate_per_s = LOAD / min(each.first_s for each in finalists)
        requests = int(rate_per_s * _MOST_S / len(finalists))
        rounds = min(ROUNDS, requests)
        if rounds < _FEWEST_ROUNDS:
            return []
        draws = random.Random(0)
        arrivals_s = [poisson(rate_per_s, min(_REQUESTS, requests // rounds), draws) for _ in range(rounds)]
        has_p99 = sum(map(len, arrivals_s)) >= _P99_REQUESTS
        for number in range(rounds):
            for each in in_turn(finalists, number):
                each.take_round(arrivals_s[number])
            found = [each.found for each in finalists]
            if number + 1 >= _FEWEST_ROUNDS and not has_p99 and are_decided(found, rounds):
                break
    return found


def _finalists(
    calls: Mapping[str, Call], loop_s: Mapping[str, float], own: str, cpus: Collection[int], threads: ExitStack
) -> list[Finalist]:
    fastest = _fastest(loop_s, own)
    if not cpus:
        return [Finalist(name, 1, here, calls[name], first_s=loop_s[name]) for name in fastest]
    alone = threads.enter_context(serving_thread(1, cpus))
    if len(cpus) == 1:
        return [Finalist(name, 1, alone, calls[name], first_s=loop_s[name]) for name in fastest]
    pool = threads.enter_context(serving_thread(len(cpus), cpus))
    finalists = [Finalist(name, len(cpus), here, partial(pool, calls[name]), first_s=loop_s[name]) for name in fastest]
    with_one = [Finalist(name, 1, alone, call) for name, call in calls.items() if name != UNTUNED_VARIANT]
    for each in with_one:
        each.first_s = each.time_loop()
    best = min(with_one, key=lambda each: each.first_s, default=None)
    if best is None or best.first_s > _CLOSE * min(loop_s.values()):
        return finalists
    return [*finalists[: _FINALISTS - 1], best]


def _fastest(loop_s: Mapping[str, float], own: str) -> list[str]:
    most_s = _CLOSE * min(loop_s.values())
    close = sorted((name for name in loop_s if loop_s[name] <= most_s), key=lambda name: (name != own, loop_s[name]))
    return close[:_FINALISTS]


def here(function: Callable[[], Any]) -> Any:
    return function()


def interleaved(finalists: Sequence[Finalist], rounds: int) -> Iterator[tuple[Finalist, int]]:
    for number in range(rounds):
        for each in in_turn(finalists, number):
            yield each, number


def in_turn(finalists: Sequence[Finalist], number: int) -> Sequence[Finalist]:
    """In the order of the round with this number: the last one of a round begins the next."""
    return finalists[:: -1 if number % 2 else 1]
