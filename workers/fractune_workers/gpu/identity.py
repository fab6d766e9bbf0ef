"""A GPU in the words of the log: the device that a record names, the same at every share of one GPU."""

from __future__ import annotations

from fractune_core.shares import Device
from fractune_workers.gpu.nvml import Gpu


def gpu_device(gpu: Gpu, l2_bytes: int) -> Device:
    """The whole GPU; `l2_bytes` is its second-level cache as CUDA shows it.

    In MIG mode CUDA shows only an instance's part of the cache, and the whole cannot be asked for: it counts as not
    known, and the GPU as another device than it is outside of that mode.
    """
    return Device(
        kind="cuda",
        isa=gpu.arch,
        units=gpu.sms,
        memory_gib=round(gpu.memory_bytes / 2**30),
        l2_kib=0 if gpu.mig else l2_bytes // 1024,
        label=gpu.name,
    )
