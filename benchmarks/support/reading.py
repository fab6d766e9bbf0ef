"""The bandwidth of a share for reads alone: what limits a product of one row, as in the steps of a decoder."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np
import tvm
from tvm.script import tirx

from fractune_workers.children.tvm_api.artifacts import load_objects
from fractune_workers.children.tvm_api.compiled import build_object
from fractune_workers.children.tvm_api.target import default_target, vector_unit

_SLICE_BYTES, _ALL_BYTES = 4 << 20, 192 << 20
"""of a core's part of an array, and of all arrays: more than caches hold"""
_VECTORS = 8
"""sums side by side: one alone would wait for its last addition"""
_SECONDS = 0.3


def read_gb_per_s() -> float:
    """10^9 bytes a second of the fastest of many reads, by all cores of this process at once."""
    cores = len(os.sched_getaffinity(0))
    target = default_target(cores)
    lanes = vector_unit(target).lanes
    steps = _SLICE_BYTES // (4 * lanes * _VECTORS)
    kernel = load_objects([build_object(tvm.IRModule({"read": _read(cores, steps, lanes)}), target)])["read"]
    data = np.full((cores, steps, _VECTORS, lanes), 0.5, np.float32)
    arrays = [tvm.runtime.tensor(data) for _ in range(max(2, _ALL_BYTES // data.nbytes))]
    sums = tvm.runtime.tensor(np.zeros((cores, _VECTORS, lanes), np.float32))
    fastest_s, end_s = float("inf"), time.perf_counter() + _SECONDS
    while time.perf_counter() < end_s:
        for each in arrays:
            begin_s = time.perf_counter()
            kernel(each, sums)
            fastest_s = min(fastest_s, time.perf_counter() - begin_s)
    return data.nbytes / fastest_s / 1e9


def _read(cores: int, steps: int, lanes: int) -> Any:
    @tirx.prim_func
    def read(data_handle: tirx.handle, sums_handle: tirx.handle) -> None:
        tirx.func_attr({"global_symbol": "read", "tirx.noalias": True})
        data = tirx.match_buffer(data_handle, (cores, steps, _VECTORS, lanes), "float32")
        sums = tirx.match_buffer(sums_handle, (cores, _VECTORS, lanes), "float32")
        for core in tirx.parallel(cores):
            registers = tirx.alloc_buffer((_VECTORS, lanes), "float32", scope="local")
            for vector in tirx.unroll(_VECTORS):
                for lane in tirx.vectorized(lanes):
                    registers[vector, lane] = tirx.float32(0)
            for step in tirx.serial(steps):
                for vector in tirx.unroll(_VECTORS):
                    for lane in tirx.vectorized(lanes):
                        registers[vector, lane] = registers[vector, lane] + data[core, step, vector, lane]
            for vector in tirx.unroll(_VECTORS):
                for lane in tirx.vectorized(lanes):
                    sums[core, vector, lane] = registers[vector, lane]

    return read
