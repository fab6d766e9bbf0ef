"""What a process checks of the GPU that it works on, whatever the kind of share."""

import os
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Generic, TypeVar

from fractune_core import cuda
from fractune_core.errors import ShareNotReady, ShareUnavailable
from fractune_core.shares import GrantedShare, Share
from fractune_workers.cuda.driver import Driver, DriverFailed
from fractune_workers.gpu.nvml import Gpu, Nvml, visible_gpu

_COUNTS = 3
"""runs of the counting kernel: beside busy co-runners one run may miss an SM"""
_NOT_READY = {805, 807}
"""CUDA's numbers for an MPS server that takes no client now: it is starting, or a client is just being ended"""

_Driver = TypeVar("_Driver", bound=Driver)


class GpuProcess(Generic[_Driver]):
    """The checks that all shares of a GPU have in common. Every method raises ShareUnavailable."""

    def __init__(self, share: Share, nvml: Callable[[], Nvml], driver: Callable[[], _Driver]) -> None:
        self._share = share
        self._nvml = nvml
        self._open_driver = driver

    @cached_property
    def gpu(self) -> Gpu:
        """The whole GPU that this process works on."""
        gpu = visible_gpu(self._nvml().gpus())
        if fault := cuda.driver_fault(int(gpu.cuda.partition(".")[0])):
            raise self._refusal(fault)
        if not gpu.sms:
            raise self._refusal(f"NVML does not tell how many SMs {gpu.name} has; install a newer driver")
        return gpu

    @cached_property
    def driver(self) -> _Driver:
        """CUDA in this process. Never to be asked for before the share was entered."""
        return self._open_driver()

    def start_cuda(self) -> Driver:
        """CUDA, which a process can start once only. Raises ShareNotReady where another process may be let in soon."""
        try:
            return self.driver
        except DriverFailed as error:
            if error.code in _NOT_READY:
                raise ShareNotReady(f"share '{self._share}': {error}") from error
            raise

    def refuse_mig(self) -> None:
        if self.gpu.mig:
            there = sorted({f"mig:{found.profile or found.uuid}" for found in self.gpu.instances})
            instead = (
                f"ask for {', '.join(there)}" if there else "divide it first: `fractune shares --mig-layout 3g+4g`"
            )
            raise self._refusal(f"{self.gpu.name} is in MIG mode, a process can use one instance only; {instead}")

    def refuse_mps_share(self) -> None:
        """A share of MPS around this one would be the smaller of the two, or let it leak."""
        for name, harmless in ((cuda.MPS_PERCENTAGE, {"", "100"}), (cuda.MPS_PARTITION, {""})):
            value = os.environ.get(name, "")
            if value not in harmless:
                raise self._refusal(
                    f"the environment has {name}='{value}', a share of MPS around this one; unset it, or ask for that "
                    "share alone (mps:PERCENT, mps-sm:CHUNKS)"
                )

    def check_start(self, needs: Mapping[str, str]) -> None:
        """CUDA reads these variables when it starts: they must have been there when the process was."""
        for name, value in needs.items():
            if os.environ.get(name) != value:
                raise self._refusal(
                    f"this process has {name}='{os.environ.get(name, '')}', and the share needs '{value}' from the "
                    "start; start it with the environment of its confinement"
                )

    def check_device(self, uuid: str) -> None:
        """CUDA must use the GPU or the MIG instance `uuid`, and nothing else."""
        found = self.driver.device_uuid()
        if _bare(found) != _bare(uuid):
            raise self._refusal(
                f"CUDA uses {found}, not {uuid}; see that nothing changes {cuda.VISIBLE_DEVICES} in the "
                "worker's environment"
            )

    def check_shown(self, sms: int) -> None:
        """CUDA must show this process `sms` SMs."""
        shown = self.driver.sm_count()
        if shown == sms:
            return
        if self.driver.is_mps_client():
            raise self._refusal(
                f"an MPS daemon is around it, which shows {shown} of {sms} SMs; end the daemon "
                "(`echo quit | nvidia-cuda-mps-control`), or ask for a share of MPS"
            )
        raise self._refusal(f"CUDA shows {shown} SMs, and NVML tells of {sms}; see what `nvidia-smi -L` says")

    def check_met(self, sms: int, stream: int = 0) -> None:
        """A kernel on `stream` must run on `sms` SMs, no more and no fewer."""
        met = self.met_sms(stream)
        if met > sms:
            raise self._refusal(
                f"it is not in force: a kernel ran on {met} SMs, and {sms} were granted; look for an MPS daemon or a "
                "module with dynamic parallelism, and start the worker again"
            )
        if met < sms:
            raise self._refusal(
                f"it cannot be verified: a kernel ran on {met} of {sms} SMs only; end what else runs on this GPU, and "
                "start the worker again"
            )

    def met_sms(self, stream: int = 0) -> int:
        """SMs that a kernel on `stream` ran on."""
        return max(self.driver.count_sms(stream) for _ in range(_COUNTS))

    def granted(self, sms: int, *, reserved: bool) -> GrantedShare:
        """The grant of `sms` SMs, with the memory that this process can use."""
        return GrantedShare(
            share=str(self._share),
            units=sms,
            units_total=self.gpu.sms,
            unit=self._share.kind.unit,
            memory_bytes=self.driver.memory_bytes(),
            reserved=reserved,
        )

    def _refusal(self, why: str) -> ShareUnavailable:
        return ShareUnavailable(f"share '{self._share}': {why}")


def _bare(uuid: str) -> str:
    """Without `GPU-` or `MIG-`, which CUDA does not tell."""
    return uuid.partition("-")[2]
