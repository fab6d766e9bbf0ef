"""The rounds in progress: their start, the jobs that wait for them, their results, and their end.

A round belongs to an operator, not to a job. Every job that searches the operator subscribes to the round with its
shares. The round continues while it has a subscriber.
"""

import logging
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fractune_core.fleet import messages
from fractune_core.fleet.blobs import drop_blobs
from fractune_core.fleet.redis_names import BUILD_QUEUE, artifact_blob, tuner_stream
from fractune_core.names import digest_of
from fractune_core.records import UNTUNED, Kind, Status, TuningRecord, candidate_id, record_id
from fractune_core.shares import Device, GrantedShare
from fractune_core.tracing import log_fields
from fractune_server.engine.active_job import ActiveJob
from fractune_server.scheduler.allocation import OperatorPlan
from fractune_server.scheduler.fair_queue import FairQueue
from fractune_server.store.jobs import Round
from fractune_server.store.records.log import LogKey, TuningLog
from fractune_server.transport.context import ServerContext
from fractune_server.transport.recorder import Arrival
from fractune_server.transport.work_queues import WorkQueues, mark_cancelled, send_workload


@dataclass
class LiveRound:
    stored: Round
    key: LogKey
    """what the round measures; jobs whose key of the operator differs cannot use it"""
    device: Device
    tenant: str
    """of the job that requested the round: its work is done for this tenant, whoever else waits for it"""
    subscribers: dict[str, ActiveJob] = field(default_factory=dict)
    """open jobs that wait for the round, by id: the job that requested it, and others that can use it"""
    missing: set[tuple[str, str]] = field(default_factory=set)
    """missing measurements, as candidate and share; empty until candidates are proposed"""
    ran: dict[str, TuningRecord] = field(default_factory=dict)
    """one record of each candidate that ran well and whose result this process has seen"""
    covered: set[str] = field(default_factory=set)
    """shares that the round measured at before it was widened"""

    @property
    def id(self) -> str:
        return self.stored.round_id

    @property
    def untuned(self) -> str:
        """Candidate id of the untuned default."""
        return candidate_id(self.key.workload_hash, self.key.target_key, UNTUNED)

    @property
    def is_trial(self) -> bool:
        return self.stored.kind is Kind.TRIAL

    @property
    def proposed(self) -> bool:
        return self.stored.candidates is not None

    @property
    def measurements(self) -> int:
        """Number of measurements of the proposed candidates; before the proposal, of the requested count."""
        candidates = self.stored.candidates
        return (self.stored.asked if candidates is None else len(candidates)) * len(self.stored.granted)

    def is_due(self, shares: Collection[str]) -> bool:
        """Whether the proposal or a measurement at one of these shares is missing."""
        return not self.proposed or any(share in shares for _, share in self.missing)

    def under_way(self, shares: Collection[str]) -> int:
        """Candidates that are not yet measured at all of these shares; before the proposal, the requested count."""
        if not self.proposed:
            return self.stored.asked
        return len({candidate for candidate, share in self.missing if share in shares})

    def in_flight(self, plan: OperatorPlan) -> int:
        """Candidates that are not yet complete in a subscriber's plan; before the proposal, the requested count."""
        if self.stored.candidates is None:
            return self.stored.asked
        return sum(not plan.has(candidate) for candidate in self.stored.candidates)

    def propose(self, candidates: Iterable[str]) -> None:
        self.stored.candidates = list(candidates)
        self.missing = {(candidate, share) for share in self.stored.granted for candidate in self.stored.candidates}

    def drop_known(self, log: TuningLog) -> None:
        """Drop the measurements that the log already holds."""
        ids = {record_id(self.id, *pair): pair for pair in self.missing}
        self.missing -= {ids[known] for known in log.existing(ids)}

    def requested(self, record: TuningRecord, arriving: Collection[str]) -> bool:
        """Whether the round requested this measurement; a result may arrive twice.

        `arriving`: candidates of a proposal in the same batch, for a round that has none yet.
        """
        candidates = arriving if self.stored.candidates is None else self.stored.candidates
        if record.kind is Kind.VALIDATION:  # where a trial's one candidate is validated at once
            candidates = [*candidates, self.untuned]
        return record.candidate_id in candidates and record.share in self.stored.granted

    def take(self, record: TuningRecord) -> None:
        """Note a result. Of a candidate that is validated at once, its trial follows."""
        if record.kind is not self.stored.kind:
            return
        self.missing.discard((record.candidate_id, record.share))
        if record.status is Status.OK:
            self.ran.setdefault(record.candidate_id, record)

    def widen(self) -> bool:
        """Measure candidates that ran well at further shares, for jobs that subscribed late. False if none needs it.

        The earlier measurements are in the log. From now on the round holds only the new ones.
        """
        self.covered.update(self.stored.granted)
        lacked = {name: self._lacked(name) for name in self.stored.candidates or () if name in self.ran}
        wanted = max(lacked.values(), key=len, default={})
        if wanted:
            self.stored = replace(self.stored, granted=wanted)
            self.propose(name for name, granted in lacked.items() if granted.keys() == wanted.keys())
        return bool(wanted)

    def _lacked(self, candidate: str) -> dict[str, GrantedShare]:
        """Shares where a subscriber that still searches needs the candidate, by share as text."""
        return {
            share: granted
            for job in self.subscribers.values()
            if job.is_searching
            for share, granted in job.stored.tuned_at.items()
            if share not in self.covered and job.plans[self.key.workload_hash].lacks(candidate, granted.key)
        }


