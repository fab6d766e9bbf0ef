"""The launch floor of a GPU's share: the time of an empty kernel by the timer of candidates.

The host needs some microseconds to launch a kernel. A row of kernels that are shorter takes as long as their launches,
on every share: the host is timed.

The kernel is PTX like the anchor, because a process that measures has no CUDA compiler. TVM's own runtime launches and
times it, by the same calls as a candidate. A launch from Python would take longer, and be no floor.
"""

from __future__ import annotations

import struct
from typing import Any

import tvm

from fractune_core.analysis.roofline import Roof
from fractune_core.records import FIRST_POLICY
from fractune_workers.children.tvm_api.processor import Processor

KERNEL = "main"
"""Has no arguments. TVM's timer of candidates calls this name."""
_BLOCKS = 1

PTX = b"""
.version 6.3
.target sm_75
.address_size 64

.visible .entry main()
{
    ret;
}
"""


class LaunchFloor:
    """The floor of the share that `processor` launches in."""

    def __init__(self, processor: Processor) -> None:
        self._processor = processor
        self._kernel: Any = None

    def measure(self) -> Roof:
        """A roof in which only `launch_s` is known: the fastest of three repeats, after some milliseconds."""
        if self._kernel is None:
            self._kernel = empty_kernel()
            self._kernel[KERNEL](_BLOCKS)  # what fails here has a reason; in TVM's timer it would end the process
            self._processor.sync()
        return Roof(0.0, 0.0, 0, min(self._processor.time(self._kernel, [_BLOCKS], FIRST_POLICY)))


def empty_kernel() -> Any:
    """A module of TVM's CUDA runtime. The function KERNEL takes the number of blocks."""
    load = tvm.get_global_func("ffi.Module.load_from_bytes.cuda")
    return load(_string(b"ptx") + _kernels() + _string(PTX))


def _kernels() -> bytes:
    """TVM's description of all kernels: one, which takes no arguments and is launched in as many blocks of one thread
    as the call says.
    """
    arguments, tags, extra = _number(0), _number(1) + _string(b"blockIdx.x"), _number(0)
    return _number(1) + 2 * _string(KERNEL.encode()) + arguments + tags + extra


def _number(value: int) -> bytes:
    return struct.pack("<Q", value)


def _string(value: bytes) -> bytes:
    return _number(len(value)) + value
