"""The setup of a measurer's child: the host's CPU, or the GPU that CUDA shows a process within its share; and the
anchor. TVM's compiler is not needed: kernels and names that come from it are in `Software`.

The anchor of a GPU is one fixed kernel, timed beside the candidates by events on the stream that is confined. It is
PTX, which the driver compiles for what it finds: a process that measures has no CUDA compiler. Each thread reads 16
bytes of a buffer that no cache holds, works on them, and writes them back, so that arithmetic and memory are busy. The
arithmetic takes longer: the anchors of measurers that fill the GPU together ask for half of its memory's bandwidth.
Otherwise each of them would time the others, and their batches would be void.
"""

import ctypes
import json
import math
import os
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import tvm_ffi

from fractune_core.analysis.roofline import Roof
from fractune_core.codec.plain_json import from_json
from fractune_core.cuda import runtime_version
from fractune_core.errors import BadBundle, ShareUnavailable, first_line
from fractune_core.files.packs import ANCHOR, LOOP, PackManifest
from fractune_core.files.sealed import MANIFEST
from fractune_core.records import TimingPolicy
from fractune_core.shares import Device
from fractune_core.targets import arch_of, runs_on
from fractune_runtime.cpu import CPUINFO, check_code, host_isa, read_cpuinfo
from fractune_runtime.tvm_runtime.runtime import load_cuda_runtime
from fractune_workers.children.measuring.counters import Counters, KernelCounters
from fractune_workers.children.measuring.interleaved import calls_for
from fractune_workers.children.tvm_api.arrays import ANCHOR_SIZE, LOOP_SIZE, random_args
from fractune_workers.children.tvm_api.artifacts import load_objects
from fractune_workers.children.tvm_api.processor import Processor, cpu_device, cpu_processor
from fractune_workers.cuda.driver import CudaDriver, GpuRates, open_driver, sms_of
from fractune_workers.gpu.nvml import Nvml, gpu_device, open_nvml, visible_gpu

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


_ANCHOR_POLICY = TimingPolicy("anchor", warmups=1, repeats=3, min_repeat_ms=0.5)
"""A call takes a millisecond. Single calls differ by 4.8 % (90th percentile), far less than the drift that voids a
batch. Repeats of 3 ms differ by 2.3 %, and take three times as long."""
_UNKNOWN = "unknown"
_EXISTS = 0
"""TVM's number of the attribute"""


@dataclass(frozen=True)
class Software:
    """What comes from TVM's compiler: in a worker from the one that is installed, for a pack from the pack."""

    target: str
    """TVM's target for the device as JSON, without the number of cores"""
    versions: Mapping[str, str]
    """in the form of records"""
    isa: str = ""
    """LLVM's name of the host's CPU"""
    anchor: bytes = b""
    """object file of a CPU's anchor (`compiled.anchor_object`)"""
    loop: bytes = b""
    """object file of a loop that starts every thread of a CPU"""
    roof: Callable[[Processor], Callable[[], Roof]] | None = None
    """measures a share's limits on a processor; None = unknown here"""


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
    target: str
    """TVM's default target for it as JSON"""
    anchor: Anchor
    versions: dict[str, str]
    """of the software that decides the times, in the form of records"""
    get_ready: Callable[[], None]
    """has to run before the share is verified"""
    roof: Callable[[], Roof]
    """measures the share's limits: of a CPU the best roof, this time included; of a GPU the launch floor"""
    counters: Callable[[], Counters] | None
    """the kernel's counters for the measuring cores and threads; None on a GPU, where these do not do the work"""


def cpu_setup(software: Software) -> MeasuringSetup:
    """The CPU of this host, within the cores of this process."""
    processor = cpu_processor()
    return MeasuringSetup(
        processor=processor,
        device=cpu_device(software.isa),
        target=software.target,
        anchor=Anchor(cpu_anchor(software.anchor, processor)),
        versions=dict(software.versions),
        get_ready=lambda: _start_every_thread(software.loop, processor),
        roof=_roof_of(software, processor),
        counters=KernelCounters(sorted(os.sched_getaffinity(0))).read,
    )


