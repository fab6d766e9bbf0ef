"""Tuning: tuner instances search the operators, round by round, until the budget is spent."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest

from fractune_core.jobs import JobState
from fractune_core.messages import PastTrial, Proposed, RoofMeasured, SearchWork, WorkerInfo, WorkFailed, tune_queue
from fractune_core.records import Kind
from fractune_core.roofs import Roof
from fractune_server.engine.active_job import ActiveJob
from fractune_server.engine.live_round import LiveRound
from fractune_server.engine.rounds import Rounds, count_in_flight, search_key
from fractune_server.scheduler.allocation import FIRST_ROUND, OperatorPlan, joint_times, next_round
from fractune_server.scheduler.warm_start import TRIALS_AT_LEAST, choose_donors, operator_kind
from fractune_server.store.log import LogKey
from fractune_server.store.rounds import Round
from fractune_server.transport.context import ServerContext
from fractune_server.transport.live_workers import BUILD, TUNE, Fleet

_HISTORY = 256
"""past trials that an instance is given of an operator new to it: the best, and at most as many failures"""
_TRANSFERRED = 3
"""schedules of each donor for an operator that is new to an instance"""
_FAILURES_ALLOWED = 3

_log = logging.getLogger(__name__)


@dataclass
class Instance:
    """A live tuner instance. One that came back under the same name is another: its search state is lost."""

    name: str
    started_at: float


class TunePhase:
    """One thread only."""

    def __init__(self, context: ServerContext, rounds: Rounds) -> None:
        self._store = context.store
        self._rounds = rounds
        self._instances: dict[str, Instance] = {}
        self._owners: dict[LogKey, str] = {}
        """the instance that has searched an operator before"""
        self._enough = FIRST_ROUND
        """candidates under way with which an instance's builders have work, so that it need not search yet"""

    def begin(self, job: ActiveJob) -> None:
        """Read from the log how the operators stand, so that nothing is measured again."""
        job.load_plans(self._store)
        if job.stored.tuning_began is None:
            job.stored.tuning_began = time.time()
        job.dirty = True

    def advance(self, job: ActiveJob, jobs: Collection[ActiveJob]) -> None:
        """Start the rounds that can start now; go on to validation when nothing is left to do or wait for."""
        count_in_flight(jobs)
        if not job.time_is_up:
            self._start_rounds(job, jobs)
        plans = list(job.plans.values())
        waiting = bool(job.rounds) or any(plan.busy for plan in plans)
        if waiting or (not job.time_is_up and next_round(plans, job.budget, job.own_done) is not None):
            return
        if not job.time_is_up:
            job.stored.progress.saved = job.budget.saved(plans, job.own_done)
        job.stored.tuning_ended = time.time()
        job.enter(JobState.VALIDATING)

    def take_proposed(self, job: ActiveJob, event: Proposed) -> None:
        live = job.rounds.get(event["round_id"])
        if live is None or live.proposed:
            return
        # Its results come after it in the same stream, so that none of them can have come before.
        live.propose(event["candidates"], job.shares)
        plan = job.plans[live.stored.workload_hash]
        if event["exhausted"]:
            plan.exhausted = True
            self._note_space(job.log_key(plan.workload_hash), event["candidates"])
        self._store.jobs.save_round(live.stored)
        job.dirty = True
        if not live.missing:
            self._rounds.end(job, live)

    def _note_space(self, key: LogKey, last: Collection[str]) -> None:
        """Keep how many candidates there are of an operator, when those in the log and the `last` are all."""
        found = {row.candidate_id for row in self._store.log.trials(key)} | set(last)
        if found:  # else the instance has proposed them for another device
            self._store.spaces.add(key, len(found))

    def take_roof(self, event: RoofMeasured, jobs: Collection[ActiveJob]) -> None:
        """Keep the roof of a share; jobs on that device learn what is attainable there."""
        self._store.roofs.add(event["device_key"], event["share_key"], Roof.from_json(event["roof"]))
        for job in jobs:
            if job.stored.device.key == event["device_key"]:
                job.load_roofs(self._store)

    def take_failed(self, job: ActiveJob, live: LiveRound, event: WorkFailed) -> None:
        """A search, or the building or measuring of a round, ended without a result."""
        plan = job.plans[live.stored.workload_hash]
        job.failed_searches[plan.workload_hash] += 1
        if job.failed_searches[plan.workload_hash] >= _FAILURES_ALLOWED:
            plan.exhausted = True
            name = job.operator(plan.workload_hash).name
            job.note(f"gave up the search of {name}: {event['message']}")
        self._rounds.end(job, live)

    def update_instances(self, fleet: Fleet, jobs: Collection[ActiveJob]) -> None:
        """Take up new tuner instances; what one that is gone had not proposed is searched by another."""
        present = {worker["name"]: worker for worker in fleet.of_role(TUNE)}
        gone = {name for name, known in self._instances.items() if not _same(known, present.get(name))}
        for name in gone:
            del self._instances[name]
        if gone:
            self._owners = {key: owner for key, owner in self._owners.items() if owner not in gone}
        for name, worker in present.items():
            self._instances.setdefault(name, Instance(name, worker["started_at"]))
        self._enough = FIRST_ROUND * max(1, len(fleet.of_role(BUILD)) // max(1, len(present)))
        for job in jobs:
            self._withdraw_lost(job, gone, present)

    def _withdraw_lost(self, job: ActiveJob, gone: Collection[str], present: Collection[str]) -> None:
        for live in list(job.rounds.values()):
            lost = live.stored.instance in gone or live.stored.instance not in present
            if live.stored.kind is Kind.TRIAL and not live.proposed and lost:
                _log.info("tuner instance %s is gone; round %s ends", live.stored.instance, live.id)
                self._rounds.withdraw(job, live)

    def _start_rounds(self, job: ActiveJob, jobs: Collection[ActiveJob]) -> None:
        for instance in self._instances.values():
            if not self._has_room(instance, jobs):
                continue
            allowed = partial(self._may_search, job, instance)
            found = next_round(list(job.plans.values()), job.budget, job.own_done, allowed)
            if found is not None:
                self._start(job, instance, *found)
                count_in_flight(jobs)

    def _has_room(self, instance: Instance, jobs: Collection[ActiveJob]) -> bool:
        """One search at a time, as late as the builders allow: it then knows more."""
        held = [live for job in jobs for live in job.rounds.values() if live.stored.instance == instance.name]
        return all(live.proposed for live in held) and sum(live.in_flight for live in held) <= self._enough

    def _may_search(self, job: ActiveJob, instance: Instance, plan: OperatorPlan) -> bool:
        """An operator stays with the instance that knows it."""
        return self._owners.get(search_key(job, plan.workload_hash), instance.name) == instance.name

    def _start(self, job: ActiveJob, instance: Instance, plan: OperatorPlan, count: int) -> None:
        round_id, key = uuid.uuid4().hex, job.log_key(plan.workload_hash)
        searched = search_key(job, plan.workload_hash)
        new = self._owners.get(searched) != instance.name
        transfer = new and plan.complete < TRIALS_AT_LEAST
        work: SearchWork = {
            **job.round_work(round_id, plan.workload_hash),
            "do": "search",
            "device_key": job.stored.device.key,
            "shares": job.shares,
            "count": count,
            "exact": job.stored.spec.exact,
            "seed": job.stored.spec.seed,
            "lost": self._rounds.take_lost(searched),
            "history": self._history(key, plan) if new else [],
            "transferred": self._transferred(key, plan, job.operator(plan.workload_hash).name) if transfer else [],
        }
        stored = Round(round_id, job.id, Kind.TRIAL, plan.workload_hash, instance.name, count)
        live = LiveRound(stored, best_before_s=plan.best_s, complete_before=plan.complete)
        self._rounds.start(job, live, tune_queue(instance.name), work)
        self._owners[searched] = instance.name

    def _history(self, key: LogKey, plan: OperatorPlan) -> list[PastTrial]:
        """The fastest of the candidates measured at all shares, and some that failed."""
        times: dict[str, dict[str, float]] = {}
        for row in self._store.log.trials(key):
            times.setdefault(row.candidate_id, {})[row.share_key] = row.median_s
        joint = joint_times(times, plan.shares)
        best = sorted((name for name, secs in joint.items() if secs), key=lambda name: joint[name])[:_HISTORY]
        failed = [name for name, secs in joint.items() if not secs][:_HISTORY]
        traces = self._store.log.traces(key, best + failed)
        return [{"trace": traces[name], "secs": joint[name]} for name in best + failed]

    def _transferred(self, key: LogKey, plan: OperatorPlan, operator: str) -> list[str]:
        """The donors' fastest traces: the fastest of each first, then the second of each."""
        known = self._store.log.donors(key, f"%{operator_kind(operator)}%")
        by_donor = [
            self._store.log.best_trials(replace(key, workload_hash=donor.workload_hash), donor.share_key, _TRANSFERRED)
            for donor in choose_donors(known, operator, key.workload_hash, plan.shares)
        ]
        return [record.trace for rank in zip_longest(*by_donor) for record in rank if record is not None]


def _same(known: Instance, worker: WorkerInfo | None) -> bool:
    return worker is not None and worker["started_at"] == known.started_at
