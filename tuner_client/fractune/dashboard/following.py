"""One reader of a server for all tabs: it asks once a second while somebody looks, and keeps the answers.

So the server's work does not depend on the number of tabs.
"""

import asyncio
import logging
import math
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, repeat
from typing import Any, TypeVar

from fractune.features.client import Client
from fractune.features.log.log import FilterOptions, Records
from fractune.server.job_status import Fleet, JobStatus, OfferedShare, Worker
from fractune.server.pace import Pace
from fractune_core.errors import FractuneError, ServerUnreachable
from fractune_core.jobs import JobState
from fractune_core.records import Kind, Status, TuningRecord

MOST_TRIALS = 20_000
"""of one job, the newest; they bound the memory of the process"""
_PAGES = (1, 10, 100, 1000)
"""sizes of the pages that are read; usually the newest trial is known already"""
_LATER = 5
"""pages of older ones that a call reads"""


@dataclass(frozen=True)
class Trial:
    """One measured candidate."""

    record_id: str
    measured_at: float
    share: str
    workload_hash: str
    median_s: float
    """infinite for a failure"""


@dataclass(frozen=True)
class Point:
    """A new best."""

    trials: int
    """measured at this share until then"""
    after_s: float
    """since the job was created"""
    best_s: float


class JobTrials:
    """The trials of a job. Only those that are new since the last call are asked for. Thread-safe."""

    def __init__(self, job: str, namespace: str = "") -> None:
        self._only: FilterOptions = {"job": job, "kind": Kind.TRIAL, "namespace": namespace}
        self._trials: tuple[Trial, ...] = ()
        self._older = ""
        """the page of those that are not read yet"""
        self._reading = threading.Lock()
        """Two readings at the same time would both add what is new."""

    @property
    def is_whole(self) -> bool:
        """Whether none is left to read."""
        return not self._older or len(self._trials) >= MOST_TRIALS

    def update(self, client: Client) -> tuple[Trial, ...]:
        """Oldest first, at most `MOST_TRIALS`. The first call reads a thousand, which takes a fifth of a second, and
        each later one some thousands more.
        """
        with self._reading:
            found, older = self._read(client)
            if found:
                in_order = sorted((*self._trials, *found), key=lambda each: each.measured_at)
                self._trials = tuple(in_order[-MOST_TRIALS:])
            self._older = older
            return self._trials

    def _read(self, client: Client) -> tuple[list[Trial], str]:
        """From the newest back to one that is known, then older ones, and the page of the rest. Nothing is kept of a
        reading that fails on its way.
        """
        known = {each.record_id for each in self._trials}
        found: dict[str, Trial] = {}

        def read(size: int, page: str) -> Records:
            records = client.log.query(limit=size, page=page, **self._only)
            found.update((each.record_id, _trial(each)) for each in records if each.record_id not in known)
            return records

        page, older = "", self._older
        for number, size in enumerate(chain(_PAGES, repeat(_PAGES[-1])), 1):
            records = read(size, page)
            page = records.next_page
            if not page or len(found) >= MOST_TRIALS or any(each.record_id in known for each in records):
                break
            if not known and number == len(_PAGES):
                older = page
                break
        for _ in range(_LATER if known else 0):
            if not older or len(known) + len(found) >= MOST_TRIALS:
                break
            older = read(_PAGES[-1], older).next_page
        return list(found.values()), older


def _trial(record: TuningRecord) -> Trial:
    seconds = record.median_s if record.status is Status.OK else float("inf")
    return Trial(record.record_id, record.measured_at, record.share, record.workload_hash, seconds)


def model_progress(job: JobStatus, trials: Sequence[Trial], share: str) -> list[Point]:
    """The sum of the operators' best times, each as often as the model has it. It begins when all have one; those that
    the job did not try have their time in the log.
    """
    weights = {each.workload_hash: each.weight for each in job.operators if each.selected}
    tried = {trial.workload_hash for _, trial in _at(trials, share) if math.isfinite(trial.median_s)}
    best = {each.workload_hash: each.best_s[share] for each in job.operators if share in each.best_s and each.selected}
    best = {workload: secs for workload, secs in best.items() if workload not in tried}
    points, total = [], sum(weights[workload] * secs for workload, secs in best.items())
    for number, trial in _at(trials, share):
        workload, before = trial.workload_hash, best.get(trial.workload_hash, math.inf)
        if workload in weights and trial.median_s < before:
            best[workload] = trial.median_s
            total += weights[workload] * (trial.median_s - (before if math.isfinite(before) else 0.0))
            if len(best) == len(weights):
                points.append(Point(number, trial.measured_at - job.created_at, total))
    return points


