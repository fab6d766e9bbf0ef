"""The GPU of this process by CUDA's driver, called through `ctypes`: inference needs no package for seven calls of a
library with a stable C interface.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from fractune_core.cuda.environment import VISIBLE_DEVICES
from fractune_core.cuda.errors import what_to_do
from fractune_core.cuda.versions import NEEDED_DRIVER, driver_fault
from fractune_core.errors import FractuneError, ShareUnavailable

LIBRARY = "libcuda.so.1"
_NAME_BYTES = 256


class Attribute(IntEnum):
    """CU_DEVICE_ATTRIBUTE_..., by cuda.h of CUDA 13."""

    MULTIPROCESSOR_COUNT = 16
    COMPUTE_CAPABILITY_MAJOR = 75
    COMPUTE_CAPABILITY_MINOR = 76
    MPS_ENABLED = 133


@dataclass(frozen=True)
class GpuHere:
    """A GPU as CUDA shows it to this process: under a share of MPS, and as a MIG instance, only a part of it."""

    name: str
    """the product's; of a MIG instance with its profile: `NVIDIA H200 MIG 1g.18gb`"""
    isa: str
    """`sm_90`"""
    sms: int
    memory_bytes: int
    is_mps_client: bool
    is_mig: bool
    """an instance of a divided GPU"""

    @property
    def mig_profile(self) -> str:
        """`1g.18gb`; empty for a GPU that is not a MIG instance"""
        return self.name.rpartition(" ")[2] if self.is_mig else ""


class NoDriver(FractuneError):
    """A machine without a driver for NVIDIA GPUs, or with an old one."""


def look_at_gpu() -> GpuHere:
    """The first GPU that CUDA shows this process. The call starts CUDA, which fixes the GPU and the use of MPS for the
    life of the process. Raises NoDriver, ShareUnavailable when CUDA cannot start.
    """
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise NoDriver(f"this machine has no NVIDIA driver ({error}); install {NEEDED_DRIVER}") from error
    return ask_gpu(library)


def ask_gpu(cuda: Any) -> GpuHere:
    """As `look_at_gpu`, for a loaded library of the driver."""
    version, device, memory = ctypes.c_int(), ctypes.c_int(), ctypes.c_size_t()
    name = ctypes.create_string_buffer(_NAME_BYTES)
    _call(cuda, "cuDriverGetVersion", ctypes.byref(version))
    if fault := driver_fault(version.value // 1000):
        raise NoDriver(fault)
    _call(cuda, "cuInit", 0)
    _call(cuda, "cuDeviceGet", ctypes.byref(device), 0)
    _call(cuda, "cuDeviceGetName", name, _NAME_BYTES, device)
    _call(cuda, "cuDeviceTotalMem_v2", ctypes.byref(memory), device)

    def ask(attribute: Attribute) -> int:
        value = ctypes.c_int()
        _call(cuda, "cuDeviceGetAttribute", ctypes.byref(value), int(attribute), device)
        return value.value

    product = name.value.decode(errors="replace")
    return GpuHere(
        name=product,
        isa=f"sm_{ask(Attribute.COMPUTE_CAPABILITY_MAJOR)}{ask(Attribute.COMPUTE_CAPABILITY_MINOR)}",
        sms=ask(Attribute.MULTIPROCESSOR_COUNT),
        memory_bytes=memory.value,
        is_mps_client=bool(ask(Attribute.MPS_ENABLED)),
        # CUDA has no attribute for it.
        is_mig=" MIG " in product or os.environ.get(VISIBLE_DEVICES, "").startswith("MIG-"),
    )


def _call(cuda: Any, name: str, *args: Any) -> None:
    code = int(getattr(cuda, name)(*args))
    if code != 0:
        raise ShareUnavailable(f"{name}: CUDA error {code}; {what_to_do(code)}")
