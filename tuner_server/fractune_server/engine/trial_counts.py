"""A job's own trials, counted as they come in: no decision has to go through them all."""

from __future__ import annotations

from collections import Counter

from fractune_core.records import Status


class TrialCounts:
    """What has been measured, by candidate and share."""

    def __init__(self) -> None:
        self._known: set[tuple[str, str]] = set()
        self.candidates: set[str] = set()
        self.by_share: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        """by cause, without those that went well"""

    def add(self, candidate: str, share: str, status: Status) -> None:
        """Take note of a trial; the same one again changes nothing."""
        if (candidate, share) in self._known:
            return
        self._known.add((candidate, share))
        self.candidates.add(candidate)
        self.by_share[share] += 1
        if status is not Status.OK:
            self.failures[status.value] += 1
