"""The anchor of a GPU: one fixed kernel, timed beside the candidates by events on the stream that is confined.

As PTX, which the driver compiles for what it finds: a process that measures has no CUDA compiler, and builders
need not know of it. It keeps both the arithmetic and the memory busy: each thread reads 16 bytes of a buffer that no
cache holds, works on them, and writes them back.

The arithmetic takes longer than the memory: the anchors of measurers that fill the GPU together ask for half of its
memory's bandwidth. Otherwise each of them would time the others, and their batches would be void.
"""

import ctypes
import math
import statistics
from typing import Any, NamedTuple

from fractune_workers.cuda.driver import CudaDriver, GpuRates, sms_of

KERNEL = "anchor"
"""Arguments: the address of the first byte, and how often a thread does its block of multiply-adds."""

_WALK_BYTES = 128 << 20
"""More than any GPU's second-level cache: the launches walk through at least so much."""
_BYTES_PER_THREAD = 16
_THREADS = 256
_MULTIPLY_ADDS = 16
"""of a thread in one round"""
_MEMORY_PART = 0.5
"""of the bandwidth, for all SMs of the GPU together"""
_LAUNCH_S = 125e-6
"""that a launch takes on any share, by the data sheet"""
_BLOCKS_AT_LEAST = 32
"""of an SM, which runs eight at a time"""
_USUAL = GpuRates(sms=132, multiply_adds_per_s=128 * 1.98e9, memory_bytes_per_s=3.35e12)
"""an H100's, where CUDA does not tell the rates of a GPU"""
_LAUNCHES = 8
"""in one repeat: enough in a row that the gap before the first is small"""
_KEPT = 5
"""repeats that are counted: the last ones"""
_REPEATS_AT_LEAST, _REPEATS_AT_MOST = 12, 100
_STILL = 1.02
"""Repeats that differ by less count as equal"""
_ONE = 0x3F800000
"""1.0 as 32 bits. The kernel maps it to itself, so that its work is the same each time"""

# Four independent chains of multiply-adds, for 32 bytes of traffic a thread.
_CHAINS = b"".join(b"    fma.rn.f32 %%%c, %%%c, 0f3F000000, 0f3F000000;\n" % (each, each) for each in b"abcd")
PTX = (
    b"""
.version 6.3
.target sm_75
.address_size 64

.visible .entry anchor(.param .u64 buffer, .param .u32 times)
{
    .reg .pred %more;
    .reg .b32 %block, %threads, %thread, %rounds;
    .reg .b64 %slot, %offset;
    .reg .f32 %a, %b, %c, %d;

    ld.param.u64 %slot, [buffer];
    ld.param.u32 %rounds, [times];
    mov.u32 %block, %ctaid.x;
    mov.u32 %threads, %ntid.x;
    mov.u32 %thread, %tid.x;
    mad.lo.u32 %thread, %block, %threads, %thread;
    cvta.to.global.u64 %slot, %slot;
    mul.wide.u32 %offset, %thread, 16;
    add.s64 %slot, %slot, %offset;
    ld.global.v4.f32 {%a, %b, %c, %d}, [%slot];
AGAIN:
"""
    + _CHAINS * (_MULTIPLY_ADDS // 4)
    + b"""    sub.u32 %rounds, %rounds, 1;
    setp.ne.u32 %more, %rounds, 0;
    @%more bra AGAIN;
    st.global.v4.f32 [%slot], {%a, %b, %c, %d};
    ret;
}
\0"""
)


class AnchorShape(NamedTuple):
    """How the anchor is launched."""

    blocks: int
    rounds: int

    @property
    def bytes(self) -> int:
        """That a launch reads, and writes."""
        return self.blocks * _THREADS * _BYTES_PER_THREAD

    @property
    def places(self) -> int:
        """Where a launch may begin, one behind the other."""
        return math.ceil(_WALK_BYTES / self.bytes)


def anchor_shape(sms: int, gpu: GpuRates) -> AnchorShape:
    """The shape for a share of `sms` SMs of the GPU: smaller shares touch less memory in the same time."""
    if not (gpu.multiply_adds_per_s and gpu.memory_bytes_per_s):
        gpu = _USUAL
    traffic_bytes = 2 * _BYTES_PER_THREAD
    sm_bytes_per_s = _MEMORY_PART * gpu.memory_bytes_per_s / gpu.sms
    blocks = max(_BLOCKS_AT_LEAST, round(_LAUNCH_S * sm_bytes_per_s / traffic_bytes / _THREADS))
    rounds = math.ceil(gpu.multiply_adds_per_s / _MULTIPLY_ADDS * traffic_bytes / sm_bytes_per_s)
    return AnchorShape(sms * blocks, rounds)


class GpuAnchor:
    """The kernel on `stream` (an address; 0 = the default stream), and its buffer. Every method raises DriverFailed."""

    def __init__(self, driver: CudaDriver, stream: int, gpu_sms: int) -> None:
        """`gpu_sms`: SMs of the whole GPU; this process may see fewer."""
        self._driver = driver
        self._shape = anchor_shape(sms_of(driver, stream), driver.rates(gpu_sms))
        self._launches = 0
        self._stream: Any = driver.cuda.CUstream(stream)
        self._kernel = driver.call("cuModuleGetFunction", driver.call("cuModuleLoadData", PTX), KERNEL.encode())
        buffer_bytes = self._shape.places * self._shape.bytes
        self._buffer = driver.call("cuMemAlloc", buffer_bytes)
        driver.call("cuMemsetD32", self._buffer, _ONE, buffer_bytes // 4)
        # That was on the NULL stream, which the stream of a green context does not wait for.
        driver.call("cuStreamSynchronize", driver.cuda.CUstream(0))
        self._start, self._stop = (driver.call("cuEventCreate", 0) for _ in range(2))

    def seconds(self) -> float:
        """Seconds of one run, once runs get no shorter: an idle GPU has slowed down, and wakes up gradually. Beside
        others on the GPU they may never take equal times.
        """
        all_ms = [self._repeat_ms() for _ in range(_REPEATS_AT_LEAST)]
        while len(all_ms) < _REPEATS_AT_MOST and min(all_ms[-_KEPT:]) * _STILL < min(all_ms[:-_KEPT]):
            all_ms.append(self._repeat_ms())
        return statistics.median(all_ms[-_KEPT:]) / _LAUNCHES / 1e3

    def _repeat_ms(self) -> float:
        call = self._driver.call
        call("cuEventRecord", self._start, self._stream)
        for _ in range(_LAUNCHES):
            self._launch()
        call("cuEventRecord", self._stop, self._stream)
        call("cuEventSynchronize", self._stop)
        return float(call("cuEventElapsedTime", self._start, self._stop))

    def _launch(self) -> None:
        address = int(self._buffer) + self._launches % self._shape.places * self._shape.bytes
        self._launches += 1
        arguments = ((address, self._shape.rounds), (ctypes.c_void_p, ctypes.c_uint32))
        shape = (self._shape.blocks, 1, 1, _THREADS, 1, 1)
        self._driver.call("cuLaunchKernel", self._kernel, *shape, 0, self._stream, arguments, 0)
