"""`mps-sm:N`: N chunks of SMs that are this client's alone, a static partition of an MPS daemon (CUDA 13.1).

How many SMs a chunk has is the daemon's business: what was granted is read, never multiplied.
"""

from __future__ import annotations

import os
from typing import ClassVar

from fractune_core.cuda.environment import MPS_PARTITION
from fractune_core.errors import ShareUnavailable
from fractune_core.shares import GrantedShare
from fractune_workers.confinement.under_mps import UnderMps
from fractune_workers.gpu.mps_control import Partition

_DRIVER = 590
"""the first whose MPS daemon divides a GPU into static partitions"""


class MpsSmConfinement(UnderMps):
    """An `mps-sm:N` share: the supervisor's `environment` takes a partition, its `leave` gives it back."""

    static: ClassVar[bool] = True

    def probe(self) -> None:
        """Raises ShareUnavailable also for a driver that has no static partitions; it would fail at the proof only."""
        if int(self.gpu.driver.partition(".")[0]) < _DRIVER:
            raise ShareUnavailable(
                f"share '{self.share}' needs driver {_DRIVER} (CUDA 13.1) or newer, this machine has "
                f"{self.gpu.driver}; ask for mps:PERCENT or green:SMS, or install a newer driver"
            )
        super().probe()

    def verify(self) -> GrantedShare:
        """The SMs of the partition: as the daemon lists them, as CUDA shows them, and as a kernel met them."""
        shown, met = self._seen_sms()
        partition = self._partition()
        if not partition.sms == shown == met or not partition.in_use:
            raise ShareUnavailable(
                f"share '{self.share}' cannot be verified: its partition has {partition.sms} SMs "
                f"({'with' if partition.in_use else 'without'} clients), CUDA shows {shown}, a kernel ran on {met}; "
                "start the worker again, and its daemon anew if that does not help"
            )
        return self._granted(shown, reserved=True)

    def _share_needs(self) -> dict[str, str]:
        return {MPS_PARTITION: self.daemon.take_partition(int(self.share.size))}

    def _partition(self) -> Partition:
        """The one that this process was put in."""
        named = os.environ.get(MPS_PARTITION, "")
        for partition in self.daemon.control.partitions():
            if partition.is_called(named):
                return partition
        raise ShareUnavailable(
            f"share '{self.share}': the MPS daemon has no partition '{named}' any more; start the worker again"
        )
