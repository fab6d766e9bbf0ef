"""CUDA targets from a user's text. The architecture and the limits of a block are always explicit.

Without an architecture, TVM would fill in `sm_50`, which no present toolkit compiles for, or ask a GPU of this machine.
TVM's own check of GPU code throws without the shared memory and the threads of a block.
"""

import functools
import json
from collections.abc import Collection
from typing import Any

from fractune_core.errors import BadRequest, FractuneError
from fractune_core.targets import GPU_KEYS, GPU_OPTIONS, TF32, Attributes, capability, read_attributes
from fractune_workers.cuda.compilers import INSTALL, CudaCompiler, find_compiler

ASYNC_COPIES = "fractune.async_copies"
"""of a loop: its copies into shared memory are asynchronous. Without it TVM's pipelines copy through registers."""
_BLOCK = {"max_shared_memory_per_block": 48 * 1024, "max_threads_per_block": 1024, "thread_warp_size": 32}
"""The limits of a block on every NVIDIA GPU. A kernel may have 48 KiB of static shared memory at most, even where a
device offers more to a launch that requests it (`shared_bytes_at_launch`)."""
_FIRST_WITH_TF32 = 80
_FIRST_WITH_A, _FIRST_WITH_F = 90, 100
_STATIC_MOST_BYTES = 48 * 1024
_OPT_IN_KIB = {75: 64, 80: 163, 86: 99, 87: 163, 89: 99, 90: 227, 100: 227, 103: 227, 110: 227, 120: 99, 121: 99}
"""shared memory of a kernel that requests it at its launch, by compute capability (CUDA C++ Programming Guide,
technical specifications); TVM's launcher requests it"""


def gpu_target(arch: str) -> Attributes:
    """The target for which a GPU of the architecture `arch` (`sm_90`) measures: the same as `cuda:sm_90` in a job."""
    text = json.dumps({"kind": "cuda", "arch": arch})
    return completed(text, read_attributes(text))


def completed(text: str, attributes: Attributes, compiler: CudaCompiler | None = None) -> Attributes:
    """The target with all attributes that building needs. `compiler` is the one that will build it, None = another
    machine's.

    Raises BadRequest for an architecture that the compiler does not know, or that has no TensorFloat-32 where it is
    requested.
    """
    arch = str(attributes["arch"])
    _check_arch(text, arch, compiler)
    if "keys" not in attributes:
        return {**_BLOCK, **attributes}
    return {**_BLOCK, **attributes, "keys": _ordered(text, arch, attributes["keys"])}


def shared_bytes_at_launch(arch: str, static_bytes: int) -> int:
    """The shared memory that a kernel may request at its launch, on a target that has `static_bytes`.

    The limit of a target that was given less than a GPU has is `static_bytes`.
    """
    if static_bytes < _STATIC_MOST_BYTES:
        return static_bytes
    return max(static_bytes, _OPT_IN_KIB.get(capability(arch) or 0, 0) * 1024)


@functools.cache
def compiler_here() -> CudaCompiler | None:
    """The compiler of this machine, searched once in a process; None without one."""
    return find_compiler()


def compiler_for(target: Any) -> CudaCompiler:
    """The compiler for a CUDA target on this machine. Raises FractuneError without one, BadRequest for a misfit."""
    compiler = compiler_here()
    if compiler is None:
        raise FractuneError(f"this machine has no CUDA compiler to build for {target.attrs['arch']}; {INSTALL}")
    _check_arch(str(target), str(target.attrs["arch"]), compiler)
    return compiler


def _ordered(text: str, arch: str, keys: Collection[str]) -> list[str]:
    """The keys of a target in an order of their own, so that equal targets have one identity."""
    if TF32 in keys and (capability(arch) or 0) < _FIRST_WITH_TF32:
        raise BadRequest(f"target '{text}': {arch} has no TensorFloat-32; leave '{TF32}' out")
    return [*GPU_KEYS, *(each for each in GPU_OPTIONS if each in keys)]


def _check_arch(text: str, arch: str, compiler: CudaCompiler | None) -> None:
    number = capability(arch) or 0
    first = {"a": _FIRST_WITH_A, "f": _FIRST_WITH_F}.get(arch[-1], 0)
    if number < first:
        raise BadRequest(f"target '{text}': there is no '{arch}'; write sm_{number}")
    if compiler is not None and number not in compiler.archs:
        known = ", ".join(f"sm_{each}" for each in compiler.archs)
        raise BadRequest(f"target '{text}': {compiler.name} does not compile for {arch}; it knows {known}")
