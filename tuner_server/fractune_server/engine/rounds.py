"""The rounds that are under way: how they start, who waits for them, what comes in, and how they end.

A round belongs to an operator, not to a job: whoever searches the same operator subscribes to it with its shares, and
it goes on as long as one of them is there.
"""

from __future__ import annotations

import logging
import zlib
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fractune_core.fleet.blobs import drop_blobs
from fractune_core.fleet.messages import BuildWork, SearchWork
from fractune_core.fleet.redis_names import BUILD_QUEUE, artifact_blob, tuner_stream
from fractune_core.log_fields import log_fields
from fractune_core.records import TuningRecord
from fractune_server.engine.active_job import ActiveJob
from fractune_server.engine.live_round import LiveRound
from fractune_server.engine.search_owners import SearchOwners
from fractune_server.scheduler.fair_queue import FairQueue
from fractune_server.store.records.log import LogKey
from fractune_server.transport.context import ServerContext
from fractune_server.transport.outgoing import mark_cancelled, send_workload
from fractune_server.transport.recorder import Arrival
from fractune_server.transport.work_queues import WorkQueues

_log = logging.getLogger(__name__)


class Rounds:
    """One thread only."""

    def __init__(self, context: ServerContext, queues: WorkQueues, fair_queue: FairQueue) -> None:
        self._context = context
        self._queues = queues
        self._fair_queue = fair_queue
        self._live: dict[str, LiveRound] = {}
        self._by_instance: defaultdict[str, dict[str, LiveRound]] = defaultdict(dict)
        self._by_search: defaultdict[LogKey, dict[str, LiveRound]] = defaultdict(dict)
        """trials by the tuner instance that searches, and by what is searched: their rounds by id"""
        self._lost: dict[LogKey, set[str]] = {}
        """candidates of rounds that nobody waited for any more before they were measured anywhere"""
        self.owners = SearchOwners()
        """which tuner instance knows which search"""
        self._unsure: LiveRound | None = None
        """stored, and Redis has not said that it has taken its work"""

    def all(self) -> list[LiveRound]:
        return list(self._live.values())

    def get(self, round_id: str) -> LiveRound | None:
        return self._live.get(round_id)

    def trials(self) -> list[LiveRound]:
        return [live for live in self._live.values() if live.is_trial]

    def trials_of(self, instance: str) -> list[LiveRound]:
        """Those that one tuner instance has proposed, or is to propose."""
        return list(self._by_instance.get(instance, {}).values())

    def trials_for(self, key: LogKey) -> list[LiveRound]:
        """Those of the search that `key` belongs to."""
        return list(self._by_search.get(key.search, {}).values())

    def validations(self) -> list[LiveRound]:
        return [live for live in self._live.values() if not live.is_trial]

    def load(self, jobs: Collection[ActiveJob]) -> None:
        """Take up what an earlier server left under way; open jobs wait again for what they had asked for first. What
        it had not handed out yet is called off.
        """
        store, open_jobs = self._context.store, {job.id: job for job in jobs}
        for stored in store.jobs.rounds():
            asker = open_jobs.get(stored.job) or ActiveJob(store.jobs.get(stored.job), [])
            granted = stored.granted or asker.stored.granted
            live = LiveRound(replace(stored, granted=granted), asker.log_key(stored.workload_hash), asker.stored.device)
            if stored.job in open_jobs:
                live.subscribers[stored.job] = asker
            if stored.candidates is not None:
                live.propose(stored.candidates)
                live.drop_known(store.log)
            self._add(live)
            self._call_off_unless_handed_out(live)

    def start(self, live: LiveRound, queue: str, works: Sequence[SearchWork | BuildWork]) -> None:
        """For the subscribers of the round; the job that asked for it is charged. The first of its works has its id.

        Raises StateUnusable, and nothing is handed out, when another server has taken over, and redis.RedisError, after
        which `settle` is to be called when Redis answers again.
        """
        send_workload(self._context, live.stored.workload_hash)
        job = live.subscribers[live.stored.job]
        at_front = self.goes_first(job)
        for work in works:
            work["at_front"] = at_front
        # First the store, then the queue: whoever goes on from here, this server or the next, can ask Redis whether it
        # has the work of a round, but would not know of a round that is not stored, and pay for another one.
        self._context.store.jobs.save_round(live.stored)
        self._add(live)
        self._mark_dirty(live)
        self._fair_queue.charge(job.claimant, live.measurements, scheduled=live.is_trial)
        self._unsure = live
        self._context.store.check_lock()  # the process may have stood still since this tick began
        self._queues.enqueue(queue, *works, at_front=at_front)
        self._unsure = None

    def settle(self) -> None:
        """Find out whether Redis took the last round's work before it went away."""
        if self._unsure is not None and self._unsure.id in self._live:
            self._call_off_unless_handed_out(self._unsure)
        self._unsure = None

    def _call_off_unless_handed_out(self, live: LiveRound) -> None:
        if not self._queues.knows(live.id):
            with log_fields(job=live.stored.job):
                _log.info("round %s was not handed out; another one takes its place", live.id)
            self._call_off(live)

    def _call_off(self, live: LiveRound) -> None:
        """No worker is to begin it any more, also where a server that stood still hands it out after all."""
        mark_cancelled(self._context.redis, live.id)
        self.lose(live)

    def goes_first(self, job: ActiveJob) -> bool:
        """Whether its work goes before what waits: others have work under way, and all of them were given more.

        What waits for its turn rightly is so never passed by, however many come.
        """
        waiting = (live for live in self._live.values() if live.is_due(job.shares))
        others = (each for live in waiting for each in live.subscribers.values() if each is not job)
        behind = [self._fair_queue.is_behind(job.claimant, other.claimant) for other in others]
        return bool(behind) and all(behind)

    def awaited(self, arrivals: list[Arrival]) -> list[Arrival]:
        """Those of the arrivals, in their order, that are no measurements, or measurements that a round has asked for.

        No mark in Redis decides this: whoever writes there can remove marks, and have genuine work done once more.
        """
        proposed: dict[str, set[str]] = {}  # with this batch: it takes effect before the records that come after it
        kept: list[Arrival] = []
        refused: Counter[str] = Counter()
        for arrival in arrivals:
            event = arrival.event
            if event["event"] == "proposed":
                proposed.setdefault(event["round_id"], set(event["candidates"]))
            if arrival.record is None or arrival.replayed or self._asked_for(arrival.record, event, proposed):
                kept.append(arrival)
            else:
                refused[event["job"]] += 1
        for job, count in refused.items():
            with log_fields(job=job):
                _log.info("%d results of job %s are not taken: no round waits for them", count, job)
        return kept

    def _asked_for(self, record: TuningRecord, event: Any, proposed: Mapping[str, Collection[str]]) -> bool:
        live = self._live.get(event["round_id"])
        return live is not None and live.asked_for(record, proposed.get(live.id, ()))

    def take_proposed(self, live: LiveRound, candidates: Iterable[str]) -> None:
        # Its results come after it in the same stream, so that none of them can have come before.
        live.propose(candidates)
        self._context.store.jobs.save_round(live.stored)
        self._mark_dirty(live)
        if not live.missing:
            self._finish(live)

    def take_record(self, record: TuningRecord, round_id: str) -> None:
        """Strike a result out of its round; with the last one the round ends, or goes on at further shares."""
        live = self._live.get(round_id)
        if live is None or not live.proposed:
            return
        live.take(record)
        if not live.missing:
            self._finish(live)

    def end(self, live: LiveRound) -> None:
        """End a round, whatever it lacks; what its search gained is learned."""
        self._remove(live)
        if live.is_trial and not live.proposed:
            self.owners.forget(live.key.search)  # it may not have got what the search began with
        self._drop_artifacts(live, live.stored.candidates or [])
        self._context.store.jobs.drop_round(live.id)
        self._mark_dirty(live)
        for job in live.subscribers.values() if live.is_trial and live.proposed else ():
            job.plans[live.stored.workload_hash].end_round(whole=not live.missing)

    def leave(self, job: ActiveJob) -> None:
        """The job waits for none of them any more."""
        for live in self._live.values():
            live.subscribers.pop(job.id, None)

    def drop_unwanted(self) -> None:
        """Take back the rounds that nobody waits for."""
        for live in self.all():
            if not live.subscribers:
                self._call_off(live)

    def lose(self, live: LiveRound) -> None:
        """End a round; what it has not measured anywhere is nobody's fault, and to be proposed again."""
        if live.is_trial:
            shares = set(live.stored.granted)
            unmeasured = {name for name, _ in live.missing if all((name, share) in live.missing for share in shares)}
            self._lost.setdefault(live.key.search, set()).update(unmeasured - live.ran.keys())
        self.end(live)

    def take_lost(self, key: LogKey) -> list[str]:
        """The candidates of a search that were lost since they were last asked for."""
        return sorted(self._lost.pop(key.search, ()))

    def withdraw(self, live: LiveRound) -> None:
        """End a round that was not proposed, and take its search back."""
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
        """All has come in: go on where a job that came late needs the same, else end."""
        before = live.stored.candidates or []
        if not live.is_trial or not live.widen():
            self.end(live)
            return
        kept = set(live.stored.candidates or ())
        self._drop_artifacts(live, [name for name in before if name not in kept])
        work = _further_work(live)
        at_front = work["at_front"] = any(map(self.goes_first, live.subscribers.values()))
        # The id is the same when a restarted server asks once more.
        if not self._queues.has(work["work_id"]):
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
    """What made the code, where a record says it; the other versions are those of whoever measures."""
    return {name: version for name, version in record.versions.items() if name == "compiler"}


def _further_work(live: LiveRound) -> BuildWork:
    """The work of a round that goes on at further shares, with what was built for the first ones."""
    records = [live.ran[name] for name in live.stored.candidates or ()]
    some = records[0]
    return {
        "do": "build",
        "work_id": f"{live.id}-{zlib.crc32(' '.join(live.stored.granted).encode()):x}",
        "round_id": live.id,
        "job": live.stored.job,
        "scope": live.key.scope,
        "operator": {
            "workload_hash": some.workload_hash,
            "name": some.operator,
            "target": some.target,
            "target_key": some.target_key,
        },
        "kind": live.stored.kind.value,
        "device_key": live.device.key,
        "shares": list(live.stored.granted),
        "candidates": [
            {
                "candidate": record.candidate_id,
                "trace": record.trace,
                "built": {"build_secs": record.build_secs, "versions": _compiler_of(record)},
            }
            for record in records
        ],
        "reply": tuner_stream(live.stored.instance),
    }
