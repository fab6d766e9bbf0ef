"""The roof of a CPU share: the most arithmetic and the most memory traffic of its cores.

Three kernels run again and again, each on all cores of the share at once. The fastest run counts, because a slow run is
not slowed by a limit of the share. A run is short, so that some runs have all cores to themselves even on a busy
machine.

- `fma`: chains of fused multiply-adds in registers, enough chains to fill the registers and to hide the latency of one.
  A chain needs its last value for the next, so no compiler can leave out steps.
- `triad`: STREAM's triad (McCalpin, 1995) in place, `y = x / 2 + y`, so that all moved bytes are counted. A store to
  another array would first read the line that it overwrites. It goes from array to array, over more than caches hold.
- `read`: sums of the same arrays, because an operator with few rows reads its weights and writes almost nothing.

All are measured again later, the arithmetic each time and the memory a few times: co-runners or the clock may lower
them for longer than one measurement.
"""

import math
import os
import struct
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import tvm
from tvm.script import tirx

from fractune_core.analysis.roofline import Roof
from fractune_core.host.machine import last_cache_bytes
from fractune_core.records import FIRST_POLICY
from fractune_workers.children.tvm_api.artifacts import load_objects
from fractune_workers.children.tvm_api.compiled import build_object
from fractune_workers.children.tvm_api.processor import Processor
from fractune_workers.children.tvm_api.target import vector_unit

# The launch floor of a GPU's share: the time of an empty kernel by the timer of candidates.
#
# The host needs some microseconds to launch a kernel. A row of kernels that are shorter takes as long as their
# launches, on every share: the host is timed.
#
# The kernel is PTX like the anchor, because a process that measures has no CUDA compiler. TVM's own runtime launches
# and times it, by the same calls as a candidate. A launch from Python would take longer, and be no floor.

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


_SPARE_REGISTERS = 2
"""one holds the factor; with the last one in use as well, the compiler spills some to memory"""
_FMAS = 1 << 20
"""of all chains of a core: 0.1 ms; the same again for every four cores, because more threads take longer to start"""
_FIRST_FMA_S = 0.08
_NEXT_FMA_S = 0.01
_SLICE_BYTES = 2 << 20
"""of an array, for each core"""
_STREAM_BYTES, _MOST_STREAM_BYTES, _CACHES = 96 << 20, 512 << 20, 4
"""of all arrays: so many last-level caches, but no more than fits into a small container"""
_SUMS = 8
"""side by side: one alone would wait for its last addition"""
_STREAM_S = 0.04
_STREAMS = 3
"""The first measurements include the memory. Later ones leave it out: its arrays take long to fill."""
_FLOAT32_BYTES = 4


