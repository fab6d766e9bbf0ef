"""The roles of workers, one file for each. A role runs in the supervisor: it never imports TVM."""

from abc import ABC, abstractmethod
from typing import Any

from fractune_core.fleet.messages import WorkerInfo


class Role(ABC):
    """One role: which queue it serves, and how it does a piece of work."""

    def start(self) -> None:  # noqa: B027  only some roles need it
        """Get ready. Raises ShareUnavailable when the share cannot be had."""

    def warm_up(self) -> None:  # noqa: B027
        """Do ahead what the first work would wait for, once the worker has registered."""

    @abstractmethod
    def queue(self) -> str:
        """Name of the queue to serve, once started."""

    def describe(self, info: WorkerInfo) -> WorkerInfo:
        """The worker's entry with what this role adds."""
        return info

    @abstractmethod
    def handle(self, work: Any) -> None:
        """Do a piece of work and deliver its results."""

    def keeps(self) -> bool:
        """Whether something is kept for the next piece of work that others may be waiting for."""
        return False

    def rest(self) -> None:  # noqa: B027
        """Give up what is kept: no work waits."""

    @abstractmethod
    def stop(self) -> None: ...
