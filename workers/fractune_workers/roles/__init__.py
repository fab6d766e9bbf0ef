"""What a worker does, one file for each role. A role runs in the supervisor: it never imports TVM."""

from __future__ import annotations

from typing import Any, Protocol

from fractune_core.fleet.messages import WorkerInfo


class Role(Protocol):
    """One role: which queues it serves, and how it does a piece of work."""

    def start(self) -> None:
        """Get ready. Raises ShareUnavailable when the share cannot be had."""
        ...

    def warm_up(self) -> None:
        """Do ahead what the first work would wait for, once the worker has registered."""
        ...

    def queues(self) -> list[str]:
        """Names of the queues to serve, first one first."""
        ...

    def describe(self, info: WorkerInfo) -> None:
        """Fill in what this role adds to the worker's own account."""
        ...

    def handle(self, work: Any) -> None:
        """Do a piece of work and deliver what comes of it."""
        ...

    def stop(self) -> None: ...