class CpuRoof:
    """The roof of the cores that this process is confined to."""

    def __init__(self, target: Any, processor: Processor) -> None:
        self._processor = processor
        self._cores = len(os.sched_getaffinity(0))
        self._unit = vector_unit(target)
        self._chains = self._unit.registers - _SPARE_REGISTERS
        self._steps = _FMAS // self._chains * math.ceil(self._cores / 4)
        self._fma_s = _FIRST_FMA_S
        self._streams_left = _STREAMS
        self._best = Roof(0.0, 0.0, last_cache_bytes() or _STREAM_BYTES)
        # Built at once: a process that measures candidates may write no file.
        lanes = self._unit.lanes
        self._length = _SLICE_BYTES // (_FLOAT32_BYTES * lanes)
        functions = {
            "fma": _fma(self._cores, self._chains, lanes, self._steps),
            "triad": _triad(self._cores, self._length, lanes),
            "read": _read(self._cores, self._length // _SUMS, lanes),
        }
        kernels = load_objects([build_object(tvm.IRModule(functions), target)])
        self._triad: Callable[..., object] = kernels["triad"]
        self._read: Callable[..., object] = kernels["read"]
        arguments = map(processor.tensor, (_halves(lanes), _halves(self._cores, self._chains, lanes)))
        self._run_fma = partial(kernels["fma"], *arguments)

    def measure(self) -> Roof:
        """The best of all measurements so far. The first takes half a second. The next two take 0.2 s with
        the memory, and later ones 10 ms.
        """
        gb_per_s, read_gb_per_s = self._bandwidths() if self._streams_left else (0.0, 0.0)
        roof = Roof(self._gflops(self._fma_s), gb_per_s, 0, read_gb_per_s=read_gb_per_s)
        self._best = self._best.raised_to(roof)
        self._fma_s, self._streams_left = _NEXT_FMA_S, max(0, self._streams_left - 1)
        return self._best

    def _gflops(self, within_s: float) -> float:
        operations = 2 * self._cores * self._chains * self._unit.lanes * self._steps
        return operations / _fastest_s([self._run_fma], within_s) / 1e9

    def _bandwidths(self) -> tuple[float, float]:
        """10^9 bytes a second of the triad, and of reads alone. The arrays are freed at the end: later measurements
        need the memory.
        """
        lanes, tensor = self._unit.lanes, self._processor.tensor
        halves, sums = _halves(self._cores, self._length, lanes), tensor(_halves(self._cores, _SUMS, lanes))
        bytes_in_all = min(max(_STREAM_BYTES, _CACHES * self._best.cache_bytes), _MOST_STREAM_BYTES)
        pairs = math.ceil(bytes_in_all / (2 * halves.nbytes))
        arrays = [(tensor(halves), tensor(halves)) for _ in range(pairs)]
        triad_s = _fastest_s([partial(self._triad, *pair) for pair in arrays], _STREAM_S)
        read_s = _fastest_s([partial(self._read, each, sums) for pair in arrays for each in pair], _STREAM_S)
        return 3 * halves.nbytes / triad_s / 1e9, halves.nbytes / read_s / 1e9


def _fastest_s(runs: Sequence[Callable[[], object]], within_s: float) -> float:
    """Seconds of the fastest run. Each is made at least twice, all alternately, until `within_s` is over."""
    fastest_s, end = math.inf, time.perf_counter() + within_s
    rounds = 0
    while rounds < 2 or time.perf_counter() < end:
        rounds += 1
        fastest_s = min(fastest_s, *map(_seconds, runs))
    return fastest_s


def _seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _halves(*shape: int) -> Any:
    """Chains of `x = x / 2 + 1 / 2` do not grow or shrink by it, and no number becomes denormal."""
    return np.full(shape, 0.5, np.float32)


def _fma(cores: int, count: int, lanes: int, steps: int) -> Any:
    @tirx.prim_func
    def fma(factor_handle: tirx.handle, chains_handle: tirx.handle) -> None:
        tirx.func_attr({"global_symbol": "fma", "tirx.noalias": True})
        factor = tirx.match_buffer(factor_handle, (lanes,), "float32")
        chains = tirx.match_buffer(chains_handle, (cores, count, lanes), "float32")
        for core in tirx.parallel(cores):
            registers = tirx.alloc_buffer((count, lanes), "float32", scope="local")
            for chain in tirx.unroll(count):
                for lane in tirx.vectorized(lanes):
                    registers[chain, lane] = chains[core, chain, lane]
            for _ in tirx.serial(steps):
                for chain in tirx.unroll(count):
                    for lane in tirx.vectorized(lanes):
                        registers[chain, lane] = registers[chain, lane] * factor[lane] + factor[lane]
            for chain in tirx.unroll(count):
                for lane in tirx.vectorized(lanes):
                    chains[core, chain, lane] = registers[chain, lane]

    return fma


def _triad(cores: int, length: int, lanes: int) -> Any:
    @tirx.prim_func
    def triad(x_handle: tirx.handle, y_handle: tirx.handle) -> None:
        tirx.func_attr({"global_symbol": "triad", "tirx.noalias": True})
        x = tirx.match_buffer(x_handle, (cores, length, lanes), "float32")
        y = tirx.match_buffer(y_handle, (cores, length, lanes), "float32")
        for core in tirx.parallel(cores):
            for place in tirx.serial(length):
                for lane in tirx.vectorized(lanes):
                    y[core, place, lane] = x[core, place, lane] * tirx.float32(0.5) + y[core, place, lane]

    return triad


def _read(cores: int, steps: int, lanes: int) -> Any:
    @tirx.prim_func
    def read(data_handle: tirx.handle, sums_handle: tirx.handle) -> None:
        tirx.func_attr({"global_symbol": "read", "tirx.noalias": True})
        data = tirx.match_buffer(data_handle, (cores, steps * _SUMS, lanes), "float32")
        sums = tirx.match_buffer(sums_handle, (cores, _SUMS, lanes), "float32")
        for core in tirx.parallel(cores):
            registers = tirx.alloc_buffer((_SUMS, lanes), "float32", scope="local")
            for vector in tirx.unroll(_SUMS):
                for lane in tirx.vectorized(lanes):
                    registers[vector, lane] = tirx.float32(0)
            for step in tirx.serial(steps):
                for vector in tirx.unroll(_SUMS):
                    for lane in tirx.vectorized(lanes):
                        registers[vector, lane] = registers[vector, lane] + data[core, step * _SUMS + vector, lane]
            for vector in tirx.unroll(_SUMS):
                for lane in tirx.vectorized(lanes):
                    sums[core, vector, lane] = registers[vector, lane]

    return read
