"""A round in memory: the stored round, and what it still lacks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from fractune_core.records import record_id
from fractune_server.store.log import TuningLog
from fractune_server.store.rounds import Round


@dataclass
class LiveRound:
    stored: Round
    missing: set[tuple[str, str]] = field(default_factory=set)
    """candidate and share of the measurements that have not come in; empty until candidates are proposed"""
    best_before_s: float | None = None
    complete_before: int = 0

    @property
    def id(self) -> str:
        return self.stored.round_id

    @property
    def proposed(self) -> bool:
        return self.stored.candidates is not None

    @property
    def in_flight(self) -> int:
        """Candidates asked for, or proposed and not yet measured at every share."""
        return len({candidate for candidate, _ in self.missing}) if self.proposed else self.stored.asked

    def propose(self, candidates: Iterable[str], shares: Iterable[str]) -> None:
        self.stored.candidates = list(candidates)
        self.missing = {(candidate, share) for share in shares for candidate in self.stored.candidates}

    def drop_known(self, log: TuningLog) -> None:
        """Strike out what the log holds already."""
        ids = {record_id(self.id, *pair): pair for pair in self.missing}
        self.missing -= {ids[known] for known in log.existing(ids)}
