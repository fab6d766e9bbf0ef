"""The rounds of all jobs: how they start, what comes in for them, and how they end."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from fractune_core.blobs import drop_blobs
from fractune_core.messages import BuildWork, SearchWork, artifact_blob
from fractune_core.records import Kind, TuningRecord
from fractune_server.engine.active_job import ActiveJob
from fractune_server.engine.live_round import LiveRound
from fractune_server.store.log import LogKey
from fractune_server.transport.context import ServerContext
from fractune_server.transport.outgoing import send_workload
from fractune_server.transport.work_queues import WorkQueues


class Rounds:
    """One thread only."""

    def __init__(self, context: ServerContext, queues: WorkQueues) -> None:
        self._context = context
        self._queues = queues
        self._lost: dict[LogKey, set[str]] = {}
        """candidates of searches whose jobs ended before they were measured"""

    def start(self, job: ActiveJob, live: LiveRound, queue: str, work: SearchWork | BuildWork) -> None:
        send_workload(self._context, live.stored.workload_hash)
        # First the queue, then the store: a round that is not stored costs a few trials too many, a stored one that
        # no worker was given would hold the job up.
        self._queues.enqueue(queue, work, at_front=job.stored.spec.priority > 0)
        self._context.store.jobs.save_round(live.stored)
        job.rounds[live.id] = live
        job.dirty = True

    def take_record(self, job: ActiveJob, record: TuningRecord, round_id: str) -> None:
        """Strike a result out of its round; the round ends with the last one."""
        live = job.rounds.get(round_id)
        if live is None or not live.proposed:
            return
        live.missing.discard((record.candidate_id, record.share))
        if not live.missing:
            self.end(job, live)

    def end(self, job: ActiveJob, live: LiveRound) -> None:
        job.close_round(live)
        drop_blobs(self._context.redis, [artifact_blob(live.id, name) for name in live.stored.candidates or []])
        self._context.store.jobs.drop_round(live.id)

    def end_all(self, job: ActiveJob) -> None:
        """End the rounds of a job that ends; what they had not measured is nobody's fault."""
        for live in list(job.rounds.values()):
            if live.stored.kind is Kind.TRIAL and live.missing:
                lost = self._lost.setdefault(search_key(job, live.stored.workload_hash), set())
                lost |= {candidate for candidate, _ in live.missing}
            self.end(job, live)

    def take_lost(self, key: LogKey) -> list[str]:
        """The candidates of an operator that were lost since they were last asked for."""
        return sorted(self._lost.pop(key, ()))

    def withdraw(self, job: ActiveJob, live: LiveRound) -> None:
        """End a round that was not proposed, and take its search back."""
        self._queues.withdraw(live.id)
        self.end(job, live)


def search_key(job: ActiveJob, workload_hash: str) -> LogKey:
    """Under which an operator is searched: one search proposes for all jobs, exact or not."""
    return replace(job.log_key(workload_hash), exact=False)


def count_in_flight(jobs: Collection[ActiveJob]) -> None:
    """Note in every plan what is under way for its operator, in any job."""
    counts: dict[tuple[LogKey, tuple[str, ...]], int] = {}
    busy: set[LogKey] = set()
    for job in jobs:
        for live in job.rounds.values():
            if live.stored.kind is Kind.TRIAL:
                key = search_key(job, live.stored.workload_hash)
                busy.add(key)
                counts[key, job.share_keys] = counts.get((key, job.share_keys), 0) + live.in_flight
    for job in jobs:
        for plan in job.plans.values():
            key = search_key(job, plan.workload_hash)
            plan.busy = key in busy
            plan.in_flight = counts.get((key, job.share_keys), 0)
