"""Tuning: operators are leased to tuner instances, round by round, until the budget is spent."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest

from fractune_core.blobs import drop_blobs
from fractune_core.jobs import JobState
from fractune_core.messages import (
    PastTrial,
    Proposed,
    SearchWork,
    WorkerInfo,
    WorkFailed,
    artifact_blob,
    tune_queue,
)
from fractune_core.records import Kind, TuningRecord
from fractune_server.engine.active_job import ActiveJob, LiveRound
from fractune_server.scheduler.allocation import FIRST_ROUND, OperatorPlan, joint_times, next_round
from fractune_server.scheduler.warm_start import TRIALS_AT_LEAST, choose_donors, operator_kind
from fractune_server.store.log import LogKey
from fractune_server.store.rounds import Round
from fractune_server.transport.context import ServerContext
from fractune_server.transport.live_workers import BUILD, TUNE, Fleet
from fractune_server.transport.outgoing import send_workload
from fractune_server.transport.work_queues import WorkQueues

_HISTORY = 256
"""past trials that an instance is given of an operator new to it: the best, and at most as many failures"""
_LENT = 3
"""schedules that each lender gives to an operator that is new to an instance"""
_FAILURES_ALLOWED = 3

_log = logging.getLogger(__name__)


@dataclass
class Instance:
    """A live tuner instance. One that came back under the same name is another: its thoughts are lost."""

    name: str
    started_at: float


class TunePhase:
    """One thread only."""

    def __init__(self, context: ServerContext, queues: WorkQueues) -> None:
        self._context = context
        self._queues = queues
        self._instances: dict[str, Instance] = {}
        self._owners: dict[LogKey, str] = {}
        """the instance that has searched an operator before"""
        self._enough = FIRST_ROUND
        """candidates under way with which an instance's builders have work, so that it need not search yet"""

    def begin(self, run: ActiveJob) -> None:
        """Read from the log how the operators stand, so that nothing is measured again."""
        run.load_plans(self._context.store.log)
        if run.job.tuning_began is None:
            run.job.tuning_began = time.time()
        run.dirty = True

    def meet(self, fleet: Fleet, runs: Collection[ActiveJob]) -> None:
        """Take note of who is there; what an instance that is gone had not proposed is leased again."""
        present = {worker["name"]: worker for worker in fleet.of_role(TUNE)}
        gone = {name for name, known in self._instances.items() if not _same(known, present.get(name))}
        for name in gone:
            del self._instances[name]
        if gone:
            self._owners = {key: owner for key, owner in self._owners.items() if owner not in gone}
        for name, worker in present.items():
            self._instances.setdefault(name, Instance(name, worker["started_at"]))
        self._enough = FIRST_ROUND * max(1, len(fleet.of_role(BUILD)) // max(1, len(present)))
        for run in runs:
            for live in list(run.rounds.values()):
                lost = live.stored.instance in gone or live.stored.instance not in present
                if live.stored.kind is Kind.TRIAL and not live.proposed and lost:
                    _log.info("tuner instance %s is gone; lease %s ends", live.stored.instance, live.stored.lease)
                    self._queues.withdraw(live.stored.lease)
                    self.end_round(run, live)

    def advance(self, run: ActiveJob, runs: Collection[ActiveJob]) -> None:
        """Start the rounds that can start now; go on to the finals when nothing is left to do or wait for."""
        _count_rounds(runs)
        if not run.time_is_up:
            self._start_rounds(run, runs)
        plans = list(run.plans.values())
        waiting = bool(run.rounds) or any(plan.busy for plan in plans)
        if waiting or (not run.time_is_up and next_round(plans, run.budget, run.own_done) is not None):
            return
        run.job.tuning_ended = time.time()
        run.enter(JobState.FINISHING)

    def take_proposed(self, run: ActiveJob, event: Proposed) -> None:
        live = run.rounds.get(event["lease"])
        if live is None or live.proposed:
            return
        # Its results come after it in the same stream, so that none of them can have come before.
        live.propose(event["candidates"], run.shares)
        plan = run.plans[live.stored.workload_hash]
        plan.exhausted = plan.exhausted or event["exhausted"]
        self._context.store.jobs.save_round(live.stored)
        run.dirty = True
        if not live.missing:
            self.end_round(run, live)

    def take_record(self, run: ActiveJob, record: TuningRecord, lease: str) -> None:
        """Strike a result out of its round; the round ends with the last one."""
        live = run.rounds.get(lease)
        if live is None or not live.proposed:
            return
        live.missing.discard((record.candidate_id, record.share))
        if not live.missing:
            self.end_round(run, live)

    def take_failed(self, run: ActiveJob, event: WorkFailed) -> None:
        """A search, or the building or measuring of a round, ended without a result."""
        live = run.rounds.get(event.get("lease", ""))
        if live is None:
            return
        plan = run.plans[live.stored.workload_hash]
        run.attempts[f"search {plan.workload_hash}"] += 1
        if run.attempts[f"search {plan.workload_hash}"] >= _FAILURES_ALLOWED:
            plan.exhausted = True
            name = run.operator(plan.workload_hash).name
            run.note(f"gave up the search of {name}: {event['message']}")
        self.end_round(run, live)

    def end_round(self, run: ActiveJob, live: LiveRound) -> None:
        del run.rounds[live.stored.lease]
        candidates = live.stored.candidates or []
        drop_blobs(self._context.redis, [artifact_blob(live.stored.lease, name) for name in candidates])
        self._context.store.jobs.drop_round(live.stored.lease)
        run.dirty = True
        plan = run.plans.get(live.stored.workload_hash)
        if plan is None or live.stored.kind is not Kind.TRIAL or not live.proposed:
            return
        plan.end_round(live.best_before_s)
        if plan.complete == live.complete_before and not live.missing:
            plan.exhausted = True  # nothing but what the log held already

    def _start_rounds(self, run: ActiveJob, runs: Collection[ActiveJob]) -> None:
        for instance in self._instances.values():
            if not self._has_room(instance, runs):
                continue
            allowed = partial(self._may_have, run, instance)
            found = next_round(list(run.plans.values()), run.budget, run.own_done, allowed)
            if found is not None:
                self._start(run, instance, *found)
                _count_rounds(runs)

    def _has_room(self, instance: Instance, runs: Collection[ActiveJob]) -> bool:
        """One search at a time, as late as the builders allow: it then knows more."""
        held = [live for run in runs for live in run.rounds.values() if live.stored.instance == instance.name]
        return all(live.proposed for live in held) and sum(live.in_flight for live in held) <= self._enough

    def _may_have(self, run: ActiveJob, instance: Instance, plan: OperatorPlan) -> bool:
        """An operator stays with the instance that knows it."""
        return self._owners.get(run.log_key(plan.workload_hash), instance.name) == instance.name

    def _start(self, run: ActiveJob, instance: Instance, plan: OperatorPlan, count: int) -> None:
        lease = uuid.uuid4().hex
        work: SearchWork = {
            "do": "search",
            "work_id": lease,
            "lease": lease,
            "job": run.id,
            "workload_hash": plan.workload_hash,
            "operator": run.operator(plan.workload_hash).name,
            "target": run.job.target,
            "target_key": run.job.target_key,
            "device_key": run.job.device.key,
            "shares": run.shares,
            "count": count,
            "seed": run.job.spec.seed,
        }
        key = run.log_key(plan.workload_hash)
        if self._owners.get(key) != instance.name:
            work["history"] = self._history(key, plan)
            work["borrowed"] = self._borrowed(key, plan, work["operator"]) if plan.complete < TRIALS_AT_LEAST else []
        send_workload(self._context, plan.workload_hash)
        # First the queue, then the store: a lease that nobody remembers costs a few trials too many, a lease
        # that nobody works on would hold the job up.
        self._queues.enqueue(tune_queue(instance.name), work, at_front=run.job.spec.priority > 0)
        stored = Round(lease, run.id, Kind.TRIAL, plan.workload_hash, instance.name, count)
        self._context.store.jobs.save_round(stored)
        run.rounds[lease] = LiveRound(stored, best_before_s=plan.best_s, complete_before=plan.complete)
        self._owners[key] = instance.name
        run.dirty = True

    def _history(self, key: LogKey, plan: OperatorPlan) -> list[PastTrial]:
        """The fastest of the candidates measured at all shares, and some that failed."""
        times: dict[str, dict[str, float]] = {}
        for row in self._context.store.log.trials(key):
            times.setdefault(row.candidate_id, {})[row.share_key] = row.median_s
        joint = joint_times(times, plan.shares)
        best = sorted((name for name, secs in joint.items() if secs), key=lambda name: joint[name])[:_HISTORY]
        failed = [name for name, secs in joint.items() if not secs][:_HISTORY]
        traces = self._context.store.log.traces(key, best + failed)
        return [{"trace": traces[name], "secs": joint[name]} for name in best + failed]

    def _borrowed(self, key: LogKey, plan: OperatorPlan, operator: str) -> list[str]:
        """The lenders' fastest traces: the fastest of each first, then the second of each."""
        kin = self._context.store.log.donors(key, f"%{operator_kind(operator)}%")
        lent: list[list[TuningRecord]] = []
        for each in choose_donors(kin, operator, key.workload_hash, plan.shares):
            theirs = replace(key, workload_hash=each.workload_hash)
            lent.append(self._context.store.log.best_trials(theirs, each.share_key, _LENT))
        return [record.trace for rank in zip_longest(*lent) for record in rank if record is not None]


def _same(known: Instance, worker: WorkerInfo | None) -> bool:
    return worker is not None and worker["started_at"] == known.started_at


def _count_rounds(runs: Collection[ActiveJob]) -> None:
    """Tell every plan what is under way for its operator, in any job."""
    counts: dict[tuple[LogKey, tuple[str, ...]], int] = {}
    busy: set[LogKey] = set()
    for run in runs:
        for live in run.rounds.values():
            if live.stored.kind is Kind.TRIAL:
                key = run.log_key(live.stored.workload_hash)
                busy.add(key)
                counts[key, run.share_keys] = counts.get((key, run.share_keys), 0) + live.in_flight
    for run in runs:
        for plan in run.plans.values():
            key = run.log_key(plan.workload_hash)
            plan.busy = key in busy
            plan.in_flight = counts.get((key, run.share_keys), 0)
