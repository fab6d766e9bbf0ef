"""How a job's best came down: over its trials, and over time."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, repeat

from fractune.features.client import Client
from fractune.server.job_status import JobStatus
from fractune_core.records import Kind, Status, TuningRecord

MOST_TRIALS = 20_000
"""of one job, the newest; they bound the memory of the process"""
_PAGES = (1, 10, 100, 1000)
"""sizes of the pages that are read; usually the newest trial is known already"""


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

    def __init__(self, job: str) -> None:
        self._job = job
        self._trials: tuple[Trial, ...] = ()
        self._reading = threading.Lock()
        """Two readings at the same time would both add what is new."""

    def update(self, client: Client) -> tuple[Trial, ...]:
        """Oldest first, at most `MOST_TRIALS`."""
        with self._reading:
            found = self._new(client)
            if found:
                in_order = sorted((*self._trials, *found), key=lambda each: each.measured_at)
                self._trials = tuple(in_order[-MOST_TRIALS:])
            return self._trials

    def _new(self, client: Client) -> list[Trial]:
        """From the newest back to one that is known. Nothing is kept of a reading that fails on its way."""
        known = {each.record_id for each in self._trials}
        found: dict[str, Trial] = {}
        page = ""
        for size in chain(_PAGES, repeat(_PAGES[-1])):
            records = client.log.query(job=self._job, kind=Kind.TRIAL, limit=size, page=page)
            found |= {each.record_id: _trial(each) for each in records if each.record_id not in known}
            page = records.next_page
            if not page or len(found) >= MOST_TRIALS or any(each.record_id in known for each in records):
                break
        return list(found.values())


def _trial(record: TuningRecord) -> Trial:
    seconds = record.median_s if record.status is Status.OK else float("inf")
    return Trial(record.record_id, record.measured_at, record.share, record.workload_hash, seconds)


def model_progress(job: JobStatus, trials: Sequence[Trial], share: str) -> list[Point]:
    """The sum of the operators' best times, each as often as the model has it. It begins when all have one."""
    weights = {each.workload_hash: each.weight for each in job.operators if each.selected}
    best: dict[str, float] = {}
    points = []
    for number, trial in _at(trials, share):
        if trial.workload_hash in weights and trial.median_s < best.get(trial.workload_hash, float("inf")):
            best[trial.workload_hash] = trial.median_s
            if len(best) == len(weights):
                total = sum(weights[workload] * secs for workload, secs in best.items())
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


def _at(trials: Sequence[Trial], share: str) -> Iterator[tuple[int, Trial]]:
    return enumerate((each for each in trials if each.share == share), 1)
