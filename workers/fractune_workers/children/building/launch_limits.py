"""The needs of a kernel for a thread block, checked before it is compiled: an excess is the candidate's failure.

A compiler finds the excess only after seconds, and reports it in its own words. Sometimes only the launch finds it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import tvm
import tvm_ffi

from fractune_core.errors import FractuneError
from fractune_workers.children.tvm_api.cuda_target import shared_bytes_at_launch

_STATIC, _DYNAMIC = "shared", "shared.dyn"


class TooLarge(FractuneError):
    """A kernel needs more threads or shared memory than a block of the target has."""


@dataclass
class BlockNeeds:
    """The threads and the memory of one block of a kernel."""

    extents: dict[str, int] = field(default_factory=dict)
    """threads by axis: `threadIdx.x`"""
    static_bytes: int = 0
    """shared memory of a size that is compiled in"""
    dynamic_bytes: int = 0
    """shared memory that the launch requests"""

    @property
    def threads(self) -> int:
        return math.prod(self.extents.values())


def needs_of(kernel: Any) -> BlockNeeds:
    """The needs of a block of a lowered kernel (a device function of TIR)."""
    needs = BlockNeeds()

    def note_threads(node: Any) -> None:
        axis = str(node.node.thread_tag) if node.attr_key == "thread_extent" else ""
        if axis.startswith("threadIdx."):
            needs.extents[axis] = max(int(node.value), needs.extents.get(axis, 1))

    def note_memory(node: Any) -> None:
        if node.buffer.scope() == _STATIC:
            needs.static_bytes += _bytes_of(node.buffer)
        elif node.buffer.scope() == _DYNAMIC:
            needs.dynamic_bytes += _bytes_of(node.buffer)

    tvm_ffi.structural_walk(kernel.body, [(tvm.tirx.AttrStmt, note_threads), (tvm.tirx.AllocBuffer, note_memory)])
    return needs


def check_limits(kernels: tvm.IRModule, target: tvm.target.Target) -> None:
    """Raises TooLarge for the first kernel that asks for more than the target's block has."""
    threads, static_bytes = (
        int(target.attrs[name]) for name in ("max_threads_per_block", "max_shared_memory_per_block")
    )
    most_bytes = shared_bytes_at_launch(str(target.attrs["arch"]), static_bytes)
    for variable, kernel in kernels.functions.items():
        needs = needs_of(kernel)
        _compare(variable.name_hint, "threads", needs.threads, threads)
        _compare(variable.name_hint, "bytes of static shared memory", needs.static_bytes, static_bytes)
        _compare(variable.name_hint, "bytes of shared memory", needs.static_bytes + needs.dynamic_bytes, most_bytes)


def _compare(kernel: str, what: str, needed: int, there: int) -> None:
    if needed > there:
        raise TooLarge(f"{kernel} needs {needed} {what} per block; the target has {there}")


def _bytes_of(buffer: Any) -> int:
    elements = math.prod(int(extent) for extent in buffer.shape)
    return elements * tvm_ffi.dtype(str(buffer.dtype)).itemsize
