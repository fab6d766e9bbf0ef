"""A green context: some SMs of the device, and a stream whose kernels run on these only. No daemon, no root.

What confines is the stream: a kernel of the primary context that is launched on it (TVM's are) stays on these SMs, one
launched on any other stream does not. A CUDA graph does not follow the stream that it is launched on, so none may be
used inside.
"""

from __future__ import annotations

from typing import Any

from fractune_core.errors import ShareUnavailable
from fractune_workers.cuda.driver import CudaDriver


class GreenContext:
    """At least `sms` SMs of the device of `driver`: CUDA rounds up. Raises DriverFailed, ShareUnavailable."""

    def __init__(self, driver: CudaDriver, sms: int) -> None:
        self._driver = driver
        cuda = driver.cuda
        self._kind = cuda.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
        whole = driver.call("cuDeviceGetDevResource", driver.device, self._kind)
        self.step: int = max(whole.sm.minSmPartitionSize, whole.sm.smCoscheduledAlignment)
        """SMs by which CUDA rounds up, at most"""
        groups, made, _ = driver.call("cuDevSmResourceSplitByCount", 1, whole, 0, sms)
        if made != 1:
            raise ShareUnavailable(f"CUDA cannot split {sms} of {whole.sm.smCount} SMs off; ask for fewer")
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
