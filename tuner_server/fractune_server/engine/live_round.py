"""A round in memory: the stored round, who waits for it, and what it still lacks."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace

from fractune_core.jobs import JobState
from fractune_core.records import Kind, Status, TuningRecord, record_id
from fractune_core.shares import Device, GrantedShare
from fractune_server.engine.active_job import ActiveJob
from fractune_server.scheduler.allocation import OperatorPlan
from fractune_server.store.records.log import LogKey, TuningLog
from fractune_server.store.rounds import Round


@dataclass
class LiveRound:
    stored: Round
    key: LogKey
    """what it measures: jobs for which the log has other keys of the operator have no part in it"""
    device: Device
    subscribers: dict[str, ActiveJob] = field(default_factory=dict)
    """open jobs that wait for it, by id: the one that asked first, and those that can use the same"""
    missing: set[tuple[str, str]] = field(default_factory=set)
    """candidate and share of the measurements that have not come in; empty until candidates are proposed"""
    ran: dict[str, TuningRecord] = field(default_factory=dict)
    """a record of each candidate that ran well, as far as this process has seen them come in"""
    covered: set[str] = field(default_factory=set)
    """shares that it measured at before it was widened"""

    @property
    def id(self) -> str:
        return self.stored.round_id

    @property
    def is_trial(self) -> bool:
        return self.stored.kind is Kind.TRIAL

    @property
    def proposed(self) -> bool:
        return self.stored.candidates is not None

    @property
    def measurements(self) -> int:
        """Asked for, or of what is proposed."""
        candidates = self.stored.candidates
        return (self.stored.asked if candidates is None else len(candidates)) * len(self.stored.granted)

    def is_due(self, shares: Collection[str]) -> bool:
        """Whether it was not proposed yet, or lacks a measurement at one of these shares."""
        return not self.proposed or any(share in shares for _, share in self.missing)

    def under_way(self, shares: Collection[str]) -> int:
        """Candidates asked for, or proposed and not yet measured at all of these shares."""
        if not self.proposed:
            return self.stored.asked
        return len({candidate for candidate, share in self.missing if share in shares})

    def in_flight(self, plan: OperatorPlan) -> int:
        """Candidates asked for, or proposed, that are not yet complete in a subscriber's plan."""
        if self.stored.candidates is None:
            return self.stored.asked
        return sum(not plan.has(candidate) for candidate in self.stored.candidates)

    def propose(self, candidates: Iterable[str]) -> None:
        self.stored.candidates = list(candidates)
        self.missing = {(candidate, share) for share in self.stored.granted for candidate in self.stored.candidates}

    def drop_known(self, log: TuningLog) -> None:
        """Strike out what the log holds already."""
        ids = {record_id(self.id, *pair): pair for pair in self.missing}
        self.missing -= {ids[known] for known in log.existing(ids)}

    def asked_for(self, record: TuningRecord, arriving: Collection[str]) -> bool:
        """Whether the round asks for this measurement; its result may come twice. `arriving`: the candidates of a
        proposal that came with the record, for a round that has none yet.
        """
        candidates = arriving if self.stored.candidates is None else self.stored.candidates
        return record.candidate_id in candidates and record.share in self.stored.granted

    def take(self, record: TuningRecord) -> None:
        """Strike out a result."""
        self.missing.discard((record.candidate_id, record.share))
        if record.status is Status.OK:
            self.ran.setdefault(record.candidate_id, record)

    def widen(self) -> bool:
        """Have what ran well measured where jobs still need it that came when the round was under way; False when
        there is nothing to do.

        What the round held before is in the log: from now on it holds this alone.
        """
        self.covered.update(self.stored.granted)
        lacked = {name: self._lacked(name) for name in self.stored.candidates or () if name in self.ran}
        wanted = max(lacked.values(), key=len, default={})
        if wanted:
            self.stored = replace(self.stored, granted=wanted)
            self.propose(name for name, granted in lacked.items() if granted.keys() == wanted.keys())
        return bool(wanted)

    def _lacked(self, candidate: str) -> dict[str, GrantedShare]:
        """By share as text: where jobs that still search need the candidate."""
        searching = [
            job for job in self.subscribers.values() if job.stored.state is JobState.TUNING and not job.time_is_up
        ]
        return {
            share: granted
            for job in searching
            for share, granted in job.stored.granted.items()
            if share not in self.covered and job.plans[self.key.workload_hash].lacks(candidate, granted.key)
        }
