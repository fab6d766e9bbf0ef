"""Wall time and CPU time of each inference of a model, with several numbers of threads interleaved."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fractune.inference.comparing.interleaved import PAUSE_S, wait_for_quiet

_LOOP_S, _LEAST_CALLS, _MOST_CALLS = 0.1, 4, 200
"""of a loop in a round"""
_PACED_CALLS = 4
_LEAST_ROUNDS = 5


@dataclass
class ServiceTimes:
    """Seconds of single inferences with one number of threads."""

    loop_secs: list[float] = field(default_factory=list)
    """of inferences that follow one another at once"""
    loop_cpu_s: float = 0.0
    """CPU time of the whole process in these, all together"""
    paced_secs: list[float] = field(default_factory=list)
    """of inferences that follow a pause of `PAUSE_S`"""
    pause_cpu_s: float = 0.0
    """CPU time of the whole process in the pauses after these, all together"""


def time_services(calls: Mapping[int, Callable[[], Any]], rounds: int, most_s: float) -> dict[int, ServiceTimes]:
    """The times of one inference, by number of threads, over `rounds` interleaved rounds. After `most_s` seconds no
    further round begins, but at least five do. Every other round reverses the order.
    """
    times = {threads: ServiceTimes() for threads in calls}
    began_s = time.monotonic()
    for number in range(rounds):
        if number >= _LEAST_ROUNDS and time.monotonic() > began_s + most_s:
            break
        for threads in list(calls)[:: -1 if number % 2 else 1]:
            wait_for_quiet()
            calls[threads]()
            _loop(calls[threads], times[threads])
            _paced(calls[threads], times[threads])
    return times


def _loop(call: Callable[[], Any], times: ServiceTimes) -> None:
    used_s, spent_s, calls = time.process_time(), 0.0, 0
    while calls < _LEAST_CALLS or (calls < _MOST_CALLS and spent_s < _LOOP_S):
        start_s = time.perf_counter()
        call()
        secs = time.perf_counter() - start_s
        times.loop_secs.append(secs)
        spent_s += secs
        calls += 1
    times.loop_cpu_s += time.process_time() - used_s


def _paced(call: Callable[[], Any], times: ServiceTimes) -> None:
    time.sleep(PAUSE_S)
    for _ in range(_PACED_CALLS):
        start_s = time.perf_counter()
        call()
        times.paced_secs.append(time.perf_counter() - start_s)
        used_s = time.process_time()
        time.sleep(PAUSE_S)
        times.pause_cpu_s += time.process_time() - used_s
