"""What a measurer's child takes from TVM's compiler: the host's target, the anchor, the roof's kernels."""

from typing import Any

import tvm
import tvm_ffi

from fractune_workers.children.measuring.roof import CpuRoof, LaunchFloor
from fractune_workers.children.measuring.setup import Software
from fractune_workers.children.tvm_api.compiled import anchor_object, loop_object
from fractune_workers.children.tvm_api.cuda_target import gpu_target
from fractune_workers.children.tvm_api.target import default_target, host_cpu, target_key


def cpu_software() -> Software:
    """For the CPU of this host."""
    target = default_target(1)
    return Software(
        target_key(target),
        versions(),
        host_cpu(),
        anchor_object(target),
        loop_object(target),
        lambda processor: CpuRoof(target, processor).measure,
    )


def gpu_software(arch: str) -> Software:
    """For a GPU of this architecture."""
    target: Any = tvm.target.Target(gpu_target(arch))
    return Software(target_key(target), versions(), roof=lambda processor: LaunchFloor(processor).measure)


def versions() -> dict[str, str]:
    return {"tvm": tvm.__version__, "tvm-ffi": tvm_ffi.__version__}
