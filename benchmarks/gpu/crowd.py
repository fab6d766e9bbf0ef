"""The step `crowd`: the same candidates by 1, 2 and 4 measurers at a quarter of the GPU: how many a second, and whether
they rank as those of one.
"""

import contextlib
import queue
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.gpu.step import given_here
from fractune_core.analysis.noise import kendall_tau_b, top1_regret
from fractune_core.errors import FractuneError
from fractune_core.records import Status
from fractune_core.shares import Share
from fractune_workers.measuring.session import ArtifactBatch, MeasurementSession, TimeOver
from fractune_workers.packs.measuring import batch_of

SHARE = "mps:25"
_CROWDS = (1, 2, 4)
_CANDIDATES = 64


def main() -> None:
    given = given_here("measurers side by side")
    found: dict[str, Any] = {}
    alone: Mapping[str, float] = {}
    with given.pack("table") as (pack, folder):
        operator = next(iter(pack.operators()))
        batch = batch_of(pack, operator, operator.candidates[:_CANDIDATES])
        for left, count in zip(range(len(_CROWDS), 0, -1), _CROWDS, strict=True):
            times, took_s = _measured(folder, batch, count, time.monotonic() + given.left_s / left)
            alone = alone or times
            found[str(count)] = {
                "candidates": len(times),
                "seconds": took_s,
                "per_s": len(times) / took_s,
                "tau": kendall_tau_b(alone, times),
                "regret": top1_regret(alone, times) if alone else None,
                "secs": times,
            }
            print(f"{count} measurers: {len(times)} candidates in {took_s:.1f} s", flush=True)
            given.write("crowd", {"share": SHARE, "operator": operator.name, "measurers": found})


def _measured(folder: Path, batch: ArtifactBatch, count: int, end_s: float) -> tuple[dict[str, float], float]:
    """Median seconds by candidate, as many as come before `end_s`, and the time that all took."""
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    for name in batch.codes:
        waiting.put(name)
    with contextlib.ExitStack() as held:
        sessions = [held.enter_context(opened(folder)) for _ in range(count)]
        with ThreadPoolExecutor(count) as pool:
            list(pool.map(MeasurementSession.handshake, sessions))
            began_s = time.monotonic()
            parts = pool.map(lambda session: _raced(session, batch, waiting, end_s), sessions)
            found = {name: secs for part in parts for name, secs in part.items()}
        return found, time.monotonic() - began_s


def _raced(
    session: MeasurementSession, batch: ArtifactBatch, waiting: queue.SimpleQueue[str], end_s: float
) -> dict[str, float]:
    found: dict[str, float] = {}
    session.end_s = end_s
    with contextlib.suppress(queue.Empty, TimeOver):
        while True:
            name = waiting.get_nowait()
            outcome = session.trials(batch, among=[name])[name]
            if outcome.status is Status.OK:
                found[name] = outcome.median_s
    return found


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[MeasurementSession]:
    """A session at a quarter of the GPU; its share is not proved yet."""
    session = MeasurementSession(Share.parse(SHARE), [], packed=folder)
    try:
        yield session
    finally:
        with contextlib.suppress(FractuneError):
            session.stop()


if __name__ == "__main__":
    main()
