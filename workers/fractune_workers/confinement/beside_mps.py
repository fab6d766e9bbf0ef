"""The common part of a GPU's shares without MPS or MIG: the GPU, and its faults where an MPS daemon may be."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from fractune_core.cuda.environment import MPS_PIPE_DIRECTORY, VISIBLE_DEVICES
from fractune_core.shares import Share
from fractune_workers.confinement.base import Confinement
from fractune_workers.cuda.driver import CudaDriver, open_driver
from fractune_workers.gpu.nvml import Nvml, open_nvml
from fractune_workers.gpu.process import GpuProcess

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
