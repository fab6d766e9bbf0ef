"""`mps:P`: at most P percent of a GPU's SMs. A cap and no reservation: two such clients may sit on the same SM."""

import logging
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from fractune_core.cuda import MPS_MEMORY_LIMIT, MPS_PARTITION, MPS_PERCENTAGE, MPS_PIPE_DIRECTORY, VISIBLE_DEVICES
from fractune_core.errors import ShareUnavailable
from fractune_core.shares import GrantedShare, Share
from fractune_workers.confinement.base import Confinement
from fractune_workers.cuda.driver import CudaDriver, Driver, open_driver
from fractune_workers.gpu.gpu_process import GpuProcess
from fractune_workers.gpu.mps_control import MpsFailed, Partition
from fractune_workers.gpu.mps_daemon import MpsDaemon, mps_daemon
from fractune_workers.gpu.nvml import Nvml, open_nvml

_DEFAULT_PIPE_DIR = "/tmp/nvidia-mps"  # noqa: S108  CUDA's own


class BesideMps(Confinement):
    """To inherit from: a share of the GPU that this process sees first. Faults stay with the process, unless an MPS
    daemon may be there: CUDA makes every process a client of the daemon that it finds.
    """

    def __init__(
        self, share: Share, nvml: Callable[[], Nvml] = open_nvml, driver: Callable[[], CudaDriver] = open_driver
    ) -> None:
        self.share = share
        self._process = GpuProcess(share, nvml, driver)

    @property
    def fault_domain(self) -> str | None:
        return self._process.gpu.uuid if _daemon_may_be_here() else None

    @property
    def gpu_uuid(self) -> str:
        return self._process.gpu.uuid

    def before_kill(self, pid: int) -> bool:  # noqa: ARG002  there is no daemon of ours to ask
        return not _daemon_may_be_here()

    def environment(self) -> dict[str, str]:
        return {VISIBLE_DEVICES: self._process.gpu.uuid}

    def leave(self) -> None:
        """There is nothing to give back."""


def _daemon_may_be_here() -> bool:
    return Path(os.environ.get(MPS_PIPE_DIRECTORY) or _DEFAULT_PIPE_DIR).is_dir()


_MIB = 1 << 20
_UNITS = {"G": 1 << 30, "M": _MIB}
# A limit is set for each device that a client sees; it sees one, number 0.
_MEMORY_LIMIT = re.compile(r"(?:^|,)0=([1-9][0-9]*)([GM])B?(?:,|$)")
_log = logging.getLogger(__name__)