def operator_progress(job: JobStatus, trials: Sequence[Trial], share: str, workload: str) -> list[Point]:
    """The best time of one call of an operator."""
    best, points = float("inf"), []
    for number, trial in _at(trials, share):
        if trial.workload_hash == workload and trial.median_s < best:
            best = trial.median_s
            points.append(Point(number, trial.measured_at - job.created_at, best))
    return points


def paced(job: JobStatus, trials: Sequence[Trial], jobs: Sequence[JobStatus]) -> JobStatus:
    """With its pace: what its trials gained, and what each phase took in the newest job of the same model in `jobs`."""
    past = (each for each in jobs if each.state is JobState.DONE and each.model == job.model and each.name != job.name)
    past_s = next((each.progress.phases_s for each in past), {})
    found = [(point, share) for share in job.tuned_at for point in model_progress(job, trials, share)]
    sums: list[tuple[int, Mapping[str, float]]] = []
    now: dict[str, float] = {}
    for point, share in sorted(found, key=lambda each: each[0].after_s):
        now = now | {share: point.best_s}
        if len(now) == len(job.tuned_at):
            sums.append((point.trials, now))
    return replace(job, pace=Pace(past_s=past_s, sums=sums))


def _at(trials: Sequence[Trial], share: str) -> Iterator[tuple[int, Trial]]:
    return enumerate((each for each in trials if each.share == share), 1)


_log = logging.getLogger(__name__)
PERIOD_S = 1.0
_LOOKED_S = 5.0
"""without a tab that listens, a request keeps the reader awake for this long"""
_JOBS = 100
LOST_S = 900.0
"""a lost worker is shown for this long"""
RATES_S = 600.0
"""the curve of trials a second shows so much of the past"""
_MOST_KEPT = 128
"""answers, to be shown while the server is away"""

_T = TypeVar("_T")


@dataclass(frozen=True)
class LostWorker:
    """A worker that was lost."""

    worker: Worker
    """as it was last seen"""
    seen_at: float
    """when, in seconds since 1970, UTC"""


@dataclass(frozen=True)
class Snapshot:
    """The server at one moment."""

    address: str
    taken_at: float = 0.0
    """seconds since 1970, UTC"""
    jobs: tuple[JobStatus, ...] = ()
    """the newest, without their operators"""
    fleet: Fleet = field(default_factory=Fleet)
    shares: tuple[OfferedShare, ...] = ()
    lost_workers: tuple[LostWorker, ...] = ()
    """of the last minutes, the newest first: as far as somebody looked meanwhile"""
    rates: tuple[tuple[float, float], ...] = ()
    """trials a second of all jobs by time, of the last minutes in which somebody looked"""
    lost: str = ""
    """why the server did not answer; empty if it did. The rest is then as it was"""

    @property
    def trials_per_s(self) -> float:
        """Of all jobs that search."""
        return sum(each.progress.trials_per_s for each in self.jobs if each.state is JobState.TUNING)

    @property
    def identity(self) -> tuple[Any, ...]:
        """Another one means that something to be shown has changed."""
        jobs = tuple((each.name, each.revision) for each in self.jobs)
        workers = tuple((each.name, each.state) for each in self.fleet.workers)
        return jobs, workers, self.fleet.waiting, self.shares, self.lost


