"""What NVML tells of the machine's GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tuner_core.errors import ShareUnavailable


class NvmlFailed(ShareUnavailable):
    """NVML could not be asked."""


class NoNvidiaDriver(NvmlFailed):
    """No NVIDIA driver on this machine, or no package to ask it with."""


@dataclass(frozen=True)
class Gpu:
    """A whole GPU."""

    index: int
    """number among NVML's, which is nvidia-smi's and need not be CUDA's"""
    uuid: str
    """`GPU-...`"""
    name: str
    capability: tuple[int, int]
    sms: int
    """all that CUDA can use while MIG is off; 0 when NVML does not tell"""
    memory_bytes: int
    driver: str
    """version"""
    cuda: str
    """newest CUDA version that the driver runs: `13.0`"""
    exclusive: bool
    """only one process (which may be an MPS server) can use it at a time"""
    mig: bool
    mig_pending: bool
    """what `mig` will be after the next reset"""
    mig_instances_at_most: int
    """7 on the GPUs that divide in sevenths; 0 while MIG is off"""


class Nvml(Protocol):
    """Every method raises NvmlFailed."""

    def gpus(self) -> list[Gpu]: ...


def open_nvml() -> Nvml:
    """NVML of this machine. Raises NoNvidiaDriver."""
    raise NoNvidiaDriver("this build of fractune cannot ask NVML; ask for a share of the CPU, as in cpu:1")