class UnderMps(ABC):
    """To inherit from: a share of the GPU that this process sees first, held to by an MPS daemon.

    The supervisor's `environment` has the daemon run, and its `leave` gives it back; the confined process changes
    nothing. Priorities are left as they are. Raises ShareUnavailable where no GPU can have such a share.
    """

    static: ClassVar[bool] = False
    """whether the daemon has to be one for static partitions"""

    def __init__(
        self,
        share: Share,
        *,
        nvml: Callable[[], Nvml] = open_nvml,
        driver: Callable[[], Driver] = open_driver,
        daemon: MpsDaemon | None = None,
    ) -> None:
        self.share = share
        self._process = GpuProcess(share, nvml, driver)
        self._process.refuse_mig()
        self.gpu = self._process.gpu
        self.daemon = daemon or mps_daemon(self.gpu.uuid, static=self.static)

    @property
    def fault_domain(self) -> str:
        """The GPU: a fault in one client ends the others on it."""
        return self.gpu.uuid

    @property
    def gpu_uuid(self) -> str:
        return self.gpu.uuid

    def is_active(self) -> bool:
        """Whether the MPS server takes clients, now. Raises MpsFailed when its daemon does not say."""
        return self.daemon.is_active()

    def restart_service(self) -> None:
        self.daemon.restart_service()

    def before_kill(self, pid: int) -> bool:
        """True once the MPS server has let go of the client `pid`. Raises MpsFailed: a kill may harm others then."""
        self.daemon.end_client(pid)
        return True

    def probe(self) -> None:
        self.daemon.probe()

    def environment(self) -> dict[str, str]:
        self.daemon.hold()
        try:
            return {**self._client_needs(), **self._share_needs()}
        except ShareUnavailable:
            self.daemon.release()
            raise

    def enter(self) -> None:
        """Check that this process was started with what it needs, and wait until the server lets clients in.

        CUDA reads the variables when it starts, which is here. Raises ShareNotReady if the server accepts no client.
        """
        self._process.check_start(self._client_needs())
        self._process.check_start(self._share_needs())
        self.daemon.wait_until_active()
        self._process.start_cuda()

    def leave(self) -> None:
        """A daemon that does not end is reported: the result for which the share was held is valid all the same."""
        try:
            self.daemon.release()
        except MpsFailed as error:
            _log.warning("share '%s' was left, and %s", self.share, error)

    @abstractmethod
    def _share_needs(self) -> dict[str, str]:
        """Environment variables that make the client one of this share; in a confined process it changes nothing."""

    def _client_needs(self) -> dict[str, str]:
        needs = {MPS_PIPE_DIRECTORY: str(self.daemon.pipe_dir), VISIBLE_DEVICES: self.gpu.uuid}
        if self._memory_limit_bytes is not None:
            needs[MPS_MEMORY_LIMIT] = f"0={max(1, self._memory_limit_bytes // _MIB)}M"
        return needs

    def _seen_sms(self) -> tuple[int, int]:
        """SMs that CUDA shows this client, and SMs that a kernel ran on. It must be a client, and on the right GPU."""
        driver = self._process.driver
        if not driver.is_mps_client():
            raise ShareUnavailable(
                f"share '{self.share}' is not in force: CUDA did not reach an MPS daemon at {self.daemon.pipe_dir}, "
                "and runs without MPS, unconfined; look into the daemon's control.log, and start the worker again"
            )
        if driver.device_uuid() != self.gpu.uuid:
            raise ShareUnavailable(
                f"share '{self.share}': CUDA uses {driver.device_uuid()}, not {self.gpu.uuid}; {MPS_PIPE_DIRECTORY} "
                "names the MPS daemon of another GPU"
            )
        return driver.sm_count(), self._process.met_sms()

    def _granted(self, sms: int, *, reserved: bool) -> GrantedShare:
        """The grant of `sms` SMs, with the memory that this client may use."""
        granted = self._process.granted(sms, reserved=reserved)
        limit_bytes = self._memory_limit_bytes
        if limit_bytes is not None and granted.memory_bytes > limit_bytes:
            raise ShareUnavailable(
                f"share '{self.share}': the memory limit of {limit_bytes // _MIB} MiB is not in force, "
                f"{granted.memory_bytes // _MIB} MiB can be used; drop the limit, or look into the daemon's control.log"
            )
        return granted

    @property
    def _memory_limit_bytes(self) -> int | None:
        """Device memory that the client may use: the environment's limit, or None."""
        text = os.environ.get(MPS_MEMORY_LIMIT, "")
        if not text:
            return None
        match = _MEMORY_LIMIT.search(text)
        if match is None:
            raise ShareUnavailable(f"{MPS_MEMORY_LIMIT}='{text}' sets no limit for device 0; write 0=8G or 0=512M")
        return int(match[1]) * _UNITS[match[2]]


# `mps-sm:N`: N chunks of SMs that are this client's alone, a static partition of an MPS daemon (CUDA 13.1).
#
# How many SMs a chunk has is the daemon's business: what was granted is read, never multiplied.

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


_STEP_SMS = 2
"""MPS grants SMs in steps of so many"""


class MpsConfinement(UnderMps):
    """An `mps:P` share."""

    def probe(self) -> None:
        allowed = os.environ.get(MPS_PERCENTAGE, "100")
        if not _is_at_least(allowed, self._percent):
            raise ShareUnavailable(
                f"share '{self.share}': the environment has {MPS_PERCENTAGE}='{allowed}'; unset it, or ask for a "
                "share that is no larger"
            )
        super().probe()

    def verify(self) -> GrantedShare:
        """The SMs that CUDA shows this process, once a kernel has met no others."""
        shown, met = self._seen_sms()
        self._agree(shown)
        if not shown - _STEP_SMS <= met <= shown:
            raise ShareUnavailable(
                f"share '{self.share}' cannot be verified: CUDA shows {shown} SMs, and a kernel ran on {met}; end what "
                "else runs on this GPU, and start the worker again"
            )
        return self._granted(shown, reserved=False)

    @property
    def _percent(self) -> int:
        return int(self.share.size)

    def _share_needs(self) -> dict[str, str]:
        return {MPS_PERCENTAGE: str(self._percent)}

    def _agree(self, shown: int) -> None:
        """Raise ShareUnavailable unless the grant is the request, rounded by one step at most."""
        total = self.gpu.sms
        if self._percent < 100 and shown >= total:
            raise ShareUnavailable(
                f"share '{self.share}' is not in force: all {total} SMs can be used; see that nothing changes "
                f"{MPS_PERCENTAGE} in the worker's environment"
            )
        asked = total * self._percent / 100
        if abs(shown - asked) > _STEP_SMS:
            raise ShareUnavailable(
                f"share '{self.share}' is {asked:.1f} of {total} SMs, and MPS grants {shown}: more than a step of "
                f"{_STEP_SMS} off; ask for mps:{max(1, round(100 * shown / total))}, or raise the daemon's own limit "
                "(`echo get_default_active_thread_percentage | nvidia-cuda-mps-control` tells it)"
            )


def _is_at_least(text: str, percent: int) -> bool:
    try:
        return float(text) >= percent
    except ValueError:
        return False
