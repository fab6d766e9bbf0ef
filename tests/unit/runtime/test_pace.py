"""Steps without a rest under a CPU limit between one core and two, on clocks that only steps move."""

from collections.abc import Iterator

import pytest

from fractune_core.host.cpus import Quota
from fractune_runtime.runner import Pace, thread_limit
from fractune_runtime.tvm_runtime.runtime import load_runtime

QUOTA = Quota(150_000, 100_000)
THREADS = 2


class Steps:
    def __init__(self, one_s: float, all_s: float) -> None:
        self.now = 0.0, 0.0
        self.ends: list[tuple[float, float]] = []
        """seconds, and those of CPU time"""
        self._secs = {1: one_s, THREADS: all_s}

    def step(self) -> None:
        threads = thread_limit()[0]()
        secs = self._secs[threads]
        self.now = self.now[0] + secs, self.now[1] + threads * secs
        self.ends.append(self.now)


@pytest.fixture(autouse=True)
def pool() -> Iterator[None]:
    load_runtime()
    read, write = thread_limit()
    before = read()
    write(THREADS)
    yield
    assert read() == THREADS, "a step leaves the thread as it was"
    write(before)


def per_s(one_s: float, all_s: float, monkeypatch: pytest.MonkeyPatch) -> tuple[float, Steps]:
    steps = Steps(one_s, all_s)
    monkeypatch.setattr(Pace, "_now", staticmethod(lambda: steps.now))
    pace = Pace(QUOTA)
    while steps.now[0] < 10:
        pace.step(steps.step)
    return len(steps.ends) / steps.now[0], steps


@pytest.mark.parametrize(("one_s", "all_s"), [(0.003, 0.002), (0.0042, 0.0028), (0.039, 0.028)])
def test_steps_use_the_limit_and_stay_below_it(one_s: float, all_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    rate, steps = per_s(one_s, all_s, monkeypatch)
    assert rate > 1.03 * max(1 / one_s, QUOTA.cores / THREADS / all_s), "neither number of threads alone is as fast"
    assert 0.95 * QUOTA.cores < steps.now[1] / steps.now[0] < QUOTA.cores
    for begin, (wall_s, cpu_s) in enumerate(steps.ends):
        within = [spent - cpu_s for at, spent in steps.ends[begin : begin + 60] if at - wall_s <= 0.1]
        assert max(within) < 0.15 + 0.02 + THREADS * all_s / 2, "a period of any phase has the budget, or little more"


def test_steps_that_are_slower_with_all_threads_take_one(monkeypatch: pytest.MonkeyPatch) -> None:
    rate, _ = per_s(0.002, 0.003, monkeypatch)
    assert rate > 0.95 / 0.002
