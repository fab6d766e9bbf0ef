"""Turns at the one queue of the compile workers: no owner fills it, so another's model waits for few pieces of work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from fractune_server.engine.active_job import ActiveJob

_PIECES_A_WORKER = 2
"""one that runs, and one that waits, so that no worker has to wait for the server"""
_TASKS = ("ingest", "compile")


class CompileTurns:
    """Not thread-safe: only the engine's thread calls it."""

    def __init__(self) -> None:
        self._most = _PIECES_A_WORKER
        self._held: Counter[str] = Counter()
        """pieces in the queue, by owner"""

    def note_workers(self, count: int) -> None:
        """There are so many compile workers."""
        self._most = _PIECES_A_WORKER * max(1, count)

    def recount(self, jobs: Iterable[ActiveJob]) -> None:
        """Count the pieces that the open jobs have requested."""
        self._held = Counter(job.stored.owner for job in jobs for work in job.requested if work.task in _TASKS)

    def is_free(self, job: ActiveJob) -> bool:
        """Whether the job's owner may have another piece in the queue."""
        return self._held[job.stored.owner] < self._most

    def take(self, job: ActiveJob) -> None:
        self._held[job.stored.owner] += 1