@dataclass
class Follower:
    """Reads `client` in threads. Its methods belong to one event loop."""

    client: Client
    snapshot: Snapshot = field(init=False)
    number: int = 0
    """of the present state; it grows with each change"""

    def __post_init__(self) -> None:
        self.snapshot = Snapshot(self.client.address)
        self._changed = asyncio.Condition()
        self._reading = asyncio.Lock()
        self._has_ended = False
        self._listeners = 0
        self._looked_at = 0.0
        self._read_at = 0.0
        self._answers: dict[Any, Any] = {}
        self._asking: dict[Any, asyncio.Lock] = {}
        self._kept: dict[Any, Any] = {}

    async def run(self) -> None:
        """Read once a second while somebody looks, until cancelled."""
        while True:
            await asyncio.sleep(PERIOD_S)
            if self._listeners or time.monotonic() - self._looked_at < _LOOKED_S:
                try:
                    await self._read()
                except Exception:  # noqa: BLE001  the tabs would wait for a change for ever
                    _log.exception("the server could not be read")

    async def now(self) -> Snapshot:
        """The server as it is, no older than the period."""
        self._looked_at = time.monotonic()
        async with self._reading:
            is_fresh = time.monotonic() - self._read_at < 2 * PERIOD_S
        if not is_fresh:
            await self._read()
        return self.snapshot

    async def answer(self, key: Any, ask: Callable[[Client], _T]) -> _T:
        """What `ask` finds, asked once a period for all who want it. While the server is away, what it found last.

        Raises what `ask` raises.
        """
        await self.now()
        answers, lock = self._answers, self._asking.setdefault(key, asyncio.Lock())
        async with lock:
            if key not in answers:
                answers[key] = await self._found(key, ask)
        found: _T = answers[key]
        return found

    async def _found(self, key: Any, ask: Callable[[Client], _T]) -> _T:
        if not (self.snapshot.lost and key in self._kept):
            try:
                self._keep(key, await asyncio.to_thread(ask, self.client))
            except ServerUnreachable as error:
                self.snapshot = replace(self.snapshot, lost=str(error))
                if key not in self._kept:
                    raise
        kept: _T = self._kept[key]
        return kept

    def _keep(self, key: Any, found: Any) -> None:
        self._kept.pop(key, None)  # the newest is the last one
        self._kept[key] = found
        if len(self._kept) > _MOST_KEPT:
            del self._kept[next(iter(self._kept))]

    async def changes(self) -> AsyncGenerator[int]:
        """The number of each state, from the present one on, until `end`."""
        self._listeners += 1
        try:
            seen = -1
            while True:
                async with self._changed:
                    while self.number == seen and not self._has_ended:
                        await self._changed.wait()
                    if self._has_ended:
                        return
                    seen = self.number
                yield seen
        finally:
            self._listeners -= 1

    async def end(self) -> None:
        """End all `changes`, and the calls in progress: they would hold the process for as long as a server hangs."""
        async with self._changed:
            self._has_ended = True
            self._changed.notify_all()
        self.client.close()

    async def _read(self) -> None:
        async with self._reading:
            found = await self._read_server()
            self._read_at = time.monotonic()
            has_changed = found.identity != self.snapshot.identity
            self.snapshot = found
            self._answers, self._asking = {}, {}
        if has_changed:
            async with self._changed:
                self.number += 1
                self._changed.notify_all()

    async def _read_server(self) -> Snapshot:
        """By three calls at once: a fleet of a thousand workers takes the server a tenth of a second."""
        ask = asyncio.to_thread
        try:
            jobs, fleet, shares = await asyncio.gather(
                ask(self.client.jobs, limit=_JOBS), ask(self.client.fleet), ask(self.client.shares)
            )
            found = Snapshot(self.client.address, time.time(), tuple(jobs), fleet, tuple(shares))
            return _with_past(found, self.snapshot)
        except FractuneError as error:
            return replace(self.snapshot, lost=str(error))


def _with_past(now: Snapshot, before: Snapshot) -> Snapshot:
    """With what the snapshots before knew: workers that are gone, and rates."""
    live = {each.name for each in now.fleet.workers}
    gone = [LostWorker(each, before.taken_at) for each in before.fleet.workers if each.name not in live]
    known = [each for each in before.lost_workers if each.worker.name not in live]
    lost = [each for each in (*gone, *known) if now.taken_at - each.seen_at <= LOST_S]
    rates = [each for each in before.rates if now.taken_at - each[0] <= RATES_S]
    return replace(now, lost_workers=tuple(lost), rates=(*rates, (now.taken_at, now.trials_per_s)))
