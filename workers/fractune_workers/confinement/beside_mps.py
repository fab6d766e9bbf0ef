"""Faults under a share of a GPU that is not one of MPS: they stay with the process, unless an MPS daemon is there."""

from __future__ import annotations

import os
from pathlib import Path

from fractune_core.cuda.environment import MPS_PIPE_DIRECTORY
from fractune_workers.cuda.driver import CudaDriver
from fractune_workers.gpu.process import GpuProcess

_DEFAULT_PIPE_DIR = "/tmp/nvidia-mps"  # noqa: S108  CUDA's own


class BesideMps:
    """To inherit from: CUDA makes every process a client of the daemon that it finds, whatever started that."""

    _process: GpuProcess[CudaDriver]

    @property
    def fault_domain(self) -> str | None:
        return self._process.gpu.uuid if _daemon_may_be_here() else None

    @property
    def gpu_uuid(self) -> str:
        return self._process.gpu.uuid

    def is_active(self) -> bool:
        return True

    def restart_service(self) -> None:
        """A daemon that may be here was started by others."""

    def before_kill(self, pid: int) -> bool:  # noqa: ARG002  there is no daemon of ours to ask
        return not _daemon_may_be_here()


def _daemon_may_be_here() -> bool:
    return Path(os.environ.get(MPS_PIPE_DIRECTORY) or _DEFAULT_PIPE_DIR).is_dir()
