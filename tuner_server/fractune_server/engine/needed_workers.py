"""Which workers a job needs now, and a note in the job when one has been missing or kept waiting for a while."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass

from fractune_core.errors import one_line
from fractune_core.jobs import JobState
from fractune_server.engine.active_job import ActiveJob
from fractune_server.transport.live_workers import BUILD, COMPILE, MEASURE, TUNE, Fleet

MISSING_S = 2.0
"""a job notes a worker that has been missing for this long"""


@dataclass(frozen=True)
class NeededWorker:
    role: str
    share: str = ""
    """of a measuring worker"""

    def __str__(self) -> str:
        return f"role {self.role}" + (f", share {self.share}" if self.share else "")


class MissingWorkers:
    """Not thread-safe: only the engine's thread calls it."""

    def __init__(self) -> None:
        self._since: dict[NeededWorker, float] = {}
        """monotonic seconds"""

    def note(self, fleet: Fleet, jobs: Collection[ActiveJob]) -> None:
        """Note in each job the workers that it has waited for too long, and the measurements that keep them waiting."""
        now = time.monotonic()
        missing: dict[NeededWorker, float] = {}
        for job in jobs:
            lacking = [needed for needed in needed_workers(job) if not _is_live(needed, fleet, job)]
            missing.update((needed, self._since.get(needed, now)) for needed in lacking)
            late = [f"a worker: {needed}" for needed in lacking if now - missing[needed] >= MISSING_S]
            job.note_waiting([*late, *_held_cores(fleet, job)])
        self._since = missing


def needed_workers(job: ActiveJob) -> list[NeededWorker]:
    """Workers that the job's present phase needs."""
    is_timing = job.stored.state is JobState.TIMING
    measuring = [NeededWorker(MEASURE, share) for share in (job.timed_shares if is_timing else job.shares)]
    match job.stored.state:
        case JobState.QUEUED | JobState.INGESTING | JobState.COMPILING:
            return [NeededWorker(COMPILE)]
        case JobState.TUNING:
            return [NeededWorker(TUNE), NeededWorker(BUILD), *measuring]
        case JobState.VALIDATING:
            return [NeededWorker(BUILD), *measuring]
        case _:
            return measuring


def _held_cores(fleet: Fleet, job: ActiveJob) -> list[str]:
    """The measurements of other stacks that keep the job's workers from their cores."""
    needed = {(each.role, each.share) for each in needed_workers(job)}
    own = {(worker["host"], worker["pid"]) for worker in fleet.workers.values()}
    holders = {
        (holder["host"], holder["pid"])
        for worker in fleet.workers.values()
        if (worker["role"], worker["share"]) in needed
        for holder in worker.get("waits_for", ())
    }
    return [
        f"the measurement cores of {one_line(host)}, held by PID {pid} of another stack"
        for host, pid in sorted(holders - own)
    ]


def _is_live(needed: NeededWorker, fleet: Fleet, job: ActiveJob) -> bool:
    if needed.role != MEASURE:
        return bool(fleet.of_role(needed.role))
    device = job.stored.device.key
    return any(held.device.key == device and held.granted.share == needed.share for held in fleet.offers)
