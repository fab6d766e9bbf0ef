"""Static SM partitions of a daemon of our own: each belongs to one worker at a time.

A daemon makes no partition once its GPU has clients. So the first worker makes as many of its size as fit, and
later ones take one of these.
"""

from __future__ import annotations

import contextlib

from fractune_core.errors import ShareUnavailable
from fractune_workers.gpu.mps_control import MpsControl, MpsFailed, Partition, PartitionRefused
from fractune_workers.locks.flock import FolderLocks, Held

_MOST_PARTITIONS = 64
"""more than any GPU has chunks"""


class PartitionPool:
    """The partitions of one GPU. Every call is made behind the door of `locks`."""

    def __init__(self, gpu_uuid: str, control: MpsControl, locks: FolderLocks) -> None:
        self._gpu_uuid = gpu_uuid
        self._control = control
        self._locks = locks

    def take(self, chunks: int) -> tuple[str, Held]:
        """The full id of a partition of `chunks` chunks, and the lock that makes it this worker's.

        Raises ShareUnavailable when none is free and none can be made, MpsFailed.
        """
        return self._unused(chunks) or self._made(chunks)

    def _unused(self, chunks: int) -> tuple[str, Held] | None:
        for partition in self._control.partitions():
            # A partition in use may have a dead worker, but it still has a client of that worker.
            if partition.chunks == chunks and not partition.in_use:
                held = self._locks.take(self._full_id(partition))
                if held is not None:
                    return self._full_id(partition), held
        return None

    def _made(self, chunks: int) -> tuple[str, Held]:
        made = self._first(chunks)
        with contextlib.suppress(PartitionRefused):
            for _ in range(_MOST_PARTITIONS):
                self._control.add_partition(self._gpu_uuid, chunks)
        held = self._locks.take(made)
        if held is None:
            raise MpsFailed(f"MPS: the new partition {made} belongs to another worker already; restart the daemon")
        return made, held

    def _first(self, chunks: int) -> str:
        try:
            return self._control.add_partition(self._gpu_uuid, chunks)
        except PartitionRefused as error:
            if not self._control.processes() and self._remove_unused():
                return self._first(chunks)
            raise ShareUnavailable(
                f"share 'mps-sm:{chunks}' cannot be had now: {error}; partitions are made while the GPU has no "
                "clients: end the workers on this GPU, and start the one with the largest share first"
            ) from error

    def _remove_unused(self) -> bool:
        """Remove the partitions that no worker has; whether there was one."""
        removed = False
        for partition in self._control.partitions():
            full_id = self._full_id(partition)
            if not partition.in_use and self._locks.is_free(full_id):
                self._control.remove_partition(full_id)
                removed = True
        return removed

    def _full_id(self, partition: Partition) -> str:
        return f"{self._gpu_uuid}/{partition.name}"
