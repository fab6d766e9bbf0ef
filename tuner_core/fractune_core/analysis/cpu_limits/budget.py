"""CPU time under a quota, as the kernel gives it to a group of threads.

1. Each period fills the budget to the quota, or above it by the burst at most.
2. When the budget is used up, all threads go on until the kernel's next tick, and then stop. The next period pays for
   this time.
3. Each core takes the budget in slices. Of several threads that work on one request, one is stopped first. The others
   use up their slices in wait for it, and go on until their ticks. This CPU time is lost.

Times are on a clock that stands still while the threads are stopped. On this clock a stop takes no time, and the
periods come earlier by the time stopped so far.
"""

from __future__ import annotations

import math
import random

from fractune_core.analysis.cpu_limits.limits import CpuLimit


class Budget:
    """The budget of a group in which `threads` threads work together on a request."""

    def __init__(self, limit: CpuLimit, threads: int, draws: random.Random) -> None:
        self.stopped_s = 0.0
        self._limit = limit
        self._others = threads - 1
        self._draws = draws
        self._period_s = limit.period_us / 1e6
        self._quota_s = limit.quota_us / 1e6
        self._full_s = (limit.quota_us + limit.burst_us) / 1e6
        self._left_s = self._quota_s
        self._refill = self._period_s * draws.random()
        self._draw()

    def burn(self, cores: float, now: float, until: float) -> float:
        """Keep that many cores busy from `now` on. Returns `until`, or the earlier time of a stop that is over then."""
        if not cores:
            self._rest(until)
            return until
        while True:
            stop = max(now, now + (self._left_s - self._in_slices_s) / cores + self._delay_s)
            if stop < until and stop < self._refill:
                self._left_s -= cores * (stop - now) + self._in_slices_s + self._overrun_s
                self._stop(stop)
                return stop
            if until < self._refill:
                self._left_s -= cores * (until - now)
                return until
            self._left_s -= cores * (self._refill - now)
            now = self._refill
            self._fill(1)

    def _rest(self, until: float) -> None:
        if until > self._refill:
            self._fill(math.ceil((until - self._refill) / self._period_s))

    def _stop(self, now: float) -> None:
        """Until a period leaves something of the budget."""
        periods = max(1, math.floor(1 - self._left_s / self._quota_s))
        stopped_s = self._refill - now + (periods - 1) * self._period_s
        self._fill(periods)
        self._refill -= stopped_s
        self.stopped_s += stopped_s
        self._draw()

    def _fill(self, periods: int) -> None:
        self._left_s = min(self._left_s + periods * self._quota_s, self._full_s)
        self._refill += periods * self._period_s

    def _draw(self) -> None:
        """By chance, for the next stop: the first thread's way to its tick, and the CPU time of the others after it."""
        self._delay_s = self._limit.tick_s * self._draws.random()
        self._in_slices_s = self._others * self._limit.slice_s * self._draws.random()
        self._overrun_s = self._others * self._limit.tick_s * self._draws.random()
