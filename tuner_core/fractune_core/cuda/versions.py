"""The CUDA version that TVM's wheel is built for, and the drivers that serve it."""

from __future__ import annotations

CUDA_MAJOR = 13
NEEDED_DRIVER = "driver 580 or newer"


def driver_fault(cuda_major: int) -> str:
    """Why a driver that serves CUDA up to this major version cannot be used; empty if it can."""
    if cuda_major >= CUDA_MAJOR:
        return ""
    return f"the NVIDIA driver serves CUDA {cuda_major} only, and TVM needs CUDA {CUDA_MAJOR}; install {NEEDED_DRIVER}"
