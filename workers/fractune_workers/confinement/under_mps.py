"""The common part of all shares under MPS: a GPU, its daemon, and the checks of a client from inside."""

from __future__ import annotations

import logging
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

from fractune_core.cuda.environment import MPS_MEMORY_LIMIT, MPS_PIPE_DIRECTORY, VISIBLE_DEVICES
from fractune_core.errors import ShareUnavailable
from fractune_core.shares import GrantedShare, Share
from fractune_workers.cuda.driver import Driver, open_driver
from fractune_workers.gpu.mps_control import MpsFailed
from fractune_workers.gpu.mps_daemon import MpsDaemon, mps_daemon
from fractune_workers.gpu.nvml import Nvml, open_nvml
from fractune_workers.gpu.process import GpuProcess

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
