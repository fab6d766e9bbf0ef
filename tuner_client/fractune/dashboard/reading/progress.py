"""How a job's best came down: over its trials, and over time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from fractune.features.client import Client
from fractune.server.job_status import JobStatus
from fractune_core.records import Kind, Status, TuningRecord

_MOST_TRIALS = 20_000
"""of one job; a chart of more says nothing more"""
_AT_ONCE = 1000


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


@dataclass
class JobTrials:
    """The trials of a job. Only those that are new since the last call are asked for."""

    job: str
    trials: list[Trial] = field(default_factory=list)
    """oldest first"""

    def update(self, client: Client) -> list[Trial]:
        total = client.log.query(job=self.job, kind=Kind.TRIAL, limit=1).total
        missing = min(total, _MOST_TRIALS) - len(self.trials)
        if missing > 0:
            known = {each.record_id for each in self.trials}
            found = client.log.query(job=self.job, kind=Kind.TRIAL, limit=missing)
            self.trials += [_trial(each) for each in reversed(found.records) if each.record_id not in known]
            self.trials.sort(key=lambda each: each.measured_at)
        return self.trials


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
