"""The anchor of a GPU: one fixed kernel, timed beside the candidates by events on the stream that is confined.

As PTX, which the driver compiles for what it finds: a process that measures has no CUDA compiler, and builders
need not know of it. It keeps both the arithmetic and the memory busy: each thread reads 16 bytes of a buffer that no
cache holds, works on them, and writes them back.
"""

from __future__ import annotations

import ctypes
import statistics
from collections import deque
from typing import Any

from fractune_workers.cuda.driver import CudaDriver

KERNEL = "anchor"
"""Argument: the address of the buffer."""

_BUFFER_BYTES = 128 << 20
"""More than any GPU's second-level cache."""
_BYTES_PER_THREAD = 16
_THREADS = 256
_LAUNCHES = 8
"""in one repeat: enough in a row that the gap before the first is small"""
_KEPT = 5
"""repeats that are counted: the last ones"""
_REPEATS_AT_LEAST, _REPEATS_AT_MOST = 12, 100
_STILL = 1.02
"""the longest of the kept repeats over the shortest, once the GPU has woken up"""
_ONE = 0x3F800000
"""1.0 as 32 bits. The kernel maps it to itself, so that its work is the same each time"""

# Four independent chains of 40 multiply-adds for 32 bytes of traffic: some 80 us of memory and some 50 us of arithmetic
# on 132 SMs of 1.7 GHz with 3.3 TB/s, by their data sheet.
PTX = b"""
.version 6.3
.target sm_75
.address_size 64

.visible .entry anchor(.param .u64 buffer)
{
    .reg .pred %more;
    .reg .b32 %block, %threads, %thread, %rounds;
    .reg .b64 %slot, %offset;
    .reg .f32 %a, %b, %c, %d;

    ld.param.u64 %slot, [buffer];
    mov.u32 %block, %ctaid.x;
    mov.u32 %threads, %ntid.x;
    mov.u32 %thread, %tid.x;
    mad.lo.u32 %thread, %block, %threads, %thread;
    cvta.to.global.u64 %slot, %slot;
    mul.wide.u32 %offset, %thread, 16;
    add.s64 %slot, %slot, %offset;
    ld.global.v4.f32 {%a, %b, %c, %d}, [%slot];
    mov.u32 %rounds, 40;
AGAIN:
    fma.rn.f32 %a, %a, 0f3F000000, 0f3F000000;
    fma.rn.f32 %b, %b, 0f3F000000, 0f3F000000;
    fma.rn.f32 %c, %c, 0f3F000000, 0f3F000000;
    fma.rn.f32 %d, %d, 0f3F000000, 0f3F000000;
    sub.u32 %rounds, %rounds, 1;
    setp.ne.u32 %more, %rounds, 0;
    @%more bra AGAIN;
    st.global.v4.f32 [%slot], {%a, %b, %c, %d};
    ret;
}
\0"""


class GpuAnchor:
    """The kernel on `stream` (an address; 0 = the default stream), and its buffer. Every method raises DriverFailed."""

    def __init__(self, driver: CudaDriver, stream: int) -> None:
        self._driver = driver
        self._stream: Any = driver.cuda.CUstream(stream)
        self._kernel = driver.call("cuModuleGetFunction", driver.call("cuModuleLoadData", PTX), KERNEL.encode())
        self._buffer = driver.call("cuMemAlloc", _BUFFER_BYTES)
        driver.call("cuMemsetD32", self._buffer, _ONE, _BUFFER_BYTES // 4)
        # That was on the NULL stream, which the stream of a green context does not wait for.
        driver.call("cuStreamSynchronize", driver.cuda.CUstream(0))
        self._start, self._stop = (driver.call("cuEventCreate", 0) for _ in range(2))

    def seconds(self) -> float:
        """Seconds of one run, once runs take equal times: an idle GPU has slowed down, and wakes up gradually."""
        kept_ms: deque[float] = deque(maxlen=_KEPT)
        for repeat in range(1, _REPEATS_AT_MOST + 1):
            kept_ms.append(self._repeat_ms())
            if repeat >= _REPEATS_AT_LEAST and max(kept_ms) <= _STILL * min(kept_ms):
                break
        return statistics.median(kept_ms) / _LAUNCHES / 1e3

    def _repeat_ms(self) -> float:
        call = self._driver.call
        call("cuEventRecord", self._start, self._stream)
        for _ in range(_LAUNCHES):
            self._launch()
        call("cuEventRecord", self._stop, self._stream)
        call("cuEventSynchronize", self._stop)
        return float(call("cuEventElapsedTime", self._start, self._stop))

    def _launch(self) -> None:
        blocks = _BUFFER_BYTES // _BYTES_PER_THREAD // _THREADS
        arguments = ((int(self._buffer),), (ctypes.c_void_p,))
        shape = (blocks, 1, 1, _THREADS, 1, 1)
        self._driver.call("cuLaunchKernel", self._kernel, *shape, 0, self._stream, arguments, 0)
