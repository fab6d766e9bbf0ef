"""Measurers side by side, and builds beside them: company that a measurement may have, on purpose."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any

from tuner_core.records import TimingPolicy
from tuner_core.shares import Share
from workers.bench import Batch, Bench, Outcome
from workers.candidates import OperatorBuilder
from workers.owner import Owner

BUILDERS_AT_MOST = 8


def places(share: Share, count: int, available: Sequence[int]) -> list[list[int]]:
    """Cores for each of `count` measurers: apart while there are cores left, then from the first one on again."""
    if share.mechanism != "cpu":
        return [[] for _ in range(count)]
    turns = itertools.cycle(available)
    return [list(itertools.islice(turns, min(share.cores, len(available)))) for _ in range(count)]


class Lane:
    """A measurer: a bench, and the thread that owns its child. Raises ShareUnavailable."""

    def __init__(self, share: Share, cores: Sequence[int]) -> None:
        self.cores = list(cores)
        self._bench = Bench(share, cores)
        self.owner = Owner(self._bench.stop)

    def greet(self) -> Future[dict[str, Any]]:
        """What the child says of its share. The future raises ShareUnavailable."""

        def hello() -> dict[str, Any]:
            self._bench.greet()
            return self._bench.hello

        return self.owner.submit(hello)

    def time(self, batch: Batch, policy: TimingPolicy | None) -> Future[dict[str, Outcome]]:
        """Time every candidate under `policy`, or race them when there is none."""
        bench = self._bench
        return self.owner.submit(lambda: bench.timed(batch, policy) if policy else bench.trials(batch))


@contextlib.contextmanager
def builds_beside(builders: Sequence[OperatorBuilder], traces: Sequence[str], cores: Sequence[int]) -> Iterator[None]:
    """`builders` at work on `cores` until the block ends. They do not pass the gate: the disturbance is the purpose."""
    ended = threading.Event()
    busy = [threading.Event() for _ in builders]
    under_way = [builder.build_until(ended, each, traces, cores) for builder, each in zip(builders, busy, strict=True)]
    try:
        for each in busy:
            each.wait()
        yield
    finally:
        ended.set()
    for work in under_way:
        work.result()
