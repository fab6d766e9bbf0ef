"""The calls of `cuda.bindings.driver` that fractune makes, answered for a GPU that does not exist.

It keeps to what can go wrong on a real one: a stream of a green context and the NULL stream do not wait for each
other, green contexts come in steps, inside a percentage of MPS they leak, and what a process may see is settled by its
environment when CUDA starts.
"""

import ctypes
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from fractune_workers.cuda.driver import CudaDriver
from tests.support.hardware.simulated_gpu import SimulatedGpu


class CUresult(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_NO_DEVICE = 100
    CUDA_ERROR_INVALID_CONTEXT = 201
    CUDA_ERROR_NOT_READY = 600
    CUDA_ERROR_ILLEGAL_ADDRESS = 700
    CUDA_ERROR_MPS_CONNECTION_FAILED = 805
    CUDA_ERROR_MPS_SERVER_NOT_READY = 807
    CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION = 915
    CUDA_ERROR_UNKNOWN = 999


class CUdevice_attribute(IntEnum):
    CU_DEVICE_ATTRIBUTE_CLOCK_RATE = 13
    CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16
    CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE = 36
    CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH = 37
    CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE = 38
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76
    CU_DEVICE_ATTRIBUTE_MPS_ENABLED = 133


class CUdevResourceType(IntEnum):
    CU_DEV_RESOURCE_TYPE_SM = 1


class CUgreenCtxCreate_flags(IntEnum):
    CU_GREEN_CTX_DEFAULT_STREAM = 1


class CUstream_flags(IntEnum):
    CU_STREAM_NON_BLOCKING = 1


# Within the simulated module, these names are its members.
_Attribute = CUdevice_attribute
_ResourceType = CUdevResourceType


class CUstream(int):
    pass


@dataclass(frozen=True)
class Staged:
    """What goes wrong, or is around the process."""

    mps: bool = False
    version: int = 13_000
    """of CUDA, as the driver serves it"""
    percentage: int = 100
    """of an MPS daemon, for all of its clients: not seen in the environment"""
    errors: dict[str, int] = field(default_factory=dict)
    """number of the error that a call ends with"""
    leaks: bool = False
    """kernels on a green stream run on every SM that the process has"""
    met_fewer: int = 0
    """SMs that a kernel never meets, because others keep them busy"""
    other_device: bool = False
    stray_stream: bool = False
    """the stream belongs to no green context"""
    splits_at_most: int = 0
    """SMs of the largest green context, where the parts of the die are not all the same size; 0 = all of them"""
    hands_out: int = 0
    """SMs beyond the next step that a split grants"""
    anchor_ms: float = 0.1
    """how long the anchor kernel takes"""
    memory_khz: int = 2_619_000
    """an H100's; 0 = CUDA does not tell"""


_Result = tuple[Any, ...]
_OK = CUresult.CUDA_SUCCESS


_ANCHOR_BLOCKS = 194
"""of the anchor, for each SM of an H100"""


class SimulatedCuda:
    """Stands in for the module `cuda.bindings.driver` in one process."""

    CUdevice_attribute = CUdevice_attribute
    CUdevResourceType = CUdevResourceType
    CUgreenCtxCreate_flags = CUgreenCtxCreate_flags
    CUstream_flags = CUstream_flags
    CUstream = CUstream

    def __init__(self, gpu: SimulatedGpu, staged: Staged = Staged()) -> None:
        self.gpu = gpu
        self.staged = staged
        self.calls: list[str] = []
        self._primary_is_there = False
        self._current: object = None
        self._memory: dict[int, bytes] = {}
        self._pending: dict[int, list[Callable[[], None]]] = {}
        self._passed_ms: dict[int, float] = {}
        """how long kernels have run, by stream"""
        self._recorded_ms: dict[int, float] = {}
        """when an event was met, by event"""
        self._green: dict[int, int] = {}
        """SMs by green context"""
        self._streams: dict[int, int] = {}
        """green context by stream"""
        self._uuid, self._sms, self._memory_mib = self._what_it_sees()

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("cu"):
            return super().__getattribute__(name)
        self.calls.append(name)
        number = self.staged.errors.get(name)
        if number is not None:
            return lambda *_: (CUresult(number),)
        return super().__getattribute__(name)

    def _what_it_sees(self) -> tuple[str, int, int]:
        model, visible = self.gpu.model, os.environ.get("CUDA_VISIBLE_DEVICES", "0")
        uuid = "GPU-ffffffff-cdf7-e667-3644-bf5b4f46ed65" if self.staged.other_device else self.gpu.uuid
        for instance in self.gpu.instances:
            if instance is not None and instance.uuid == visible:
                return uuid if self.staged.other_device else visible, instance.profile.sms, instance.profile.memory_mib
        percentage = int(os.environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "100")) if self.staged.mps else 100
        sms = model.sms * min(percentage, self.staged.percentage) // 100
        return uuid, sms, model.memory_mib

    def cuDriverGetVersion(self) -> _Result:
        return _OK, self.staged.version

    def cuInit(self, flags: int) -> _Result:
        assert flags == 0
        return (_OK,)

    def cuDeviceGet(self, ordinal: int) -> _Result:
        assert ordinal == 0
        return _OK, "device"

    def cuDevicePrimaryCtxRetain(self, device: object) -> _Result:
        assert device == "device"
        self._primary_is_there = True
        return _OK, "primary"

    def cuCtxSetCurrent(self, context: object) -> _Result:
        self._current = context
        return (_OK,)

    def cuDeviceGetAttribute(self, attribute: _Attribute, device: object) -> _Result:
        assert device == "device"
        told = {
            CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: self._sms,
            CUdevice_attribute.CU_DEVICE_ATTRIBUTE_CLOCK_RATE: 1_980_000,
            CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE: self.staged.memory_khz,
            CUdevice_attribute.CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH: 5120,
            CUdevice_attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: self.gpu.model.capability[0],
            CUdevice_attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: self.gpu.model.capability[1],
            CUdevice_attribute.CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE: 60 << 20,
            CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MPS_ENABLED: int(self.staged.mps),
        }
        return _OK, told[attribute]

    def cuDeviceGetUuid(self, device: object) -> _Result:
        assert device == "device"
        return _OK, SimpleNamespace(bytes=UUID(self._uuid.partition("-")[2]).bytes)

    def cuMemGetInfo(self) -> _Result:
        if self._current is None:
            return (CUresult.CUDA_ERROR_INVALID_CONTEXT,)
        total = self._memory_mib << 20
        return _OK, total // 2, total

    def cuMemAlloc(self, size: int) -> _Result:
        address = 0x7F00_0000_0000 + len(self._memory) * (1 << 32)
        self._memory[address] = bytes(size)
        return _OK, address

    def cuMemFree(self, address: int) -> _Result:
        del self._memory[address]
        return (_OK,)

    def cuModuleLoadData(self, image: bytes) -> _Result:
        assert image.endswith(b"\0")
        return _OK, image

    def cuModuleGetFunction(self, module: bytes, name: bytes) -> _Result:
        assert b".entry " + name in module
        return _OK, name.decode()

    def cuLaunchKernel(self, kernel: str, *rest: Any) -> _Result:
        *shape, shared_bytes, stream, arguments, extra = rest
        assert (shared_bytes, extra) == (0, 0)
        self._launch(int(stream), getattr(self, f"_{kernel}")(int(stream), shape, arguments))
        return (_OK,)

    def _launch(self, stream: int, run: Callable[[], None]) -> None:
        self._pending.setdefault(stream, []).append(run)

    def _note_smid(self, stream: int, shape: Sequence[int], arguments: Any) -> Callable[[], None]:
        assert shape[1:] == [1] * 5
        (address, cycles), kinds = arguments
        assert kinds == (ctypes.c_void_p, ctypes.c_uint64)
        assert cycles > 0
        sms = self._runs_on(stream)
        ids = b"".join((block % sms).to_bytes(4, "little") for block in range(shape[0]))

        def run() -> None:
            self._memory[address] = ids

        return run

    def _anchor(self, stream: int, shape: Sequence[int], arguments: Any) -> Callable[[], None]:
        (address, rounds), kinds = arguments
        assert kinds == (ctypes.c_void_p, ctypes.c_uint32)
        assert rounds > 0
        base = max(start for start in self._memory if start <= address)
        first, last = address - base, address - base + shape[0] * shape[3] * 16
        assert last <= len(self._memory[base]), "it stays in its buffer"
        took_ms = self.staged.anchor_ms * shape[0] / _ANCHOR_BLOCKS / self._runs_on(stream)

        def run() -> None:
            contents = self._memory[base]
            assert contents[first : first + 4] == contents[last - 4 : last] == b"\x00\x00\x80\x3f", "1.0"
            self._passed_ms[stream] = self._passed_ms.get(stream, 0.0) + took_ms

        return run

    def cuMemsetD32(self, address: int, word: int, count: int) -> _Result:
        """On the NULL stream, like a copy."""
        contents = word.to_bytes(4, "little") * count
        assert len(contents) == len(self._memory[address])

        def run() -> None:
            self._memory[address] = contents

        self._launch(0, run)
        return (_OK,)

    def cuEventCreate(self, flags: int) -> _Result:
        assert flags == 0
        event = 0x3000 + len(self._recorded_ms)
        self._recorded_ms[event] = math.nan
        return _OK, event

    def cuEventRecord(self, event: int, stream: int) -> _Result:
        self._recorded_ms[event] = math.nan

        def run() -> None:
            self._recorded_ms[event] = self._passed_ms.get(int(stream), 0.0)

        self._launch(int(stream), run)
        return (_OK,)

    def cuEventSynchronize(self, _event: int) -> _Result:
        return self.cuCtxSynchronize()

    def cuEventElapsedTime(self, start: int, stop: int) -> _Result:
        passed_ms = self._recorded_ms[stop] - self._recorded_ms[start]
        return (CUresult.CUDA_ERROR_NOT_READY,) if math.isnan(passed_ms) else (_OK, passed_ms)

    def cuCtxSynchronize(self) -> _Result:
        for stream in list(self._pending):
            self.cuStreamSynchronize(stream)
        return (_OK,)

    def cuStreamSynchronize(self, stream: int) -> _Result:
        for run in self._pending.pop(int(stream), []):
            run()
        return (_OK,)

    def cuMemcpyDtoH(self, host: Any, address: int, size: int) -> _Result:
        """On the NULL stream: it waits for that one, and for no stream of a green context."""
        self.cuStreamSynchronize(0)
        ctypes.memmove(host, self._memory[address], size)
        return (_OK,)

    def cuDeviceGetDevResource(self, device: object, kind: _ResourceType) -> _Result:
        assert (device, kind) == ("device", CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM)
        return _OK, self._resource(self._sms)

    def cuDevSmResourceSplitByCount(self, groups: int, whole: Any, flags: int, sms: int) -> _Result:
        assert (groups, flags) == (1, 0)
        step, least = self._steps()
        granted = max(least, -(-sms // step) * step) + self.staged.hands_out
        if granted > (self.staged.splits_at_most or whole.sm.smCount):
            return (CUresult.CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION, [], 0, None)
        return _OK, [self._resource(granted)], 1, self._resource(whole.sm.smCount - granted)

    def cuDevResourceGenerateDesc(self, resources: Sequence[Any], count: int) -> _Result:
        assert len(resources) == count == 1
        return _OK, resources[0]

    def cuGreenCtxCreate(self, description: Any, device: object, flags: int) -> _Result:
        assert (device, flags) == ("device", 1)
        if not self._primary_is_there:
            return (CUresult.CUDA_ERROR_INVALID_CONTEXT,)
        handle = 0x1000 + len(self._green)
        self._green[handle] = description.sm.smCount
        return _OK, handle

    def cuGreenCtxStreamCreate(self, green: int, flags: int, priority: int) -> _Result:
        assert (flags, priority) == (CUstream_flags.CU_STREAM_NON_BLOCKING, 0)
        stream = CUstream(0x2000 + len(self._streams))
        self._streams[stream] = green
        return _OK, stream

    def cuGreenCtxGetDevResource(self, green: int, kind: _ResourceType) -> _Result:
        assert kind == CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
        return _OK, self._resource(self._green[green])

    def cuStreamGetGreenCtx(self, stream: int) -> _Result:
        return _OK, 0 if self.staged.stray_stream else self._streams[stream]

    def cuStreamDestroy(self, stream: int) -> _Result:
        del self._streams[stream]
        return (_OK,)

    def cuGreenCtxDestroy(self, green: int) -> _Result:
        assert green not in self._streams.values(), "a stream of it is still there"
        del self._green[green]
        return (_OK,)

    def _runs_on(self, stream: int) -> int:
        """How many SMs a kernel on `stream` meets."""
        green = self._streams.get(stream)
        leaks = self.staged.leaks or (self.staged.mps and self._sms < self.gpu.model.sms)
        return (self._sms if green is None or leaks else self._green[green]) - self.staged.met_fewer

    def _steps(self) -> tuple[int, int]:
        """By how many SMs a green context is rounded, and the fewest that it has."""
        return (8, 8) if self.gpu.model.capability >= (9, 0) else (2, 4)

    def _resource(self, sms: int) -> SimpleNamespace:
        step, least = self._steps()
        return SimpleNamespace(sm=SimpleNamespace(smCount=sms, minSmPartitionSize=least, smCoscheduledAlignment=step))


def simulated_driver(gpu: SimulatedGpu, staged: Staged = Staged()) -> CudaDriver:
    """CUDA as it would start in this process. Raises DriverFailed."""
    return CudaDriver(SimulatedCuda(gpu, staged))
