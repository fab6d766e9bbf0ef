"""What a kernel takes of a thread block, looked at before it is compiled: too much of it is the candidate's failure.

A compiler finds out as well, after seconds and in its own words, or only the launch does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import tvm
import tvm_ffi

from tuner_core.errors import FractuneError

_SHARED = ("shared", "shared.dyn")


class TooLarge(FractuneError):
    """A kernel needs more threads or shared memory than a block of the target has."""


@dataclass
class BlockNeeds:
    """What one block of a kernel takes."""

    extents: dict[str, int] = field(default_factory=dict)
    """threads by axis: `threadIdx.x`"""
    shared_bytes: int = 0

    @property
    def threads(self) -> int:
        return math.prod(self.extents.values())


def needs_of(kernel: Any) -> BlockNeeds:
    """What a block of a lowered kernel (a device function of TIR) takes."""
    needs = BlockNeeds()

    def note_threads(node: Any) -> None:
        axis = str(node.node.thread_tag) if node.attr_key == "thread_extent" else ""
        if axis.startswith("threadIdx."):
            needs.extents[axis] = max(int(node.value), needs.extents.get(axis, 1))

    def note_memory(node: Any) -> None:
        if node.buffer.scope() in _SHARED:
            needs.shared_bytes += _bytes_of(node.buffer)

    tvm_ffi.structural_walk(kernel.body, [(tvm.tirx.AttrStmt, note_threads), (tvm.tirx.AllocBuffer, note_memory)])
    return needs


def check_limits(kernels: tvm.IRModule, target: tvm.target.Target) -> None:
    """Raises TooLarge for the first kernel that asks for more than the target's block has."""
    threads, shared_bytes = (
        int(target.attrs[name]) for name in ("max_threads_per_block", "max_shared_memory_per_block")
    )
    for variable, kernel in kernels.functions.items():
        needs = needs_of(kernel)
        if needs.threads > threads:
            raise TooLarge(f"{variable.name_hint} needs {needs.threads} threads per block; the target has {threads}")
        if needs.shared_bytes > shared_bytes:
            raise TooLarge(
                f"{variable.name_hint} needs {needs.shared_bytes} bytes of shared memory per block; "
                f"the target has {shared_bytes}"
            )


def _bytes_of(buffer: Any) -> int:
    elements = math.prod(int(extent) for extent in buffer.shape)
    return elements * tvm_ffi.dtype(str(buffer.dtype)).itemsize
