"""Finishing: the best few of every operator are checked and measured again, alone, beside the untuned default."""

from __future__ import annotations

import uuid

from fractune_core.errors import NotFound, error_from_name
from fractune_core.jobs import JobState
from fractune_core.messages import BUILD_QUEUE, SERVER_STREAM, BuildWork, WorkFailed
from fractune_core.records import Kind, Status, TuningRecord
from fractune_server.engine.active_job import ActiveJob, LiveRound
from fractune_server.scheduler.finalists import BEST_PER_SHARE, finalists, settled
from fractune_server.store.log import LogKey
from fractune_server.store.rounds import Round
from fractune_server.store.stored_job import StoredOperator
from fractune_server.transport.context import ServerContext
from fractune_server.transport.outgoing import send_workload
from fractune_server.transport.work_queues import WorkQueues

_PASSES = 3
"""contests of one operator in one job: finalists that fail make room for the next best, this often"""


class ValidatePhase:
    """One thread only."""

    def __init__(self, context: ServerContext, queues: WorkQueues) -> None:
        self._context = context
        self._queues = queues

    def advance(self, run: ActiveJob) -> None:
        """Ask for what is missing; go on when every operator is settled."""
        if run.job.spec.rerank and not run.settled and not run.rounds:
            self._check_known(run)
        under_way = {live.stored.workload_hash for live in run.rounds.values()}
        for operator in run.selected:
            if operator.workload_hash not in run.settled | under_way:
                self._settle(run, operator)
        if not run.rounds:
            run.enter(JobState.COMPILING)

    def take_failed(self, run: ActiveJob, event: WorkFailed) -> None:
        """A contest could not be built or measured at all. Raises the error when it goes on like that."""
        live = run.rounds.get(event.get("lease", ""))
        if live is not None and run.attempts[f"finals {live.stored.workload_hash}"] >= _PASSES:
            raise error_from_name(event["error"], event["message"])

    def _settle(self, run: ActiveJob, operator: StoredOperator) -> None:
        """Publish what the log holds, or start a contest for what it lacks."""
        name = operator.workload_hash
        finals = self._finals(run, name)
        chosen = self._contestants(run, name, finals)
        attempt = f"finals {name}"
        if settled(chosen, finals, run.share_keys) or run.attempts[attempt] >= _PASSES:
            run.settled.add(name)
            _copy_finals(run, operator, finals)
            return
        run.attempts[attempt] += 1
        self._start(run, operator, chosen)

    def _finals(self, run: ActiveJob, workload_hash: str) -> list[TuningRecord]:
        key = run.log_key(workload_hash)
        return [
            record
            for record in self._context.store.log.finals(workload_hash).records
            if (record.target_key, record.device.key) == (key.target_key, key.device_key)
        ]

    def _contestants(self, run: ActiveJob, workload_hash: str, finals: list[TuningRecord]) -> dict[str, str]:
        refused = {record.candidate_id for record in finals if record.status is not Status.OK}
        key, count = run.log_key(workload_hash), run.job.spec.rerank or BEST_PER_SHARE
        shares = self._shares_known(run, key) if run.job.spec.rerank else run.share_keys
        best = {share: self._context.store.log.best_trials(key, share, count + len(refused)) for share in shares}
        return finalists(best, finals, run.untuned(workload_hash), count)

    def _shares_known(self, run: ActiveJob, key: LogKey) -> list[str]:
        """Keys of the shares, of the job's mechanisms, that the operator was tuned at."""
        mechanisms = sorted({granted.mechanism for granted in run.job.granted.values()})
        return [share for each in mechanisms for share in self._context.store.log.share_keys(key, each)]

    def _check_known(self, run: ActiveJob) -> None:
        """Raises NotFound when there is nothing to measure again."""
        if not any(self._shares_known(run, run.log_key(operator.workload_hash)) for operator in run.selected):
            raise NotFound(
                f"the log holds no trial of {run.job.spec.model_name} on this device for this target; "
                "tune it first by 'fractune tune'"
            )

    def _start(self, run: ActiveJob, operator: StoredOperator, chosen: dict[str, str]) -> None:
        lease = uuid.uuid4().hex
        work: BuildWork = {
            "do": "build",
            "work_id": lease,
            "lease": lease,
            "job": run.id,
            "kind": Kind.FINAL.value,
            "workload_hash": operator.workload_hash,
            "operator": operator.name,
            "target": run.job.target,
            "target_key": run.job.target_key,
            "device_key": run.job.device.key,
            "shares": run.shares,
            "candidates": [{"candidate": name, "trace": trace} for name, trace in chosen.items()],
            "reply": SERVER_STREAM,
        }
        send_workload(self._context, operator.workload_hash)
        self._queues.enqueue(BUILD_QUEUE, work, at_front=run.job.spec.priority > 0)
        stored = Round(lease, run.id, Kind.FINAL, operator.workload_hash, "", len(chosen), list(chosen))
        self._context.store.jobs.save_round(stored)
        live = LiveRound(stored)
        live.propose(chosen, run.shares)
        run.rounds[lease] = live
        run.dirty = True


def _copy_finals(run: ActiveJob, operator: StoredOperator, finals: list[TuningRecord]) -> None:
    """What people see of an operator once it was measured alone: the newest time of each finalist counts."""
    untuned = run.untuned(operator.workload_hash)
    for share, granted in run.job.granted.items():
        newest: dict[str, float] = {}
        for record in sorted(finals, key=lambda record: record.measured_at):
            if record.granted.key == granted.key and record.status is Status.OK:
                newest[record.candidate_id] = record.median_s
        if newest:
            operator.best_s[share] = min(newest.values())
        if untuned in newest:
            operator.untuned_s[share] = newest[untuned]
    run.dirty = True
