"""CUDA's driver in a confined process: what it shows of the device, on how many SMs a kernel really runs, and green
contexts.

To be opened after the share was entered: `cuInit` settles for the life of the process which device it has, and whether
it is a client of MPS.

A green context has some SMs of the device, and a stream whose kernels run on these only. It needs no daemon, no root.
A kernel of the primary context that is launched on this stream (TVM's are) stays on these SMs. One that is launched on
any other stream does not. A CUDA graph does not follow the stream that it is launched on, so none may be used inside.
"""

from __future__ import annotations

import ctypes
import uuid
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from fractune_core.cuda import NEEDED_DRIVER, driver_fault, what_to_do
from fractune_core.errors import ShareUnavailable

_BLOCKS_PER_SM = 32
"""blocks of one thread that the smallest SM has room for at the same time"""
_FEW_CORES, _MORE_CORES_SINCE = 64, (8, 6)
"""cores of an SM; of compute capability 8.6 and newer it has twice as many"""
_SPIN_CYCLES = 100_000
"""some 60 us: longer than it takes to start the blocks of one wave"""

# A kernel that notes for each of its blocks the SM that ran it. As PTX: the driver compiles it for what it finds.
KERNEL = "note_smid"
"""Arguments: the address of a 32-bit word for each block, and how long a block stays, in cycles of the SM (64 bits)."""

# A block that stays for a while keeps its place, so that the next ones have to go to other SMs. sm_75 is the oldest
# that CUDA 13 knows; code for it runs on everything newer.
PTX = b"""
.version 6.3
.target sm_75
.address_size 64

.visible .entry note_smid(.param .u64 ids, .param .u64 spin_cycles)
{
    .reg .pred %spinning;
    .reg .b32 %block, %sm;
    .reg .b64 %table, %slot, %begin, %now, %spin;

    ld.param.u64 %table, [ids];
    ld.param.u64 %spin, [spin_cycles];
    mov.u32 %block, %ctaid.x;
    mov.u32 %sm, %smid;
    cvta.to.global.u64 %table, %table;
    mul.wide.u32 %slot, %block, 4;
    add.s64 %slot, %slot, %table;
    st.global.u32 [%slot], %sm;
    mov.u64 %begin, %clock64;
WAIT:
    mov.u64 %now, %clock64;
    sub.s64 %now, %now, %begin;
    setp.lt.u64 %spinning, %now, %spin;
    @%spinning bra WAIT;
    ret;
}
\0"""


class DriverFailed(ShareUnavailable):
    """A call of CUDA's driver failed; the message says its number and name, and what to do."""

    code: int = 0
    """CUDA's number; 0 when the call was never made"""

    @classmethod
    def of(cls, call: str, code: int, name: str) -> DriverFailed:
        error = cls(f"{call}: CUDA error {code} ({name}); {what_to_do(code)}")
        error.code = code
        return error


class Driver(Protocol):
    """CUDA's answers to a confined process about its device number 0. Opened after the share was entered.

    Every method raises DriverFailed.
    """

    def is_mps_client(self) -> bool:
        """Whether this process is a client of an MPS server (CU_DEVICE_ATTRIBUTE_MPS_ENABLED)."""
        ...

    def sm_count(self) -> int:
        """SMs as this process sees them (CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)."""
        ...

    def memory_bytes(self) -> int:
        """Total memory in this context, by cuMemGetInfo."""
        ...

    def count_sms(self, stream: int = 0) -> int:
        """Distinct %smid that a kernel of many short blocks met, launched on `stream`."""
        ...

    def device_uuid(self) -> str:
        """`GPU-` and the UUID; of a MIG instance its own UUID, with the same prefix: CUDA does not distinguish them."""
        ...


@dataclass(frozen=True)
class GpuRates:
    """Rates of a GPU by its data sheet; 0 = not known."""

    sms: int
    """of the whole GPU"""
    multiply_adds_per_s: float
    """of one SM, in float32"""
    memory_bytes_per_s: float


