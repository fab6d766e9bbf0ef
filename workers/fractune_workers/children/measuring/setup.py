"""The setup of a measurer's child: the host's CPU, or the GPU that CUDA shows a process within its share; and the
anchor.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import te
from tvm.s_tir import Schedule

from fractune_core.analysis.roofline import Roof
from fractune_core.cuda import runtime_version
from fractune_core.errors import ShareUnavailable
from fractune_core.records import TimingPolicy
from fractune_core.shares import Device
from fractune_workers.children.measuring.counters import Counters, KernelCounters
from fractune_workers.children.measuring.interleaved import calls_for
from fractune_workers.children.measuring.roof import CpuRoof, LaunchFloor
from fractune_workers.children.tvm_api.arrays import random_args
from fractune_workers.children.tvm_api.artifacts import build_object, load_objects
from fractune_workers.children.tvm_api.cuda_target import gpu_target
from fractune_workers.children.tvm_api.processor import Processor, cpu_processor
from fractune_workers.children.tvm_api.target import default_target, host_device
from fractune_workers.cuda.anchor import GpuAnchor
from fractune_workers.cuda.driver import CudaDriver, open_driver
from fractune_workers.gpu.nvml import Nvml, gpu_device, open_nvml, visible_gpu

_POOL_LOOP = 64
_ANCHOR_SIZE = 128
_ANCHOR_POLICY = TimingPolicy("anchor", warmups=1, repeats=3, min_repeat_ms=3.0)


class Anchor:
    """When its time drifts, the machine changed, not the code."""

    def __init__(self, seconds: Callable[[], float]) -> None:
        self._seconds = seconds
        self._first_s = 0.0

    def ratio(self) -> float:
        """The anchor's time now over its first time. The first is not at the start, when a whole fleet is starting."""
        now_s = self._seconds()
        self._first_s = self._first_s or now_s
        return now_s / self._first_s


@dataclass(frozen=True)
class MeasuringSetup:
    processor: Processor
    device: Device
    """the whole of it, as records name it"""
    target: Any
    """TVM's default target for it"""
    anchor: Anchor
    versions: dict[str, str]
    """of the software that decides the times, in the form of records"""
    get_ready: Callable[[], None]
    """has to run before the share is verified"""
    roof: Callable[[], Roof]
    """measures the share's limits: of a CPU the best roof, this time included; of a GPU the launch floor"""
    counters: Callable[[], Counters] | None
    """the kernel's counters for the measuring cores and threads; None on a GPU, where these do not do the work"""


def cpu_setup() -> MeasuringSetup:
    target, processor = default_target(1), cpu_processor()
    return MeasuringSetup(
        processor=processor,
        device=host_device(),
        target=target,
        anchor=Anchor(matmul_anchor(target, processor)),
        versions=_versions(),
        get_ready=_start_every_thread,
        roof=CpuRoof(target, processor).measure,
        counters=KernelCounters(sorted(os.sched_getaffinity(0))).read,
    )


def gpu_setup(
    stream: int,
    nvml: Callable[[], Nvml] = open_nvml,
    driver: Callable[[], CudaDriver] = open_driver,
    kind: str = "cuda",
) -> MeasuringSetup:
    """The GPU that this process sees, its kernels on `stream` (an address; 0 = the default stream).

    `kind` is TVM's name for the device. Raises ShareUnavailable when TVM, CUDA or NVML has no GPU.
    """
    device = tvm.device(kind, 0)
    if not device.exist:
        raise ShareUnavailable(
            "TVM sees no GPU: its library for CUDA was not loaded, or CUDA shows this process none; see what "
            "`fractune doctor` finds missing, and compare CUDA_VISIBLE_DEVICES with `nvidia-smi -L`"
        )
    gpu, cuda = visible_gpu(nvml().gpus()), driver()
    # Twice the cache, and TVM copies as much from one buffer to another.
    processor = Processor(device, stream, flush_bytes=2 * cuda.l2_bytes(), check=cuda.wait)
    return MeasuringSetup(
        processor=processor,
        device=gpu_device(gpu, cuda.l2_bytes()),
        target=tvm.target.Target(gpu_target(gpu.arch)),
        anchor=Anchor(GpuAnchor(cuda, stream, gpu.sms).seconds),
        versions={**_versions(), "driver": gpu.driver, "cuda": runtime_version()},
        get_ready=lambda: None,
        roof=LaunchFloor(processor).measure,
        counters=None,
    )


def _versions() -> dict[str, str]:
    return {"tvm": tvm.__version__, "tvm-ffi": tvm_ffi.__version__}


def _start_every_thread() -> None:
    """Run one parallel loop, so that TVM's pool is there when its threads are looked at."""
    empty = te.placeholder((_POOL_LOOP,), name="empty")
    fill = te.compute((_POOL_LOOP,), lambda i: empty[i] + 1.0, name="fill")
    sch = Schedule(tvm.IRModule({"main": te.create_prim_func([empty, fill])}))
    sch.parallel(sch.get_loops(sch.get_sblock("fill"))[0])
    kernel = load_objects([build_object(sch.mod, default_target(1))])
    kernel["main"](*random_args([["TENSOR", "float32", [_POOL_LOOP]]] * 2, 0, cpu_processor()))


def matmul_anchor(target: Any, processor: Processor) -> Callable[[], float]:
    """The seconds that a matrix product takes on a CPU."""
    kernel = load_objects([build_object(_matmul(_ANCHOR_SIZE), target)])
    args = random_args([["TENSOR", "float32", [_ANCHOR_SIZE, _ANCHOR_SIZE]]] * 3, 0, processor)
    calls = 1

    def seconds() -> float:
        nonlocal calls
        secs = statistics.median(processor.time(kernel, args, _ANCHOR_POLICY, calls))
        # Known from now on, so that the timer need not search them.
        calls = calls_for(secs, _ANCHOR_POLICY)
        return secs

    return seconds


def _matmul(size: int) -> Any:
    left = te.placeholder((size, size), name="left")
    right = te.placeholder((size, size), name="right")
    k = te.reduce_axis((0, size), name="k")
    product = te.compute((size, size), lambda i, j: te.sum(left[i, k] * right[k, j], axis=k), name="product")
    return tvm.IRModule({"main": te.create_prim_func([left, right, product])})
