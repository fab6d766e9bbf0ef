"""Which GPU a worker works on (the first that CUDA_VISIBLE_DEVICES names, else the first of all), and its device in the
log.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from fractune_core.cuda.environment import VISIBLE_DEVICES
from fractune_core.errors import ShareUnavailable
from fractune_core.shares import Device
from fractune_workers.gpu.nvml import Gpu


def visible_gpu(gpus: Sequence[Gpu]) -> Gpu:
    """The GPU of this process. A number counts as nvidia-smi counts; a MIG instance means the GPU that it is part of.

    Raises ShareUnavailable when there is none, or none of that name.
    """
    if not gpus:
        raise ShareUnavailable("the NVIDIA driver sees no GPU; see what `nvidia-smi -L` says")
    named = os.environ.get(VISIBLE_DEVICES)
    if named is None:
        return gpus[0]
    first = named.partition(",")[0].strip()
    found = [gpu for gpu in gpus if _is_named(gpu, first)]
    if len(found) != 1:
        there = ", ".join(gpu.uuid for gpu in gpus)
        raise ShareUnavailable(
            f"{VISIBLE_DEVICES}='{named}' does not name one GPU; give its number or its UUID (here: {there})"
        )
    return found[0]


def _is_named(gpu: Gpu, name: str) -> bool:
    """Whether `name` is the GPU's number, its UUID or the beginning of it, or the UUID of one of its instances."""
    if name.isdecimal():
        return gpu.index == int(name)
    if any(instance.uuid == name for instance in gpu.instances):
        return True
    return name.startswith("GPU-") and gpu.uuid.startswith(name)


def gpu_device(gpu: Gpu, l2_bytes: int) -> Device:
    """The whole GPU; `l2_bytes` is its second-level cache as CUDA shows it.

    In MIG mode CUDA shows only an instance's part of the cache, and not the whole. So the cache counts as not known,
    and the GPU as another device than outside of that mode.
    """
    return Device(
        kind="cuda",
        isa=gpu.arch,
        units=gpu.sms,
        memory_gib=round(gpu.memory_bytes / 2**30),
        l2_kib=0 if gpu.mig else l2_bytes // 1024,
        label=gpu.name,
    )
