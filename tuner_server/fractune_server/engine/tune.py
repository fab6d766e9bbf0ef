"""Tuning: tuner instances search the operators, round by round, until the budget is spent."""

import logging
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from math import isfinite

from fractune_core.analysis.roofline import Roof, raised
from fractune_core.fleet import messages
from fractune_core.fleet.redis_names import BUILD_QUEUE, tune_queue, tuner_stream
from fractune_core.jobs import JobState
from fractune_core.records import Kind, TuningRecord
from fractune_core.share_kinds import CPU
from fractune_core.targets import with_cores
from fractune_core.tracing import log_fields
from fractune_server.engine.active_job import ActiveJob, kernel_share_notes
from fractune_server.engine.rounds import LiveRound, Rounds
from fractune_server.scheduler import allocation
from fractune_server.scheduler.fair_queue import FairQueue
from fractune_server.scheduler.finalists import FIRST_REPEAT_MS, TRIALS_AT_LEAST, choose_donors, operator_kind
from fractune_server.store.jobs import Round
from fractune_server.store.records.log import LogKey
from fractune_server.transport.context import ServerContext
from fractune_server.transport.live_workers import BUILD, TUNE, Fleet

_HISTORY = 256
"""past trials that an instance gets for a new operator: the best ones, and at most as many failures"""
_TRANSFERRED = 3
"""schedules of each donor for an operator that is new to an instance"""

_log = logging.getLogger(__name__)


@dataclass
class Instance:
    """A live tuner instance. An instance that returns under the same name is new: its search state is lost."""

    name: str
    started_at: float