class CudaDriver:
    """The driver by `cuda`, which is the module `cuda.bindings.driver`. Raises DriverFailed when CUDA cannot start."""

    def __init__(self, cuda: Any) -> None:
        self.cuda = cuda
        if fault := driver_fault(self.call("cuDriverGetVersion") // 1000):
            raise DriverFailed(fault)
        self.call("cuInit", 0)
        self.device = self.call("cuDeviceGet", 0)
        # The context that TVM launches from. A green context shares it, and would make and unmake it by itself.
        self.call("cuCtxSetCurrent", self.call("cuDevicePrimaryCtxRetain", self.device))

    def call(self, name: str, *args: Any) -> Any:
        """The result of `cuda.NAME(*args)`: one value, or a tuple. Raises DriverFailed for its error code."""
        try:
            result, *values = getattr(self.cuda, name)(*args)
        except RuntimeError as error:  # no libcuda.so.1, or an old one without this function
            raise DriverFailed(f"{name}: CUDA's driver cannot be called ({error}); install {NEEDED_DRIVER}") from error
        if int(result) != 0:
            raise DriverFailed.of(name, int(result), result.name)
        return values[0] if len(values) == 1 else tuple(values)

    def is_mps_client(self) -> bool:
        return bool(self._attribute("MPS_ENABLED"))

    def sm_count(self) -> int:
        return self._attribute("MULTIPROCESSOR_COUNT")

    def memory_bytes(self) -> int:
        return int(self.call("cuMemGetInfo")[1])

    def device_uuid(self) -> str:
        return f"GPU-{uuid.UUID(bytes=self.call('cuDeviceGetUuid', self.device).bytes)}"

    def l2_bytes(self) -> int:
        """The second-level cache as this process sees it: of a MIG instance, its part."""
        return self._attribute("L2_CACHE_SIZE")

    def rates(self, gpu_sms: int) -> GpuRates:
        """As CUDA shows them, of a GPU with `gpu_sms` SMs, at the highest clocks."""
        capability = self._attribute("COMPUTE_CAPABILITY_MAJOR"), self._attribute("COMPUTE_CAPABILITY_MINOR")
        cores = _FEW_CORES if capability < _MORE_CORES_SINCE else 2 * _FEW_CORES
        memory_hz = self._attribute("MEMORY_CLOCK_RATE") * 1e3
        bus_bytes = self._attribute("GLOBAL_MEMORY_BUS_WIDTH") / 8
        # Memory moves data twice in a cycle.
        return GpuRates(gpu_sms, cores * self._attribute("CLOCK_RATE") * 1e3, 2 * memory_hz * bus_bytes)

    def wait(self) -> None:
        """Until all has ended that this process gave the device to do. Raises DriverFailed for good after a fault."""
        self.call("cuCtxSynchronize")

    def count_sms(self, stream: int = 0) -> int:
        blocks = _BLOCKS_PER_SM * self.sm_count()
        ids = (ctypes.c_uint32 * blocks)()
        table = self.call("cuMemAlloc", ctypes.sizeof(ids))
        try:
            arguments = ((int(table), _SPIN_CYCLES), (ctypes.c_void_p, ctypes.c_uint64))
            handle = self.cuda.CUstream(stream)
            self.call("cuLaunchKernel", self._note_smid, blocks, 1, 1, 1, 1, 1, 0, handle, arguments, 0)
            # The copy runs on the NULL stream, which does not wait for the stream of a green context.
            self.call("cuStreamSynchronize", handle)
            self.call("cuMemcpyDtoH", ids, table, ctypes.sizeof(ids))
        finally:
            self.call("cuMemFree", table)
        return len(set(ids))

    @cached_property
    def _note_smid(self) -> Any:
        return self.call("cuModuleGetFunction", self.call("cuModuleLoadData", PTX), KERNEL.encode())

    def _attribute(self, name: str) -> int:
        attribute = getattr(self.cuda.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(self.call("cuDeviceGetAttribute", attribute, self.device))


def open_driver() -> CudaDriver:
    """CUDA's driver in this process, its primary context current. Raises DriverFailed when there is none."""
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise DriverFailed(
            f"the package cuda-bindings cannot be imported ({error}); install 'fractune[cuda]'"
        ) from error
    return CudaDriver(driver)


_INVALID_RESOURCES = 915
"""CUDA's number for SMs that cannot be put together so"""


class GreenContext:
    """At least `sms` SMs of the device of `driver`: CUDA rounds up. Raises DriverFailed, ShareUnavailable."""

    def __init__(self, driver: CudaDriver, sms: int) -> None:
        self._driver = driver
        cuda = driver.cuda
        self._kind = cuda.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
        whole = _whole(driver)
        self.step = _step(whole)
        """SMs by which CUDA rounds up, at most"""
        groups = _split(driver, whole, sms)
        if not groups:
            most = largest_green(driver)
            raise ShareUnavailable(f"CUDA cannot split {sms} of {whole.sm.smCount} SMs off; ask for {most} at most")
        description = driver.call("cuDevResourceGenerateDesc", groups, 1)
        with_stream = cuda.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM
        self._handle: Any = driver.call("cuGreenCtxCreate", description, driver.device, with_stream)
        # The only kind of stream that a green context has: it and the NULL stream do not wait for each other.
        not_blocking = cuda.CUstream_flags.CU_STREAM_NON_BLOCKING
        self._stream: Any = driver.call("cuGreenCtxStreamCreate", self._handle, not_blocking, 0)

    @property
    def stream(self) -> int:
        """The address of its stream (a cudaStream_t)."""
        return int(self._stream)

    def sm_count(self) -> int:
        """SMs that it really has."""
        return int(self._driver.call("cuGreenCtxGetDevResource", self._handle, self._kind).sm.smCount)

    def owns_its_stream(self) -> bool:
        """Whether CUDA says of the stream that it belongs here."""
        return int(self._driver.call("cuStreamGetGreenCtx", self._stream)) == int(self._handle)

    def close(self) -> None:
        self._driver.call("cuStreamDestroy", self._stream)
        self._driver.call("cuGreenCtxDestroy", self._handle)


def sms_of(driver: CudaDriver, stream: int) -> int:
    """SMs that kernels on a stream (an address) run on; 0 = the default stream."""
    if stream == 0:
        return driver.sm_count()
    handle = driver.call("cuStreamGetGreenCtx", driver.cuda.CUstream(stream))
    kind = driver.cuda.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
    return int(driver.call("cuGreenCtxGetDevResource", handle, kind).sm.smCount)


def largest_green(driver: CudaDriver) -> int:
    """The most SMs that CUDA splits off: steps below the whole where the parts of the die are not all the same size.

    0 = it splits none off.
    """
    whole = _whole(driver)
    step = _step(whole)
    sms_whole = int(whole.sm.smCount)
    sizes = range(sms_whole // step * step, 0, -step)
    return next((sms for sms in sizes if _split(driver, whole, sms)), 0)


def _whole(driver: CudaDriver) -> Any:
    kind = driver.cuda.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
    return driver.call("cuDeviceGetDevResource", driver.device, kind)


def _step(whole: Any) -> int:
    """SMs by which CUDA rounds up, at most."""
    return int(max(whole.sm.minSmPartitionSize, whole.sm.smCoscheduledAlignment))


def _split(driver: CudaDriver, whole: Any, sms: int) -> Any:
    """One group of at least `sms` SMs; empty if the device cannot give one."""
    try:
        groups, made, _ = driver.call("cuDevSmResourceSplitByCount", 1, whole, 0, sms)
    except DriverFailed as error:
        if error.code != _INVALID_RESOURCES:
            raise
        return []
    return groups if made == 1 else []