_KEPT = 10_000
"""searches; an instance keeps far fewer, and gets the results of the others from the log"""


class SearchOwners:
    """Not thread-safe: only the engine's thread calls it."""

    def __init__(self, kept: int = _KEPT) -> None:
        self._most = kept
        self._owners: dict[LogKey, str] = {}
        """the latest at the end"""

    def may_search(self, search: LogKey, instance: str) -> bool:
        """Whether no other instance knows the search."""
        return self._owners.get(search, instance) == instance

    def give(self, search: LogKey, instance: str) -> bool:
        """Continue the search at the instance. Returns whether the search is new to the instance."""
        before = self._owners.pop(search, None)
        self._owners[search] = instance
        if len(self._owners) > self._most:
            del self._owners[next(iter(self._owners))]
        return before != instance

    def forget(self, search: LogKey) -> None:
        """Perhaps no instance knows the search: the next one gets everything from the log."""
        self._owners.pop(search, None)

    def drop(self, gone: Collection[str]) -> None:
        """These instances are gone."""
        self._owners = {search: owner for search, owner in self._owners.items() if owner not in gone}


_log = logging.getLogger(__name__)


class Rounds:
    """Not thread-safe: only the engine's thread calls it."""

    def __init__(self, context: ServerContext, queues: WorkQueues, fair_queue: FairQueue) -> None:
        self._context = context
        self._queues = queues
        self._fair_queue = fair_queue
        self._live: dict[str, LiveRound] = {}
        self._by_instance: defaultdict[str, dict[str, LiveRound]] = defaultdict(dict)
        self._by_search: defaultdict[LogKey, dict[str, LiveRound]] = defaultdict(dict)
        """rounds of trials by id, by the tuner instance that searches and by the search"""
        self._lost: dict[LogKey, set[str]] = {}
        """candidates of dropped rounds that were not measured anywhere"""
        self.owners = SearchOwners()
        self._unsure: LiveRound | None = None
        """a round that is stored, and whose work Redis has not confirmed"""

    def all(self) -> list[LiveRound]:
        return list(self._live.values())

    def get(self, round_id: str) -> LiveRound | None:
        return self._live.get(round_id)

    def trials(self) -> list[LiveRound]:
        return [live for live in self._live.values() if live.is_trial]

    def trials_of(self, instance: str) -> list[LiveRound]:
        """Rounds that the tuner instance has proposed or will propose."""
        return list(self._by_instance.get(instance, {}).values())

    def trials_for(self, key: LogKey) -> list[LiveRound]:
        """Rounds of the search that `key` belongs to."""
        return list(self._by_search.get(key.search, {}).values())

    def validations(self) -> list[LiveRound]:
        return [live for live in self._live.values() if not live.is_trial]

    def load(self, jobs: Collection[ActiveJob]) -> None:
        """Load the rounds of an earlier server; the open jobs that requested them subscribe again.

        Rounds that it had not handed out are cancelled, and rounds of operators that their job no longer has.
        """
        store, open_jobs = self._context.store, {job.id: job for job in jobs}
        for stored in store.jobs.rounds():
            asker = open_jobs.get(stored.job) or ActiveJob(store.jobs.get(stored.job), [])
            live = LiveRound(stored, asker.log_key(stored.workload_hash), asker.stored.device, asker.stored.tenant)
            if any(operator.workload_hash == stored.workload_hash for operator in asker.operators):
                live.subscribers[stored.job] = asker
            if stored.candidates is not None:
                live.propose(stored.candidates)
                live.drop_known(store.log)
            self._add(live)
            self._cancel_unless_handed_out(live)

    def start(self, live: LiveRound, queue: str, works: Sequence[messages.SearchWork | messages.BuildWork]) -> None:
        """Hand out the works of a round and charge the job that requested it. The first work has the round's id.

        Raises StateUnusable if another server has taken over; then nothing is handed out. Raises redis.RedisError;
        then call `settle` when Redis answers again.
        """
        send_workload(self._context, live.stored.workload_hash)
        job = live.subscribers[live.stored.job]
        # First the store, then the queue: this server or the next one can check whether Redis has the work of a stored
        # round. A round that is only in the queue would be unknown, and another one would be paid for.
        self._context.store.jobs.save_round(live.stored)
        self._add(live)
        self._mark_dirty(live)
        self._fair_queue.charge(job.claimant, live.measurements, scheduled=live.is_trial)
        self._unsure = live
        self._context.store.check_lock()  # the process may have stood still since this tick began
        self._queues.enqueue(queue, *works, at_front=works[0].round.at_front)
        self._unsure = None

    def settle(self) -> None:
        """Check whether Redis took the last round's work before it went away."""
        if self._unsure is not None and self._unsure.id in self._live:
            self._cancel_unless_handed_out(self._unsure)
        self._unsure = None

    def _cancel_unless_handed_out(self, live: LiveRound) -> None:
        if not self._queues.knows(live.id):
            with log_fields(job=live.stored.job):
                _log.info("round %s was not handed out; another one takes its place", live.id)
            self._cancel(live)

    def _cancel(self, live: LiveRound) -> None:
        """Prevent workers from beginning the round, even if a server that stood still hands it out later."""
        mark_cancelled(self._context.redis, live.id)
        self.lose(live)

    def goes_first(self, job: ActiveJob) -> bool:
        """Whether the job's work goes to the front: others have work in progress, and all of them were given more.

        Work that waits rightly is therefore never overtaken, however many jobs arrive.
        """
        waiting = (live for live in self._live.values() if live.is_due(job.shares))
        others = (each for live in waiting for each in live.subscribers.values() if each is not job)
        behind = [self._fair_queue.is_behind(job.claimant, other.claimant) for other in others]
        return bool(behind) and all(behind)

    def awaited(self, arrivals: list[Arrival]) -> list[Arrival]:
        """The arrivals, in their order, without measurements that no round has requested.

        No mark in Redis decides this: a writer there could remove marks, and have genuine work done once more.
        """
        proposed: dict[str, set[str]] = {}  # in this batch; it takes effect before the records that follow it
        kept: list[Arrival] = []
        refused: Counter[str] = Counter()
        for arrival in arrivals:
            event = arrival.event
            if isinstance(event, messages.Proposed):
                proposed.setdefault(event.round_id, set(event.candidates))
            if not isinstance(event, messages.Measured) or arrival.replayed or self._is_requested(event, proposed):
                kept.append(arrival)
            else:
                refused[event.job] += 1
        for job, count in refused.items():
            with log_fields(job=job):
                _log.info("dropped %d results of job %s: no round waits for them", count, job)
        return kept

    def _is_requested(self, event: messages.Measured, proposed: Mapping[str, Collection[str]]) -> bool:
        live = self._live.get(event.round_id)
        return live is not None and live.requested(event.record, proposed.get(live.id, ()))

    def take_proposed(self, live: LiveRound, candidates: Iterable[str]) -> None:
        # The results follow the proposal in the same stream, so none of them has arrived before.
        live.propose(candidates)
        self._context.store.jobs.save_round(live.stored)
        self._mark_dirty(live)
        if not live.missing:
            self._finish(live)

    def take_record(self, record: TuningRecord, round_id: str) -> None:
        """Note a result. After the last one the round ends, or continues at further shares."""
        live = self._live.get(round_id)
        if live is None or not live.proposed:
            return
        live.take(record)
        if not live.missing:
            self._finish(live)

    def end(self, live: LiveRound) -> None:
        """End a round, even if it is incomplete; its jobs learn how much its search gained."""
        self._remove(live)
        if live.is_trial and not live.proposed:
            self.owners.forget(live.key.search)  # the instance may not have received the start of the search
        self._drop_artifacts(live, [live.untuned, *(live.stored.candidates or ())])
        self._context.store.jobs.drop_round(live.id)
        self._mark_dirty(live)
        for job in live.subscribers.values() if live.is_trial and live.proposed else ():
            job.search_ended(live.stored.workload_hash, whole=not live.missing)

    def leave(self, job: ActiveJob) -> None:
        """Unsubscribe the job from all rounds."""
        for live in self._live.values():
            live.subscribers.pop(job.id, None)

    def drop_unwanted(self) -> None:
        """Cancel the rounds without subscribers."""
        for live in self.all():
            if not live.subscribers:
                self._cancel(live)

    def lose(self, live: LiveRound) -> None:
        """End a round that was lost. Candidates that were not measured anywhere are to be proposed again."""
        if live.is_trial:
            shares = set(live.stored.granted)
            unmeasured = {name for name, _ in live.missing if all((name, share) in live.missing for share in shares)}
            self._lost.setdefault(live.key.search, set()).update(unmeasured - live.ran.keys())
        self.end(live)

    def take_lost(self, key: LogKey) -> list[str]:
        """The candidates of a search that were lost since the last call."""
        return sorted(self._lost.pop(key.search, ()))

    def withdraw(self, live: LiveRound) -> None:
        """End a round that was not proposed, and withdraw its search."""
        self._queues.withdraw(live.id)
        self.end(live)

    def _add(self, live: LiveRound) -> None:
        self._live[live.id] = live
        if live.is_trial:
            self._by_instance[live.stored.instance][live.id] = live
            self._by_search[live.key.search][live.id] = live

    def _remove(self, live: LiveRound) -> None:
        del self._live[live.id]
        if live.is_trial:
            _take_out(self._by_instance, live.stored.instance, live.id)
            _take_out(self._by_search, live.key.search, live.id)

    def _finish(self, live: LiveRound) -> None:
        """All results are here: continue at the shares of jobs that subscribed late, else end."""
        before = live.stored.candidates or []
        if not live.is_trial or not live.widen():
            self.end(live)
            return
        kept = set(live.stored.candidates or ())
        self._drop_artifacts(live, [name for name in before if name not in kept])
        at_front = any(map(self.goes_first, live.subscribers.values()))
        work = _further_work(live, at_front=at_front)
        # A restarted server uses the same id.
        if not self._queues.has(work.work_id):
            self._queues.enqueue(BUILD_QUEUE, work, at_front=at_front)
        self._context.store.jobs.save_round(live.stored)

    def _drop_artifacts(self, live: LiveRound, candidates: Iterable[str]) -> None:
        drop_blobs(self._context.redis, [artifact_blob(live.id, name) for name in candidates])

    def _mark_dirty(self, live: LiveRound) -> None:
        for job in live.subscribers.values():
            job.dirty = True


