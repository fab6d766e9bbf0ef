"""The roof of a CPU share: the most arithmetic and the most memory traffic that its cores give.

Two kernels, each on all cores of the share at once, run again and again, and the fastest run counts: what slows a run
down is no limit of the share. A run is short, so that some have all cores to themselves even on a busy machine.

- `fma`: chains of fused multiply-adds in registers, enough of them to hide the latency of one. A chain needs its last
  value for the next, so no compiler can leave steps out.
- `triad`: STREAM's triad (McCalpin, 1995) in place, `y = x / 2 + y`, so that what is counted is what moves: a store to
  another array would first read the line that it overwrites. It goes from array to array, more than caches hold.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import tvm
from tvm.script import tirx

from fractune_core.roofs import Roof
from fractune_workers.children.tvm_api.artifacts import build_object, load_objects
from fractune_workers.children.tvm_api.processor import Processor
from fractune_workers.children.tvm_api.target import last_cache_bytes

_CHAINS = 12
"""two units of a latency of 4 cycles need 8; more than 14 would not fit into the 16 registers of AVX2"""
_STEPS = 1 << 15
"""of each chain: 0.1 ms; as many for every four cores, because more threads take longer to start"""
_FMA_S = 0.08
_SLICE_BYTES = 2 << 20
"""of an array, for each core"""
_STREAM_BYTES = 96 << 20
"""of all arrays: more than the part of a last-level cache that a share of a large processor may count on"""
_TRIAD_S = 0.04
_FLOAT32_BYTES = 4


def cpu_roof(target: Any, processor: Processor) -> Roof:
    """The roof of the cores that this process is confined to. It takes about half a second."""
    cores = len(os.sched_getaffinity(0))
    lanes = _lanes(target)
    steps, length = _STEPS * math.ceil(cores / 4), _SLICE_BYTES // (_FLOAT32_BYTES * lanes)
    module = tvm.IRModule({"fma": _fma(cores, lanes, steps), "triad": _triad(cores, length, lanes)})
    kernels = load_objects([build_object(module, target)])
    chains = map(processor.tensor, (_halves(lanes), _halves(cores, _CHAINS, lanes)))
    fma_s = _fastest_s([partial(kernels["fma"], *chains)], _FMA_S)
    halves, pairs = _halves(cores, length, lanes), math.ceil(_STREAM_BYTES / (2 * _SLICE_BYTES * cores))
    triads = [partial(kernels["triad"], processor.tensor(halves), processor.tensor(halves)) for _ in range(pairs)]
    triad_s = _fastest_s(triads, _TRIAD_S)
    return Roof(
        gflops=2 * cores * _CHAINS * lanes * steps / fma_s / 1e9,
        gb_per_s=3 * cores * _SLICE_BYTES / triad_s / 1e9,
        cache_bytes=last_cache_bytes() or _STREAM_BYTES,
    )


def _fastest_s(runs: Sequence[Callable[[], object]], within_s: float) -> float:
    """Seconds of the fastest run; each is made twice at least, all in turn, until `within_s` is over."""
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


def _lanes(target: Any) -> int:
    """Float32 numbers in a vector register of the target."""
    return int(tvm.get_global_func("target.llvm_get_vector_width")(target)) // (8 * _FLOAT32_BYTES)


def _fma(cores: int, lanes: int, steps: int) -> Any:
    @tirx.prim_func
    def fma(factor_handle: tirx.handle, chains_handle: tirx.handle) -> None:
        tirx.func_attr({"global_symbol": "fma", "tirx.noalias": True})
        factor = tirx.match_buffer(factor_handle, (lanes,), "float32")
        chains = tirx.match_buffer(chains_handle, (cores, _CHAINS, lanes), "float32")
        for core in tirx.parallel(cores):
            registers = tirx.alloc_buffer((_CHAINS, lanes), "float32", scope="local")
            for chain in tirx.unroll(_CHAINS):
                for lane in tirx.vectorized(lanes):
                    registers[chain, lane] = chains[core, chain, lane]
            for _ in tirx.serial(steps):
                for chain in tirx.unroll(_CHAINS):
                    for lane in tirx.vectorized(lanes):
                        registers[chain, lane] = registers[chain, lane] * factor[lane] + factor[lane]
            for chain in tirx.unroll(_CHAINS):
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