def gpu_setup(
    stream: int,
    software: Callable[[str], Software],
    nvml: Callable[[], Nvml] = open_nvml,
    driver: Callable[[], CudaDriver] = open_driver,
    kind: str = "cuda",
) -> MeasuringSetup:
    """The GPU that this process sees, its kernels on `stream` (an address; 0 = the default stream). TVM's runtime for
    CUDA is loaded.

    `software`: that for an architecture (`sm_90`). `kind` is TVM's name for the device. Raises ShareUnavailable when
    TVM, CUDA or NVML has no GPU.
    """
    device = tvm_ffi.device(f"{kind}:0")
    if not tvm_ffi.get_global_func("runtime.GetDeviceAttr")(device.dlpack_device_type(), device.index, _EXISTS):
        raise ShareUnavailable(
            "TVM sees no GPU: its library for CUDA was not loaded, or CUDA shows this process none; see what "
            "`fractune doctor` finds missing, and compare CUDA_VISIBLE_DEVICES with `nvidia-smi -L`"
        )
    gpu, cuda = visible_gpu(nvml().gpus()), driver()
    # Twice the cache, and TVM copies as much from one buffer to another.
    processor = Processor(device, stream, flush_bytes=2 * cuda.l2_bytes(), check=cuda.wait)
    of_gpu = software(gpu.arch)
    return MeasuringSetup(
        processor=processor,
        device=gpu_device(gpu, cuda.l2_bytes()),
        target=of_gpu.target,
        anchor=Anchor(GpuAnchor(cuda, stream, gpu.sms).seconds),
        versions={**of_gpu.versions, "driver": gpu.driver, "cuda": runtime_version()},
        get_ready=lambda: None,
        roof=_roof_of(of_gpu, processor),
        counters=None,
    )


def cpu_anchor(code: bytes, processor: Processor) -> Callable[[], float]:
    """The seconds that a matrix product takes on a CPU; `code` as of `compiled.anchor_object`."""
    kernel = load_objects([code])
    args = random_args([["TENSOR", "float32", [ANCHOR_SIZE, ANCHOR_SIZE]]] * 3, 0, processor)
    calls = 1

    def seconds() -> float:
        nonlocal calls
        secs = statistics.median(processor.time(kernel, args, _ANCHOR_POLICY, calls))
        # Known from now on, so that the timer need not search them.
        calls = calls_for(secs, _ANCHOR_POLICY)
        return secs

    return seconds


def _start_every_thread(code: bytes, processor: Processor) -> None:
    """Run one parallel loop, so that TVM's pool is there when its threads are looked at."""
    load_objects([code])["main"](*random_args([["TENSOR", "float32", [LOOP_SIZE]]] * 2, 0, processor))


def _roof_of(software: Software, processor: Processor) -> Callable[[], Roof]:
    return (lambda: Roof(0.0, 0.0, 0)) if software.roof is None else software.roof(processor)


def packed_cpu_setup(folder: Path) -> MeasuringSetup:
    """The CPU of this host. `folder` has the pack's manifest and its kernels for the host. Raises BadBundle if this CPU
    cannot run the pack's code, and for kernels that are not code.
    """
    manifest, facts = _manifest(folder), read_cpuinfo(CPUINFO)
    check_code("the pack", {"architecture": manifest.architecture, "features": manifest.features}, facts)
    isa = host_isa(facts) or json.loads(manifest.target).get("mcpu") or _UNKNOWN
    anchor, loop = ((folder / name).read_bytes() for name in (ANCHOR, LOOP))
    try:
        return cpu_setup(Software(manifest.target_key, _versions(manifest), isa, anchor, loop))
    except (AttributeError, RuntimeError) as error:
        raise BadBundle(f"the pack's kernels for the host do not run ({first_line(error)}); make it again") from error


def packed_gpu_setup(folder: Path, stream: int) -> MeasuringSetup:
    """The GPU that this process sees, its kernels on `stream`. Raises ShareUnavailable as `gpu_setup`, and for a GPU
    that does not run the pack's code.
    """
    manifest = _manifest(folder)
    load_cuda_runtime()
    return gpu_setup(stream, partial(_gpu_software, manifest))


def _gpu_software(manifest: PackManifest, arch: str) -> Software:
    built_for = arch_of(manifest.target)
    if not runs_on(built_for, arch):
        raise ShareUnavailable(f"the pack is for {built_for}, and this GPU is {arch}; pack for --target cuda:{arch}")
    return Software(manifest.target_key, _versions(manifest))


def _manifest(folder: Path) -> PackManifest:
    return from_json(PackManifest, json.loads((folder / MANIFEST).read_bytes()))


def _versions(manifest: PackManifest) -> dict[str, str]:
    return {"tvm": manifest.versions["tvm"], "tvm-ffi": tvm_ffi.__version__}