def _take_out(rounds: dict[Any, dict[str, LiveRound]], name: Any, round_id: str) -> None:
    del rounds[name][round_id]
    if not rounds[name]:
        del rounds[name]


def _compiler_of(record: TuningRecord) -> dict[str, str]:
    """The compiler's version, if the record has it; the other versions are those of the measuring worker."""
    return {name: version for name, version in record.versions.items() if name == "compiler"}


def _further_work(live: LiveRound, *, at_front: bool) -> messages.BuildWork:
    """The work of a round that continues at further shares, with the builds for the first shares."""
    records = [live.ran[name] for name in live.stored.candidates or ()]
    some = records[0]
    operator = messages.TargetOperator(some.workload_hash, some.operator, some.target, some.target_key)
    return messages.BuildWork(
        work_id=f"{live.id}-{digest_of(*live.stored.granted)}",
        job=live.stored.job,
        tenant=live.tenant,
        round=messages.WorkRound(live.id, live.key.namespace, operator, at_front),
        purpose=live.stored.kind,
        device_key=live.device.key,
        shares=list(live.stored.granted),
        candidates=[
            messages.CandidateItem(
                each.candidate_id, each.trace, messages.BuiltItem(each.build_secs, _compiler_of(each))
            )
            for each in records
        ],
        reply=tuner_stream(live.stored.instance),
    )
