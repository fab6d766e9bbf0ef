"""CUDA's driver, as far as the proof of a share needs it."""

from __future__ import annotations

from typing import Protocol

from tuner_core.errors import ShareUnavailable


class DriverFailed(ShareUnavailable):
    """A call of CUDA's driver failed; the message says its number and name, and what to do."""


class Driver(Protocol):
    """What a confined process asks CUDA about the device that it sees as number 0. Opened after the share was entered.

    Every method raises DriverFailed.
    """

    def is_mps_client(self) -> bool:
        """Whether this process is a client of an MPS server (CU_DEVICE_ATTRIBUTE_MPS_ENABLED)."""
        ...

    def sm_count(self) -> int:
        """SMs as this process sees them (CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)."""
        ...

    def memory_bytes(self) -> int:
        """Total memory that cuMemGetInfo tells in this context."""
        ...

    def count_sms(self, stream: int = 0) -> int:
        """Distinct %smid that a kernel of many short blocks met, launched on `stream`."""
        ...

    def device_uuid(self) -> str: ...


def open_driver() -> Driver:
    """CUDA in this process. Raises DriverFailed."""
    raise DriverFailed("this build of fractune cannot ask CUDA's driver; ask for a share of the CPU, as in cpu:1")
