"""A job's own trials, counted as they come in: no decision has to go through them all."""

from __future__ import annotations

from collections import Counter

from fractune_core.records import Status


class TrialCounts:
    """What has been measured, by candidate and share."""

    def __init__(self) -> None:
        self._known: set[tuple[str, str]] = set()
        self._shares: Counter[str] = Counter()
        """shares at which a candidate was measured"""
        self._candidates: Counter[int] = Counter()
        """candidates by the number of shares at which they were measured"""
        self.by_share: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        """by cause, without those that went well"""

    def add(self, candidate: str, share: str, status: Status) -> None:
        """Take note of a trial; the same one again changes nothing."""
        if (candidate, share) in self._known:
            return
        self._known.add((candidate, share))
        self._candidates[self._shares[candidate]] -= 1
        self._shares[candidate] += 1
        self._candidates[self._shares[candidate]] += 1
        self.by_share[share] += 1
        if status is not Status.OK:
            self.failures[status.value] += 1

    def complete(self, shares: int) -> int:
        """Candidates measured at that many shares or more."""
        return sum(count for at, count in self._candidates.items() if at >= max(1, shares))