class TunePhase:
    """The tuning phase of all jobs: which operator is searched next, and by which instance. Not thread-safe: only the
    engine's thread calls it.
    """

    def __init__(self, context: ServerContext, rounds: Rounds, fair_queue: FairQueue) -> None:
        self._store = context.store
        self._rounds = rounds
        self._fair_queue = fair_queue
        self._instances: dict[str, Instance] = {}
        self._offered: set[tuple[str, str]] = set()
        """device key and share of the live measuring workers"""
        self._enough = allocation.FIRST_ROUND
        """candidates in progress that keep an instance's builders busy, so that it need not search yet"""

    def begin(self, job: ActiveJob) -> None:
        """Read the state of the operators from the log, so that nothing is measured again."""
        job.load_plans(self._store)
        if job.stored.tuning_began is None:
            job.stored.tuning_began = job.now()
            _note_trials_above_budget(job)
            _note_kernel_shares(job)
        job.dirty = True

    def advance(self, job: ActiveJob, jobs: Collection[ActiveJob]) -> None:
        """Subscribe to rounds of other jobs. Begin validation when nothing is left to do or wait for."""
        for plan in job.plans.values():
            self._count_for(job, plan)
        if not job.time_is_up:
            self._subscribe(job, jobs)
        plans = list(job.plans.values())
        if any(plan.in_flight for plan in plans) or self._waits(job):
            return
        if job.remaining and (any(plan.busy for plan in plans) or allocation.next_round(plans, job.budget, job.gained)):
            return
        if not job.time_is_up:
            job.stored.progress.saved = job.budget.saved(plans, job.gained)
            _note_unused_trials(job)
        job.stored.tuning_ended = job.now()
        self._rounds.leave(job)
        job.enter(JobState.VALIDATING)

    def take_proposed(self, event: messages.Proposed) -> None:
        """Note the candidates of a search. A second answer to one round changes nothing."""
        live = self._rounds.get(event.round_id)
        if live is None or live.proposed:
            return
        if event.exhausted:
            for job in live.subscribers.values():
                job.space_exhausted(live.stored.workload_hash)
            self._note_space(live.key, event.candidates)
        self._rounds.take_proposed(live, event.candidates)

    def _note_space(self, key: LogKey, last: Collection[str]) -> None:
        """Store the size of an operator's search space: the candidates in the log and the `last` ones are all."""
        found = {row.candidate_id for row in self._store.log.trials(key)} | set(last)
        if found:  # else the instance has proposed the candidates for another device
            self._store.spaces.add(key, len(found))

    def take_forgotten(self, event: messages.SearchForgotten) -> None:
        """The instance has lost the search and proposed nothing: the next round sends it what the log holds."""
        live = self._rounds.get(event.round_id)
        if live is not None and not live.proposed:
            _log.info("tuner instance %s has lost its search; round %s ends", live.stored.instance, live.id)
            self._rounds.end(live)

    def take_roof(self, event: messages.RoofMeasured, jobs: Collection[ActiveJob]) -> None:
        """Store the roof of a share, and update the jobs on the device."""
        self._raise_roof(event.device_key, event.share_key, Roof.from_json(event.roof), jobs)

    def take_fast_kernel(self, record: TuningRecord, jobs: Collection[ActiveJob]) -> None:
        """Raise the roof of a share to the performance of this record's kernel, if the kernel exceeds the roof."""
        if record.implementation or not any(job.is_above_roof(record) for job in jobs):
            return
        roof = self._store.roofs.of(record.device.key).get(record.granted.key)
        arithmetic = self._store.log.arithmetic([record.workload_hash]).get(record.workload_hash)
        if roof is None or arithmetic is None:
            return
        higher = raised(arithmetic, roof, record.median_s)
        if higher != roof:
            self._raise_roof(record.device.key, record.granted.key, higher, jobs)

    def _raise_roof(self, device_key: str, share_key: str, roof: Roof, jobs: Collection[ActiveJob]) -> None:
        self._store.roofs.add(device_key, share_key, roof)
        for job in jobs:
            if job.stored.device.key == device_key:
                job.load_roofs(self._store)

    def take_failed(self, live: LiveRound, event: messages.WorkFailed) -> None:
        """The search, a build or a measurement of a round ended without a result."""
        for job in live.subscribers.values():
            job.search_failed(live.stored.workload_hash, event.message)
        self._rounds.end(live)

    def update_instances(self, fleet: Fleet) -> None:
        """Note new tuner instances. Unproposed rounds of instances that are gone go to others."""
        present = {worker.name: worker for worker in fleet.of_role(TUNE)}
        gone = {name for name, known in self._instances.items() if not _same(known, present.get(name))}
        for name in gone:
            del self._instances[name]
        if gone:
            self._rounds.owners.drop(gone)
        for name, worker in present.items():
            self._instances.setdefault(name, Instance(name, worker.started_at))
        self._enough = allocation.FIRST_ROUND * max(1, len(fleet.of_role(BUILD)) // max(1, len(present)))
        self._offered = {(held.device.key, held.granted.share) for held in fleet.offers}
        for live in self._rounds.trials():
            if not live.proposed and (live.stored.instance in gone or live.stored.instance not in present):
                with log_fields(job=live.stored.job):
                    _log.info("tuner instance %s is gone; round %s ends", live.stored.instance, live.id)
                self._rounds.withdraw(live)

    # ---- rounds in progress ---------------------------------------------------------------------

    def _count_for(self, job: ActiveJob, plan: allocation.OperatorPlan) -> None:
        """Count the rounds in progress of the operator, requested by any job."""
        rounds = self._rounds.trials_for(job.log_key(plan.workload_hash))
        awaited = self._awaited(job) if rounds else ()
        job.count_in_progress(
            plan.workload_hash,
            busy=any(live.is_due(awaited) for live in rounds),
            in_flight=sum(live.in_flight(plan) for live in rounds if job.id in live.subscribers),
        )

    def _count_of(self, workload_hash: str, jobs: Collection[ActiveJob]) -> None:
        """`_count_for` in all jobs, after a change of one operator."""
        for job in jobs:
            plan = job.plans.get(workload_hash)
            if plan is not None:
                self._count_for(job, plan)

    def _awaited(self, job: ActiveJob) -> set[str]:
        """Shares whose measurements are worth waiting for: the job's own, and those of live workers."""
        device = job.stored.device.key
        return {*job.shares, *(share for key, share in self._offered if key == device)}

    def _waits(self, job: ActiveJob) -> bool:
        """Whether a measurement for the job is missing in a round."""
        shares = set(job.shares)
        return any(job.id in live.subscribers and live.is_due(shares) for live in self._trials_for(job))

    def _subscribe(self, job: ActiveJob, jobs: Collection[ActiveJob]) -> None:
        """Subscribe to the rounds in progress that the job can use."""
        for live in self._trials_for(job):
            if job.id not in live.subscribers and self._would_take(job, live.key):
                live.subscribers[job.id] = job
                self._count_of(live.key.workload_hash, jobs)

    def _trials_for(self, job: ActiveJob) -> list[LiveRound]:
        """Rounds in progress of the job's searches."""
        return [live for name in job.plans for live in self._rounds.trials_for(job.log_key(name))]

    def _would_take(self, job: ActiveJob, key: LogKey) -> bool:
        """Whether the job can use further candidates of this operator, and workers measure at all its shares."""
        plan = job.plans.get(key.workload_hash)
        if plan is None or not job.is_searching:
            return False
        fits = self._is_offered(job) and job.log_key(key.workload_hash) == key
        return fits and job.budget.room(plan, list(job.plans.values()), job.gained) > 0

    def _is_offered(self, job: ActiveJob) -> bool:
        return all((job.stored.device.key, share) in self._offered for share in job.shares)

    # ---- starting rounds ------------------------------------------------------------------------

    def free_instances(self) -> list[Instance]:
        """Instances that do not search now: each does one search at a time."""
        return [
            instance
            for instance in self._instances.values()
            if all(live.proposed for live in self._rounds.trials_of(instance.name))
        ]

    def start_round(self, job: ActiveJob, jobs: Collection[ActiveJob], free: list[Instance]) -> bool:
        """Start one round for the job, which is next in the fair queue. False if none can start now.

        If an instance begins a search, it is removed from `free`.
        """
        if not job.is_searching:
            return False
        awaited = self._awaited(job)
        for instance in free:
            if not self._has_room(instance, job, awaited):
                continue
            allowed = partial(self._may_search, job, instance)
            found = allocation.next_round(list(job.plans.values()), self._limits(job, jobs), job.gained, allowed)
            if found is not None:
                if not self._start(job, jobs, instance, *found).proposed:
                    free.remove(instance)
                self._count_of(found[0].workload_hash, jobs)
                return True
        return False

    def _limits(self, job: ActiveJob, jobs: Collection[ActiveJob]) -> allocation.Budget:
        """The job's budget. Rounds are small while a job that is behind wants more, but cannot use the fleet now."""
        behind = (each for each in jobs if self._fair_queue.is_behind(each.claimant, job.claimant))
        if any(map(self._wants_more, behind)):
            return replace(job.budget, round_size=min(job.budget.round_size, allocation.FIRST_ROUND))
        return job.budget

    def _wants_more(self, job: ActiveJob) -> bool:
        """Whether the job would take further rounds, and workers measure at all its shares."""
        return job.is_searching and self._is_offered(job) and job.remaining > 0

    def _has_room(self, instance: Instance, job: ActiveJob, awaited: Collection[str]) -> bool:
        """Whether a free instance may search for the job. It waits while its builders have enough candidates, because a
        later search knows more results.

        Rounds that only jobs ahead of this one wait for do not count.
        """
        held = self._rounds.trials_of(instance.name)
        return sum(live.under_way(awaited) for live in held if not self._may_pass(job, live)) <= self._enough

    def _may_pass(self, job: ActiveJob, live: LiveRound) -> bool:
        """Whether all jobs that wait for the round are ahead of this one."""
        return all(self._fair_queue.is_behind(job.claimant, each.claimant) for each in live.subscribers.values())

    def _may_search(self, job: ActiveJob, instance: Instance, plan: allocation.OperatorPlan) -> bool:
        """Whether no other instance knows the operator's search."""
        return self._rounds.owners.may_search(job.log_key(plan.workload_hash).search, instance.name)

    def _start(
        self, job: ActiveJob, jobs: Collection[ActiveJob], instance: Instance, plan: allocation.OperatorPlan, count: int
    ) -> LiveRound:
        """Start a round for the job and for all others that can use it.

        It measures candidates that the log lacks at some shares, if there are any; else it searches.
        """
        key = job.log_key(plan.workload_hash)
        others = [each for each in jobs if each is not job and self._would_take(each, key)]
        stored = Round(uuid.uuid4().hex, job.id, Kind.TRIAL, plan.workload_hash, instance.name, count)
        live = LiveRound(stored, key, job.stored.device, job.stored.tenant, {each.id: each for each in (job, *others)})
        candidates, lacked = plan.lacking(count)
        traces = self._store.log.traces(key, candidates) if candidates else {}
        if traces:  # else they have left the log since: it was pruned, or their tenant shares no more
            stored.granted = {share: each for share, each in job.stored.tuned_at.items() if each.key in lacked}
            live.propose(name for name in candidates if name in traces)
            self._rounds.start(live, BUILD_QUEUE, self._build_works(job, live, traces))
        else:
            for each in live.subscribers.values():
                stored.granted.update(each.stored.tuned_at)
                each.search_began(plan.workload_hash)
            self._rounds.start(live, tune_queue(instance.name), [self._search_work(job, live, instance)])
        return live

    def _build_works(self, job: ActiveJob, live: LiveRound, traces: Mapping[str, str]) -> list[messages.BuildWork]:
        """Build work for candidates that the log holds at some of the job's shares, for its other shares."""
        names = live.stored.candidates or []
        of = self._work_round(job, live)
        batch = messages.build_batch(live.key.target_key)
        return [
            messages.BuildWork(
                work_id=f"{live.id}-{start}" if start else live.id,
                job=job.id,
                tenant=job.stored.tenant,
                round=of,
                purpose=Kind.TRIAL,
                device_key=live.device.key,
                shares=list(live.stored.granted),
                candidates=[messages.CandidateItem(name, traces[name]) for name in names[start : start + batch]],
                reply=tuner_stream(live.stored.instance),
            )
            for start in range(0, len(names), batch)
        ]

    def _search_work(self, job: ActiveJob, live: LiveRound, instance: Instance) -> messages.SearchWork:
        searched = live.key.search
        new = self._rounds.owners.give(searched, instance.name)
        return messages.SearchWork(
            work_id=live.id,
            job=job.id,
            tenant=job.stored.tenant,
            round=self._work_round(job, live),
            device_key=live.device.key,
            shares=list(live.stored.granted),
            fresh=job.stored.spec.fresh,
            count=live.stored.asked,
            exact=job.stored.spec.exact,
            seed=job.stored.spec.seed,
            lost=self._rounds.take_lost(searched),
            opening=self._opening(job, live) if new else None,
        )

    def _opening(self, job: ActiveJob, live: LiveRound) -> messages.SearchOpening:
        """The log's knowledge of the operator; schedules of donors only while the operator has few trials."""
        plan, operator = job.plans[live.key.workload_hash], job.operator(live.key.workload_hash)
        known = self._times(live)
        is_new = plan.complete < TRIALS_AT_LEAST
        donated = self._transferred(live.key, plan, operator.name, job.stored.tenant) if is_new else []
        return messages.SearchOpening(self._history(live, known), list(known), donated)

    def _work_round(self, job: ActiveJob, live: LiveRound) -> messages.WorkRound:
        """The target has the cores of the largest share, like the target of a job at all shares."""
        cores = max((each.units for each in live.stored.granted.values() if each.kind.device_kind == CPU), default=0)
        target, at_front = with_cores(job.stored.target, cores), self._rounds.goes_first(job)
        name = live.key.workload_hash
        validates = job.budget.has_no_search and not job.plans[name].measured
        repeat_ms = FIRST_REPEAT_MS if validates else None
        return job.work_round(live.id, name, at_front=at_front, target=target, repeat_ms=repeat_ms, validates=validates)

    def _times(self, live: LiveRound) -> dict[str, dict[str, float]]:
        """Medians in seconds by candidate and share, of all trials in the log at the round's shares."""
        shares = {granted.key: share for share, granted in live.stored.granted.items()}
        times: dict[str, dict[str, float]] = {}
        for row in self._store.log.trials(live.key.search):
            if row.share_key in shares:
                times.setdefault(row.candidate_id, {})[shares[row.share_key]] = row.ranking_median_s
        return times

    def _history(self, live: LiveRound, times: Mapping[str, Mapping[str, float]]) -> list[messages.PastTrial]:
        """The fastest candidates that were measured at all shares, and some that failed."""
        joint = allocation.joint_times(times, list(live.stored.granted))
        best = sorted((name for name, secs in joint.items() if secs), key=lambda name: joint[name])[:_HISTORY]
        failed = [name for name, secs in joint.items() if not secs][:_HISTORY]
        traces = self._store.log.traces(live.key.search, best + failed)
        return [
            messages.PastTrial(
                name, traces[name], {share: secs if isfinite(secs) else 0.0 for share, secs in times[name].items()}
            )
            for name in best + failed
        ]

    def _transferred(self, key: LogKey, plan: allocation.OperatorPlan, operator: str, tenant: str) -> list[str]:
        """The donors' fastest traces: first the fastest of each donor, then the second of each."""
        known = self._store.log.donors(key, operator_kind(operator), tenant)
        by_donor = [
            self._store.log.best_trials(replace(key, workload_hash=donor.workload_hash), donor.share_key, _TRANSFERRED)
            for donor in choose_donors(known, operator, key.workload_hash, plan.shares)
        ]
        return [record.trace for rank in zip_longest(*by_donor) for record in rank if record is not None]


def _note_trials_above_budget(job: ActiveJob) -> None:
    requested, planned = job.stored.spec.trials, job.stored.progress.planned
    if job.stored.spec.extra_trials or planned <= requested:
        return
    if requested:
        job.note(f"{planned} trials, one for each operator; {requested} were requested")
    else:
        job.note(
            f"no search with 0 trials: the computed first candidate of each operator is measured, {planned} in all"
        )


def _note_kernel_shares(job: ActiveJob) -> None:
    for note in kernel_share_notes(job.stored):
        job.note(note)
    if job.tuned_before:
        job.note(f"no search: {', '.join(job.tuned_before)} tuned this model at {', '.join(job.shares)}")


def _note_unused_trials(job: ActiveJob) -> None:
    """Say why a job ends its search before it has the planned trials."""
    plans = list(job.plans.values())
    if job.stored.progress.saved and job.budget.is_needless(plans):
        job.note(
            f"nothing left to gain: further trials could save {allocation.left_to_gain(plans):.1%} of the time at most"
        )
        return
    unused = job.remaining - job.stored.progress.saved
    if unused > 0 and not any(plan.given_up for plan in job.plans.values()):
        job.note(f"{unused} trials are not used: the operators have no further candidates, or are at their limit")


def _same(known: Instance, worker: messages.WorkerInfo | None) -> bool:
    return worker is not None and worker.started_at == known.started_at
