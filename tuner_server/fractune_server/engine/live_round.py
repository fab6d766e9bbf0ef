"""A round in memory: the stored round, the jobs that wait for it, and the missing measurements."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace

from fractune_core.records import Kind, Status, TuningRecord, record_id
from fractune_core.shares import Device, GrantedShare
from fractune_server.engine.active_job import ActiveJob
from fractune_server.scheduler.allocation import OperatorPlan
from fractune_server.store.records.log import LogKey, TuningLog
from fractune_server.store.stored_job import Round


@dataclass
class LiveRound:
    stored: Round
    key: LogKey
    """what the round measures; jobs whose key of the operator differs cannot use it"""
    device: Device
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
        return record.candidate_id in candidates and record.share in self.stored.granted

    def take(self, record: TuningRecord) -> None:
        """Note a result."""
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
