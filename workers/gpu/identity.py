"""A GPU in the words of the log: the device that a record names, and the target that its candidates are built for.

Both are the same at every share of one GPU, so that a candidate is built once and measured at all of them.
"""

from __future__ import annotations

from typing import Any

from tuner_core.devices import Device
from workers.gpu.driver import KernelLimits
from workers.gpu.nvml import Gpu


def gpu_device(gpu: Gpu, l2_bytes: int) -> Device:
    """The whole GPU; `l2_bytes` is its second-level cache as CUDA shows it.

    In MIG mode CUDA shows only an instance's part of the cache, and nobody tells the whole: it counts as not known, and
    the GPU as another device than it is outside of that mode.
    """
    return Device(
        kind="cuda",
        isa=gpu.arch,
        units=gpu.sms,
        memory_gib=round(gpu.memory_bytes / 2**30),
        l2_kib=0 if gpu.mig else l2_bytes // 1024,
        label=gpu.name,
    )


def gpu_target(arch: str, limits: KernelLimits) -> dict[str, Any]:
    """TVM's target for `arch` (`sm_90`), as the config that `tvm.target.Target` takes.

    The arch stands in it because TVM would ask GPU 0 of the building machine otherwise, or take `sm_50`. Without the
    limits MetaSchedule's check of a candidate (VerifyGPUCode) fails. Shared memory is what a kernel has without asking
    for more at its launch: TVM's schedules declare it statically, and the assembler takes no more. The cache is left
    out: it differs between MIG mode and the rest, and the code does not depend on it.
    """
    return {
        "kind": "cuda",
        "arch": arch,
        "max_shared_memory_per_block": limits.shared_memory_bytes,
        "max_threads_per_block": limits.threads,
        "registers_per_block": limits.registers,
        "thread_warp_size": limits.warp_threads,
    }
