"""The sandboxes of a worker's children, as data. `fractune_core.host.sandbox` has what each option does."""

import importlib.util
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fractune_runtime
from fractune_core.cuda import find_toolkits
from fractune_core.host.machine import model_memory_bytes
from fractune_core.host.sandbox import Sandbox
from fractune_core.shares import Share

PACKAGES = tuple(str(Path(file).parent) for file in (__file__, fractune_runtime.__file__))
_COMPILER_RESERVES_BYTES = 2 << 30
"""addresses of TVM's and LLVM's libraries, which read and execute most of them"""
_THREAD_RESERVES_BYTES = 144 << 20
"""a stack, and an arena of the C library at its largest"""
_MEASURER_FILE_BYTES = 64 << 20
"""A process that measures writes one small object file, and its worker's log."""
_CUDA_MEMORY = Path("/dev/nvidia-uvm")


def builder_sandbox(own_dir: Path, memory_bytes: int | None = None, hidden: Sequence[Path] = ()) -> Sandbox:
    """Of the process that compiles candidates: each of its forks has the limits, and one on CPU time that it sets
    itself. `own_dir`: the folder where it writes, and nowhere else.

    A CPU's code takes LLVM and a GPU's NVRTC, both libraries. So it runs programs only where NVRTC is missing, for
    nvcc, or where Triton is installed, which calls ptxas.
    """
    kits = find_toolkits()
    needs_nvcc = any(kit.nvcc for kit in kits) and not any(kit.nvrtc and kit.include for kit in kits)
    return Sandbox(
        model_memory_bytes(memory_bytes),
        reserved_bytes=_COMPILER_RESERVES_BYTES,
        limits_cpu=False,
        programs=needs_nvcc or importlib.util.find_spec("triton") is not None,
        readable=PACKAGES,
        writable=(str(own_dir),),
        hidden=absolute(hidden),
    )


@dataclass(frozen=True)
class MeasurerLimits:
    """What a worker decides of the process that runs candidates."""

    memory_bytes: int | None = None
    """of a CPU's; None = a share of the host's"""
    readable: Sequence[Path] = ()
    """what it reads of its user's files"""
    hidden: Sequence[Path] = ()
    """files that it must fail to read, which it tries"""


NO_FILES = MeasurerLimits()


def measurer_sandbox(share: Share, own_dir: Path, limits: MeasurerLimits) -> Sandbox | None:
    """Of the process that runs candidates at this share. It starts no process, and writes files only until it is ready,
    in `own_dir`.

    On a GPU it has no limit of memory: CUDA addresses far more than it uses. It has no sandbox where CUDA's device is
    not there yet: to make it, CUDA's driver runs a program with the rights of root.
    """
    both: dict[str, Any] = {
        "limits_cpu": False,
        "processes": False,
        "programs": False,
        "writable": (str(own_dir),),
        "early_methods": ("device_info",),
    }
    if share.device_kind == "cuda":
        gpu = Sandbox(None, uses_cuda=True, hidden=absolute(limits.hidden), **both)
        return gpu if _CUDA_MEMORY.exists() else None
    threads = 2 * (os.cpu_count() or 1)
    return Sandbox(
        model_memory_bytes(limits.memory_bytes),
        reserved_bytes=_COMPILER_RESERVES_BYTES + threads * _THREAD_RESERVES_BYTES,
        file_bytes=_MEASURER_FILE_BYTES,
        readable=(*PACKAGES, *absolute(limits.readable)),
        hidden=absolute(limits.hidden),
        **both,
    )


def absolute(paths: Sequence[Path]) -> tuple[str, ...]:
    return tuple(str(path.absolute()) for path in paths)
