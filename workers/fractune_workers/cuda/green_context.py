"""A green context: some SMs of the device, and a stream whose kernels run on these only. No daemon, no root.

What confines is the stream: a kernel of the primary context that is launched on it (TVM's are) stays on these SMs, one
launched on any other stream does not. A CUDA graph does not follow the stream that it is launched on, so none may be
used inside.
"""

from typing import Any

from fractune_core.errors import ShareUnavailable
from fractune_workers.cuda.driver import CudaDriver, DriverFailed

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
    """One group of at least `sms` SMs; empty when there is no such group."""
    try:
        groups, made, _ = driver.call("cuDevSmResourceSplitByCount", 1, whole, 0, sms)
    except DriverFailed as error:
        if error.code != _INVALID_RESOURCES:
            raise
        return []
    return groups if made == 1 else []
